"""Into a sandbox: HTTP and WebSockets to a program that listens there, and TCP to any port of it."""

import base64
import hashlib
import http.client
import json
import os
import signal
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from simple_websocket import Client, ConnectionClosed

from app.keys import Keys
from tests.service_stack import free_port
from tests.wire import PREFIX, Api, until

KEY, OTHER = "key-of-alice", "key-of-bob"
UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13",
           "Sec_WebSocket_Key": base64.b64encode(bytes(16)).decode()}  # fmt: skip
PROGRAM = (Path(__file__).parent / "listening_program.py").read_text()


class Inside:
    """A sandbox in which the program listens, and how it is reached from outside."""

    def __init__(self, api: Api, **fields) -> None:
        self.api, self.box, self.port = api, api.start(**fields), free_port()
        assert self.box.write("program.py", PROGRAM).ok
        self.box.execute(f"python3 ~/program.py {self.port} >/dev/null 2>&1 &", shell=True)
        until(lambda: self.ask("GET", "/hello")[0] == 200, 20, "the program")

    def path(self, rest: str) -> str:
        return f"{PREFIX}/sandboxes/{self.box.id}/proxy/port/{self.port}{rest}"

    def open(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.api.url)
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)

    def ask(self, method, rest, body=None, *, path=None, chunked=False, **headers):
        """Make one request; return status, headers and body."""
        connection = self.open()
        try:
            fields = {**self.api.headers, **headers}
            fields = {name.replace("_", "-"): value for name, value in fields.items()}
            connection.request(method, path or self.path(rest), body, fields, encode_chunked=chunked)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def socket(self, rest, **options):
        fields = {name.replace("_", "-"): value for name, value in self.api.headers.items()}
        return Client(self.api.url.replace("http", "ws") + rest, headers=fields, **options)

    def forward(self, port=None):
        return self.socket(f"{PREFIX}/sandboxes/{self.box.id}/portforward?port={port or self.port}")


@pytest.fixture(scope="module")
def keyed(make_stack):
    """A service with keys, and with limits that tests can reach."""
    variables = {
        "ROCK_API_KEYS": f"{KEY}=alice,{OTHER}=bob", "ROCK_PROXY__REQUEST_LIMIT": "8m", "ROCK_PROXY__IDLE_SECONDS": "2",
        "ROCK_ENVHUB__ENABLE": "false",
    }  # fmt: skip
    return make_stack(runtime="local", variables=variables).start()


@pytest.fixture(scope="module")
def inside(server):
    made = Inside(Api(server.url))
    yield made
    made.box.stop()


@pytest.fixture(scope="module")
def owned(keyed):
    made = Inside(Api(keyed.url, {"X_API_Key": KEY}))
    yield made
    made.box.stop()


def test_any_method_path_and_status_pass_as_they_are(inside):
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND", "BREW"):
        status, headers, body = inside.ask(method, "/a%2Fb//../c;d?x=1&x=%20&y")
        seen = json.loads(body)
        assert status == 200 and seen["method"] == method
        assert seen["path"] == "/a%2Fb//../c;d?x=1&x=%20&y"
        assert headers["X-Program"] == "yes" and "X-ROCK-Error" not in headers
    assert inside.ask("HEAD", "/size/12345")[1]["Content-Length"] == "12345"
    # 299 has no reason phrase.
    assert [inside.ask("GET", f"/status/{code}")[0] for code in (418, 299)] == [418, 299]
    status, headers, body = inside.ask("GET", "/status/204")
    assert (status, body) == (204, b"")


def test_the_port_is_named_by_path_query_or_header(inside):
    base = f"{PREFIX}/sandboxes/{inside.box.id}/proxy"
    by_query = inside.ask("GET", "", path=f"{base}/hello?a=b&rock_target_port={inside.port}")
    assert by_query[0] == 200 and json.loads(by_query[2])["path"] == "/hello?a=b"
    by_header = inside.ask("GET", "", path=base, X_ROCK_Target_Port=str(inside.port))
    assert by_header[0] == 200 and json.loads(by_header[2])["path"] == "/"
    twice = inside.ask("GET", "", path=f"{base}/port/80/?rock_target_port=80")
    assert twice[0] == 400 and "more than once" in twice[2].decode()


