"""What a person reads when a pull fails, from a real engine and a registry that fails in each way; in the answer and in the status."""

import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.service_stack import free_port
from tests.wire import Api

FAILURES = {
    "missing": (404, "MANIFEST_UNKNOWN", "manifest unknown"),
    "denied": (403, "DENIED", "requested access to the resource is denied"),
    "limited": (429, "TOOMANYREQUESTS", "You have reached your pull rate limit"),
    "broken": (503, "UNAVAILABLE", "service unavailable"),
}
TOLD = {
    "missing": ("image_not_found", "does not exist"),
    "denied": ("image_access", "registry_username and registry_password do not open it"),
    "limited": ("pull_failed", "no more for now; try again later, or send registry_username"),
    "broken": ("pull_failed", "registry is out of order; try again later"),
    "unreachable": ("pull_failed", "cannot reach the registry"),
    "slow": ("start_timeout", "was not there in time"),
}
"""Kind, and words, by how a repository fails."""


class _Failing(BaseHTTPRequestHandler):
    """A registry whose repositories fail by their names; `slow` answers when the test is over."""

    over = threading.Event()

    def do_GET(self) -> None:
        name = self.path.split("/")[2]
        if name == "slow":
            self.over.wait(30)
        status, code, text = FAILURES.get(name, (200, "", ""))
        body = json.dumps({"errors": [{"code": code, "message": text}]} if code else {}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def failing():
    """`host:port` of the registry."""
    _Failing.over.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Failing)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield f"127.0.0.1:{server.server_port}"
    _Failing.over.set()
    server.shutdown()
    serving.join()
    server.server_close()


@pytest.fixture(scope="module")
def replies(failing, engine_server):
    """The answers to starts of each kind, all at the same time, as some are tried again before they are given up."""
    api = Api(engine_server.url)
    hosts = {"unreachable": f"127.0.0.1:{free_port()}"}

    def start(name):
        image = f"{hosts.get(name, failing)}/{name}:1"
        limit = {"startup_timeout": 2} if name == "slow" else {}
        return api.post(
            "/start", image=image, sandbox_id=f"pull-{name}-{failing[-5:]}", memory="64m", cpus=0.05, **limit
        )

    with ThreadPoolExecutor(len(TOLD)) as pool:
        return dict(zip(TOLD, pool.map(start, TOLD), strict=True))


@pytest.mark.parametrize("name", TOLD)
def test_each_failure_of_a_pull_is_told_in_its_own_words(engine_server, replies, failing, name):
    kind, words = TOLD[name]
    replies[name].failed(5000, f"/{name}:1", words, kind=kind)
    status = Api(engine_server.url).get("/get_status", sandbox_id=f"pull-{name}-{failing[-5:]}").result
    phase = status["status"]["image_pull"]
    assert phase["status"] == ("timeout" if name == "slow" else "failed") and words in phase["message"]
    assert words in status["message"]
