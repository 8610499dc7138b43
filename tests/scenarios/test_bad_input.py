"""Whatever arrives is answered by a clear envelope, nothing is lost by it, and the sandbox is still usable."""

import json
import socket
from urllib.parse import urlsplit

import pytest

from app.calls import call_id
from tests.wire import PREFIX, send, until
from workers.protocol import session_key


@pytest.fixture(autouse=True)
def still_usable(shell):
    """After every test here a command runs."""
    yield
    assert shell.output("echo still here") == "still here"


def raw(api, route, body, method="POST", **headers):
    return send(api.url, method, PREFIX + route, body, **headers)


@pytest.mark.parametrize(
    "route, fields",
    [
        ("/run_in_session", {"command": "x"}),
        ("/execute", {"command": "x"}),
        ("/create_session", {}),
        ("/close_session", {}),
        ("/read_file", {"path": "/x"}),
        ("/write_file", {"path": "/x", "content": ""}),
        ("/stop", {}),
    ],
)
def test_an_unknown_sandbox_is_named(api, route, fields):
    api.post(route, sandbox_id="no-such-box", **fields).failed(4000, "no-such-box", "not found", kind="not_found")


def test_an_unknown_sandbox_has_no_status_and_is_not_alive(api):
    api.get("/get_status", sandbox_id="no-such-box").failed(4000, "Sandbox no-such-box not found")
    alive = api.get("/is_alive", sandbox_id="no-such-box")
    assert alive.ok and alive.result["is_alive"] is False
    api.get("/get_sandbox_statistics", sandbox_id="no-such-box").failed(4000, "no-such-box")
    api.get("/get_status").failed(4000, "sandbox_id")


def test_an_unknown_session_is_named(shell):
    shell.run("x", session="nobody's").failed(4000, "nobody's", "create_session", kind="not_found")


def test_a_living_session_is_not_made_again(shell):
    shell.post("/create_session", session=shell.session).failed(4000, shell.session, kind="already_exists")


@pytest.mark.parametrize(
    "route, fields, name",
    [
        ("/run_in_session", {"command": 5}, "command"),
        ("/run_in_session", {}, "command"),
        ("/run_in_session", {"command": None}, "command"),
        ("/run_in_session", {"command": "x", "session": ""}, "session"),
        ("/run_in_session", {"command": "x", "session": "a\nb"}, "session"),
        ("/run_in_session", {"command": "x", "session": "x" * 10_000}, "session"),
        ("/run_in_session", {"command": "x", "check": "maybe"}, "check"),
        ("/run_in_session", {"command": "x", "sandbox_id": ""}, "sandbox_id"),
        ("/run_in_session", {"command": "x", "sandbox_id": "../x"}, "sandbox_id"),
        ("/run_in_session", {"command": "x", "sandbox_id": ["a"]}, "sandbox_id"),
        ("/run_in_session", {"command": "x", "wait": -1}, "wait"),
        ("/run_in_session", {"command": "x", "request_id": ""}, "request_id"),
        ("/execute", {"command": []}, "command"),
        ("/execute", {"command": [""]}, "command"),
        ("/execute", {"command": ["echo", 5]}, "command"),
        ("/execute", {"command": ["echo", "a\0b"]}, "command"),
        ("/execute", {"command": {"a": 1}}, "command"),
        ("/execute", {"command": "x", "env": {"A": 5}}, "env"),
        ("/execute", {"command": "x", "env": ["A=5"]}, "env"),
        ("/execute", {"command": "x", "env": {"A;touch /tmp/pwned;B": "x"}}, "env"),
        ("/execute", {"command": "x", "cwd": 5}, "cwd"),
        ("/execute", {"command": "x", "cwd": "a\0b"}, "cwd"),
        ("/execute", {"command": "x", "shell": "yes"}, "shell"),
        ("/create_session", {"env": {"A": "a\0b"}}, "env"),
        ("/create_session", {"session": "a\0b"}, "session"),
        ("/create_session", {"startup_source": ["/a\0b"]}, "startup_source"),
        ("/create_session", {"remote_user": "a\0b"}, "remote_user"),
        ("/create_session", {"startup_source": "rc"}, "startup_source"),
        ("/create_session", {"session_type": "zsh"}, "session_type"),
        ("/read_file", {}, "path"),
        ("/read_file", {"path": ""}, "path"),
        ("/read_file", {"path": "/tmp/a\0b"}, "path"),
        ("/write_file", {"path": "/tmp/a\0b", "content": "x"}, "path"),
        ("/write_file", {"path": "/x", "content": 5}, "content"),
        ("/write_file", {"path": "/x" * 4000, "content": ""}, "path"),
    ],
)
def test_A01_A06_a_field_that_is_wrong_is_named(shell, route, fields, name):
    shell.post(route, **fields).failed(4000, name, kind="bad_request")