def test_the_program_sees_itself_and_redirects_lead_back_to_it(inside):
    seen = json.loads(inside.ask("GET", "/", Origin=inside.api.url)[2])["headers"]
    assert seen["Host"] == f"localhost:{inside.port}" and seen["Origin"] == f"http://localhost:{inside.port}"
    assert seen["X-Forwarded-Prefix"] == inside.path("") and seen["X-Forwarded-Host"] == urlsplit(inside.api.url).netloc
    status, headers, _ = inside.ask("GET", "/redirect")
    assert status == 302 and headers["Location"] == inside.path("/hello?a=1")
    assert inside.ask("GET", "/cookie")[1]["Set-Cookie"] == f"a=1; Path={inside.path('')}; HttpOnly"


@pytest.mark.parametrize("chunked", [False, True])
def test_big_bodies_pass_both_ways(inside, chunked):
    piece, count = b"0123456789abcdef" * 4096, 512
    digest = hashlib.sha256(piece * count).hexdigest()
    length = {} if chunked else {"Content_Length": str(len(piece) * count)}
    status, headers, body = inside.ask("POST", "/digest", (piece for _ in range(count)), chunked=chunked, **length)
    assert (status, body.decode()) == (200, digest)
    framing = "/chunks" if chunked else "/size"
    status, headers, body = inside.ask("GET", f"{framing}/{32 << 20}")
    assert status == 200 and len(body) == 32 << 20 and body == b"x" * len(body)
    assert (headers["Content-Length"] is None) == chunked


def test_events_arrive_one_by_one(inside):
    connection = inside.open()
    connection.request("GET", inside.path("/events"))
    answer = connection.getresponse()
    assert answer.headers["Content-Type"] == "text/event-stream"
    for number in range(3):
        # The program says the next only when this one has arrived.
        assert answer.readline() == b"data: %d\n" % number
        assert answer.readline() == b"\n"
        assert inside.ask("POST", "/go-on")[0] == 200
    assert answer.read() == b""
    connection.close()


def test_one_connection_is_good_for_many_requests_also_when_a_body_was_not_wanted(inside):
    connection = inside.open()
    for number in range(3):
        connection.request("POST", inside.path("/refuse"), b"y" * 300_000)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (409, b"unread")
        connection.request("GET", inside.path(f"/hello?{number}"))
        answer = connection.getresponse()
        assert json.loads(answer.read())["path"] == f"/hello?{number}"
    connection.close()


def test_A12_websocket_messages_subprotocol_and_close_code_pass(inside):
    ours = inside.socket(inside.path("/echo?q=1"), subprotocols=["b", "a"])
    assert ours.subprotocol == "a"
    big = b"\x00\xff" * (1 << 20)
    for message in ("text \u2713", b"binary\x00\xff", big, ""):
        ours.send(message)
        assert ours.receive(timeout=20) == message
    ours.send("close 4001 because")
    with pytest.raises(ConnectionClosed) as ended:
        ours.receive(timeout=20)
    assert (ended.value.reason, ended.value.message) == (4001, "because")
    ours = inside.socket(inside.path("/echo"))
    ours.close(4002, "enough")
    until(lambda: inside.ask("GET", "/closed")[2] == b"4002 enough", 20, "the same at the other end")


def test_A12_pings_pass_and_keep_a_quiet_websocket_open(owned):
    """Its idle limit is two seconds here; without a pong before its next ping the client itself would close."""
    ours = owned.socket(owned.path("/echo"), ping_interval=0.9)
    assert ours.receive(timeout=4) is None
    ours.send("still there")
    assert ours.receive(timeout=20) == "still there"
    ours.close()