@pytest.mark.parametrize(
    "fields, name",
    [
        ({"image": ""}, "image"),
        ({"image": " "}, "image"),
        ({"image": 123}, "image"),
        ({"image": None}, "image"),
        ({"image": "a b"}, "image"),
        ({"memory": "8x"}, "memory"),
        ({"memory": "0"}, "memory"),
        ({"memory": "-1"}, "memory"),
        ({"memory": []}, "memory"),
        ({"cpus": 0}, "cpus"),
        ({"cpus": -1}, "cpus"),
        ({"cpus": "2"}, "cpus"),
        ({"disk": "5Q"}, "disk"),
        ({"sandbox_id": "../x"}, "sandbox_id"),
        ({"sandbox_id": "A b"}, "sandbox_id"),
        ({"sandbox_id": "ü"}, "sandbox_id"),
        ({"sandbox_id": "x" * 10_000}, "sandbox_id"),
        ({"auto_clear_seconds": 0}, "auto_clear_seconds"),
        ({"auto_clear_time_minutes": -1}, "auto_clear_time_minutes"),
        ({"auto_clear_time_minutes": "5"}, "auto_clear_time_minutes"),
        ({"startup_timeout": 0}, "startup_timeout"),
        ({"pull": "sometimes"}, "pull"),
        ({"docker_args": "--privileged"}, "docker_args"),
        ({"docker_args": ["--privileged"]}, "--privileged"),
        ({"docker_args": ["--nonsense"]}, "--nonsense"),
        ({"docker_args": ["-v", "/etc:/x"]}, "/etc"),
        ({"docker_args": ["--network", "host"]}, "network"),
        ({"image_os": "windows"}, "image_os"),
        # Not here: taken silently, it would be a promise that nothing keeps.
        ({"auto_archive_seconds": 60}, "auto_archive_seconds: this service has no archive"),
        ({"num_gpus": 1}, "num_gpus=1"),
        ({"num_gpus": 0.5}, "num_gpus=0.5"),
        ({"accelerator_type": "A100"}, "accelerator_type"),
        ({"auto_archive_seconds": 1, "auto_delete_seconds": 1}, "auto_archive_seconds"),
    ],
)
def test_A07_a_start_that_makes_no_sense_is_refused_and_named(api, fields, name):
    api.post("/start", **{"image": "python:3.11", "memory": "256m", "cpus": 0.2, **fields}).failed(4000, name)


def test_A01_a_start_without_an_image_is_refused(api):
    api.post("/start", memory="256m").failed(4000, "image", kind="bad_request")


@pytest.mark.parametrize(("fields", "name"), [({"cpus": 4000}, "cpus"), ({"memory": "900000g"}, "memory")])
def test_A07_more_than_any_node_has_is_refused_at_once(api, fields, name):
    wanted = {"image": "python:3.11", "memory": "256m", "cpus": 0.1, **fields}
    api.post("/start", **wanted).failed(4000, name, "at most", kind="bad_request")


@pytest.mark.parametrize(
    ("fields", "range_"),
    [({"cpus": 0}, "at least 0.01"), ({"memory": "1m"}, "between 16m"), ({"memory": "8x"}, "between 16m")],
)
def test_A07_a_refusal_says_what_is_allowed(api, fields, range_):
    wanted = {"image": "python:3.11", "memory": "256m", "cpus": 0.1, **fields}
    api.post("/start", **wanted).failed(4000, range_, *fields)