def test_a_websocket_that_the_program_refuses_is_refused_in_its_words(inside):
    status, headers, body = inside.ask("GET", "/status/403", **UPGRADE)
    assert (status, body) == (403, b"as asked") and "X-ROCK-Error" not in headers
    status, headers, _ = inside.ask("GET", "/echo", Origin="https://evil.example", **UPGRADE)
    assert (status, headers["X-ROCK-Error"]) == (403, "forbidden")


def test_a_port_is_forwarded_both_ways_to_the_end(inside):
    ours = inside.forward()
    body = b"z" * (3 << 20)
    ours.send(b"POST /digest HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
    for start in range(0, len(body), 1 << 20):
        ours.send(body[start : start + (1 << 20)])
    said = b""
    with pytest.raises(ConnectionClosed) as ended:
        while (piece := ours.receive(timeout=20)) is not None:
            said += piece
    assert ended.value.reason == 1000
    assert said.startswith(b"HTTP/1.1 200 ") and said.endswith(hashlib.sha256(body).hexdigest().encode())


def test_a_websocket_of_forwarding_is_closed_with_its_client(inside):
    ours = inside.forward()
    ours.send("GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"data: 0" in ours.receive(timeout=20) + (ours.receive(timeout=0.2) or b"")
    ours.close()
    until(lambda: inside.ask("POST", "/go-on")[2] == b"nobody", 20, "the end of the stream")


def test_X10_what_is_not_there_is_told_with_a_status_and_an_envelope(inside, server):
    def refused(path, status, kind, *words):
        got, headers, body = inside.ask("GET", "", path=path, **(UPGRADE if "portforward" in path else {}))
        envelope = json.loads(body)
        assert (got, headers["X-ROCK-Error"], envelope["result"]["kind"]) == (status, kind, kind), body
        assert envelope["status"] == "Failed" and all(word in envelope["error"] for word in words), body

    base = f"{PREFIX}/sandboxes/{inside.box.id}/proxy"
    refused(f"{PREFIX}/sandboxes/nobody/proxy/port/80/", 404, "not_found", "nobody")
    nothing = free_port()
    refused(f"{base}/port/{nothing}/", 502, "port_closed", str(nothing), inside.box.id)
    for port in ("0", "65536", "80@10.0.0.1", "-1", "٣"):
        refused(f"{base}/?rock_target_port={port.encode().hex('%') if not port.isascii() else port}", 400, "bad_request", "rock_target_port")  # fmt: skip
    # The service's own ports are open on this machine, and are no sandbox's.
    for own in (server.port, server.redis_port):
        refused(f"{base}/port/{own}/", 502, "port_closed", str(own))
    refused(inside.path("/hang-up"), 502, "program_fault", "closed the connection")
    refused(inside.path("/no-http"), 502, "program_fault", "HTTP")
    stopped = inside.api.start()
    stopped.stop()
    refused(f"{PREFIX}/sandboxes/{stopped.id}/proxy/", 409, "not_running", stopped.id)
    forward = f"{PREFIX}/sandboxes/{inside.box.id}/portforward"
    refused(f"{forward}?port={nothing}", 502, "port_closed", str(nothing))
    for query in ("?port=0", "?port=80@10.0.0.1", "", "?port=99999"):
        refused(forward + query, 400, "bad_request", "port")


def test_X10_no_header_or_path_leads_to_another_host(inside):
    named = {
        "rock_host_ip": "169.254.169.254",
        "X_ROCK_Host_IP": "10.0.0.1",
        "Host": "169.254.169.254",
        "X_Forwarded_Host": "evil",
    }
    for path in ("/hello", "//169.254.169.254/hello", "/@10.0.0.1/", "/..%2f..%2f"):
        status, _, body = inside.ask("GET", path, **named)
        # The program itself, Python's server, makes one slash of those at the beginning.
        assert status == 200 and json.loads(body)["path"] == f"/{path.lstrip('/')}"
        assert json.loads(body)["headers"]["Host"] == f"localhost:{inside.port}"


def test_an_answer_that_breaks_off_breaks_off_for_the_caller(inside):
    with pytest.raises(http.client.IncompleteRead):
        inside.ask("GET", "/break-off")
    with pytest.raises(http.client.IncompleteRead):
        inside.ask("GET", "/break-off?chunked")


def test_a_caller_who_leaves_ends_the_request_in_the_sandbox(inside):
    connection = inside.open()
    connection.request("GET", inside.path("/wait"))
    until(lambda: inside.ask("GET", "/waiting")[2] == b"1", 20, "the request")
    connection.close()
    until(lambda: inside.ask("GET", "/waiting")[2] == b"0", 20, "its end")


def test_keys_are_asked_for_and_stay_outside(owned):
    assert owned.ask("GET", "/hello", X_API_Key="wrong")[0] == 401
    assert owned.ask("GET", "/hello", X_API_Key="")[0] == 401
    assert owned.ask("GET", "/hello", X_API_Key=OTHER)[0] == 404
    seen = json.loads(owned.ask("GET", "/", Authorization="Bearer its-own", Cookie="a=b")[2])["headers"]
    assert seen["Authorization"] == "Bearer its-own" and seen["Cookie"] == "a=b"
    assert KEY not in json.dumps(seen) and "X-Api-Key" not in seen
    seen = json.loads(owned.ask("GET", "/", Authorization=f"Bearer {KEY}", X_Key=KEY)[2])["headers"]
    assert KEY not in json.dumps(seen)


def test_limits_of_size_and_time_hold(owned):
    big = b"x" * (9 << 20)
    assert owned.ask("POST", "/digest", big)[0] == 413
    status, headers, _ = owned.ask("POST", "/digest", iter([big]), chunked=True, Transfer_Encoding="chunked")
    assert (status, headers["X-ROCK-Error"]) == (413, "too_large")
    status, headers, _ = owned.ask("GET", "/wait")
    assert (status, headers["X-ROCK-Error"]) == (504, "command_timeout")
    ours = owned.forward()
    with pytest.raises(ConnectionClosed, match="nothing passed"):
        ours.receive(timeout=20)


def test_an_open_connection_holds_the_lease_and_its_end_lets_go(server):
    """The connection lasts for several leases; the sandbox ends when it is closed."""
    made = Inside(Api(server.url), auto_clear_seconds=1)
    keys = Keys()
    ours = made.forward()
    with redis.Redis.from_url(server.redis_url, decode_responses=True) as client:
        record = keys.sandbox(made.box.id)
        first = float(client.hget(record, "expires"))
        until(lambda: float(client.hget(record, "expires")) > first + 3, 20, "three leases")
        assert client.hget(record, "state") == "running"
        ours.close()
        until(lambda: client.hget(record, "state") != "running", 20, "the end of the lease")


def test_a_broken_body_is_refused(inside):
    connection = inside.open()
    connection.putrequest("POST", inside.path("/digest"))
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders(b"5\r\nwhole\r\nnot-a-number\r\n")
    answer = connection.getresponse()
    assert (answer.status, answer.headers["X-ROCK-Error"]) == (400, "bad_request")
    connection.close()


def test_the_way_in_is_there_again_after_its_process_was_killed(inside, server):
    ours = inside.forward()
    os.kill(server.pids()["lifecycle"].pid, signal.SIGKILL)
    with pytest.raises(ConnectionClosed):
        ours.receive(timeout=20)
    until(lambda: inside.ask("GET", "/hello")[0] == 200, 30, "the way in")


def test_a_stop_ends_what_is_connected(server):
    made = Inside(Api(server.url))
    ours = made.forward()
    made.box.stop()
    with pytest.raises(ConnectionClosed):
        ours.receive(timeout=20)