@pytest.mark.parametrize("memory", ["300m", "1Gi", "1G", 314_572_800, "0.5g"])
def test_A07_sizes_are_understood(api, memory):
    api.start(memory=memory).stop()


@pytest.mark.parametrize(
    "body",
    [b"{", b"", b"[]", b'"x"', b"null", b"\xe9\xff", b"[" * 20_000 + b"]" * 20_000, b'{"sandbox_id": "a"', b"x=1"],
)
def test_A03_what_is_no_json_object_is_said_to_be_none(api, body):
    reply = raw(api, "/execute", body, Content_Type="application/json")
    assert reply.status == 200
    reply.failed(4000, "body", kind="bad_request")


def test_A03_the_content_type_does_not_matter(shell, api):
    body = json.dumps({"sandbox_id": shell.id, "command": ["echo", "hi"]}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"):
        assert raw(api, "/execute", body, Content_Type=kind).result["stdout"] == "hi\n"


def test_A03_unknown_routes_and_methods_have_envelopes(api):
    assert raw(api, "/nope", None, "GET").status == 404
    assert raw(api, "/start", None, "GET").status == 405
    for reply in (raw(api, "/nope", None, "GET"), raw(api, "/start", None, "DELETE")):
        assert reply.body["status"] == "Failed" and reply.result["code"] == 4000


def test_extra_fields_are_ignored(shell):
    assert shell.run("echo hi", container_name="x", new_option={"a": 1}).ok


@pytest.mark.parametrize(
    "command, shell_flag, printed",
    [
        ("echo hi", False, "hi\n"),
        (["echo", "hi"], True, "hi\n"),
        (["echo", "a  b"], False, "a  b\n"),
        ("echo $((1+1)) | cat", True, "2\n"),
    ],
)
def test_A04_both_forms_of_a_command_do_what_they_say(shell, command, shell_flag, printed):
    assert shell.execute(command, shell=shell_flag).result["stdout"] == printed


def test_A06_bash_drops_a_nul_in_a_command(shell):
    assert shell.output("echo a\0b") == "ab"


def test_ten_megabytes_of_json_are_taken(shell):
    assert shell.output("# " + "x" * 10_000_000 + "\necho hi") == "hi"
    shell.post("/run_in_session", junk="x" * 10_000_000).failed(4000, "command")


def test_a_body_above_the_limit_is_413(api):
    reply = raw(api, "/execute", b'{"x": "' + b"y" * (65 * 1024 * 1024) + b'"}')
    assert reply.status == 413
    reply.failed(4000, "bytes")


@pytest.mark.parametrize(
    "body, kind",
    [
        (b"--b\r\nbroken", "multipart/form-data; boundary=b"),
        (b"", "multipart/form-data; boundary=b"),
        (b"x", "multipart/form-data"),
        (
            b'--b\r\nContent-Disposition: form-data; name="sandbox_id"\r\n\r\nx\r\n--b--\r\n',
            "multipart/form-data; boundary=b",
        ),
        (b'{"sandbox_id": "x"}', "application/json"),
    ],
)
def test_a_broken_upload_is_refused(api, body, kind):
    raw(api, "/upload", body, Content_Type=kind).failed(4000, kind="bad_request")


def test_an_upload_without_its_file_or_target_is_named(shell):
    shell.upload(b"x", "").failed(4000, "target_path")
    shell.api.upload(b"x", sandbox_id="no-such-box", target_path="/x").failed(4000, "no-such-box")


def test_an_upload_into_a_folder_says_so(shell):
    for size in (10, 2_000_000):
        shell.upload(b"x" * size, shell.output("pwd")).failed(4000, "folder")


def test_X03_a_command_cannot_leave_its_quotes(shell):
    name = f"pwned-{shell.session}"
    shell.run(f"echo a\nSOUNIQUEEOF\ntouch {name}-1\n'")
    shell.run(f"' ; touch {name}-2 ; '")
    assert shell.execute(["ls", "/"]).result["stdout"].count(name) == 0


def test_X04_values_are_data(shell):
    folder, mark = shell.output("pwd"), f"pwned-{shell.session}"
    injection = f"'; touch {folder}/{mark}; '"
    shell.read(f"/t{injection}")
    shell.execute("pwd", cwd=f"$(touch {folder}/{mark})").failed(4000, "cwd")
    shell.post("/create_session", session=injection, startup_source=[f"/nope{injection}"])
    shell.post("/close_session", session=injection)
    shell.execute(["echo", injection, f"$(touch {folder}/{mark})"])
    assert shell.output("ls -A") == ""


def test_A13_session_names_are_told_apart(shared):
    names = ["../x", "A b", "ü", "a:b", "A", "a", "'", "$(id)", "-"]
    for number, name in enumerate(names):
        assert shared.post("/create_session", session=name).ok
        assert shared.run(f"v={number}", session=name).ok
    assert [shared.run("echo $v", session=name).result["output"] for name in names] == [
        str(n) for n in range(len(names))
    ]
    for name in names:
        assert shared.post("/close_session", session=name).ok


def test_a_request_id_means_one_request(shell):
    request = f"r-{shell.session}"
    assert shell.run("echo one", request_id=request).ok
    shell.run("echo two", request_id=request).failed(4000, request)
    shell.execute("echo one", request_id=request).failed(4000, request)
    assert shell.run("echo one", request_id=request).result["output"] == "one"


def test_an_unknown_request_is_not_found(api):
    api.get("/results/never-made", wait=0).failed(4000, "never-made", kind="not_found")
    api.post("/results/never-made/cancel").failed(4000, "never-made")
    for wait in ("x", "-1", "nan"):
        api.get("/results/never-made", wait=wait).failed(4000, "wait")


def test_a_body_that_is_cut_off_harms_nobody(shell, api):
    """The client promises more than it sends, and goes away."""
    address = urlsplit(api.url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        connection.sendall(b"POST %s/execute HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{" % PREFIX.encode())
    until(lambda: shell.output("echo on") == "on")


def test_X12_a_forged_event_never_reaches_another_sandbox(own, shell):
    """Root in a sandbox can say anything on its keeper's stream, even another sandbox's call id: it is of its own sandbox only."""
    hostile, request = own.open(), f"r-{shell.session}"
    folder = shell.output("pwd")
    begun = shell.run("until [[ -e gate ]]; do sleep 0.05; done; echo true; (exit 7)", request_id=request, wait=0)
    assert begun.ok
    call = call_id("", request)[:10]
    forged = f"data {call} 1 0 5 5\\nfalse\\ndone {call} 0 done -\\nended {session_key(shell.session)} 0\\n"
    hostile.run(f"for i in 1 2 3; do printf '{forged}' >/proc/$PPID/fd/1; done", check="ignore", timeout=20)
    assert hostile.output("echo itself", timeout=20) == "itself", "what it said has been read"
    assert shell.api.get(f"/results/{request}", wait=0).result["state"] == "running"
    assert shell.write(f"{folder}/gate", "").ok
    result = shell.api.get(f"/results/{request}", wait=30).result
    assert (result["output"], result["exit_code"], result["failure_reason"]) == ("true", 7, "")


def test_what_a_sandbox_writes_into_its_keepers_stream_holds_nobody_up(own, shell):
    """Root in a sandbox can write to the keeper's stdout; the thread that reads it serves all sandboxes of the node."""
    hostile = own.open()
    for nonsense in (r"data a 1 0 -17 0\n", r"data x\n", r"done\n", r"data a 1 0 99999999999 0\n", "%070000d"):
        hostile.run(f"printf '{nonsense}' >/proc/$PPID/fd/1", check="ignore", timeout=20)
        assert shell.output("echo neighbour", timeout=5) == "neighbour"
    assert hostile.output("echo itself", timeout=20) == "itself"
