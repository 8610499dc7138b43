"""Ports of real containers: reached where they listen, whatever their network, and nothing else through them."""

import contextlib
import json
import urllib.error
import urllib.request

import pytest
from simple_websocket import Client

from rock.errors import PortClosed, SandboxGone
from scripts import images
from tests.engine.conftest import Sandboxes
from tests.service.test_proxy import PROGRAM
from tests.wire import PREFIX, Api, until
from workers.deployments.docker_args import EngineOptions

SAYS = "hello from inside"
LISTENER = """import socket
listener = socket.create_server(("127.0.0.1", 7001))
while True:
    with listener.accept()[0] as caller:
        caller.sendall(b"hello from inside")
"""


def listen(sandboxes: Sandboxes, sandbox_id: str) -> None:
    """Have a program say something on port 7001 of the loopback; an image without Python has busybox."""
    program = f"python3 -c ${LISTENER!r}"
    if sandboxes.image == images.ALPINE:
        program = f"busybox nc -ll -p 7001 -e /bin/echo -n {SAYS!r}"
    sandboxes.hand(sandbox_id).ask(f"{program} >/dev/null 2>&1 &")


def said(sandboxes: Sandboxes, sandbox_id: str, port: int = 7001) -> str | None:
    """Return what is said on the port; None while nobody is there."""
    try:
        with contextlib.closing(sandboxes.deployment.dial(sandbox_id, port, 5.0)) as connection:
            return connection.recv(100).decode()
    except PortClosed:
        return None


def test_a_port_of_a_sandbox_is_reached_and_no_other(sandboxes):
    sandbox_id, other = sandboxes.start(), sandboxes.start()
    listen(sandboxes, sandbox_id)
    until(lambda: said(sandboxes, sandbox_id), 20, "the program")
    assert said(sandboxes, sandbox_id) == SAYS
    assert said(sandboxes, other) is None and said(sandboxes, sandbox_id, 7002) is None
    sandboxes.deployment.stop(sandbox_id)
    with pytest.raises(SandboxGone, match=sandbox_id):
        sandboxes.deployment.dial(sandbox_id, 7001, 5.0)


def test_a_container_without_a_network_has_ports_too(containers):
    sandbox_id = containers.start(options=EngineOptions(network="none"))
    listen(containers, sandbox_id)
    assert until(lambda: said(containers, sandbox_id), 20, "the program") == SAYS


def test_http_and_websockets_reach_a_container(engine_server):
    """What listens on the host is no port of it."""
    box = Api(engine_server.url).start()
    path = f"{engine_server.url}{PREFIX}/sandboxes/{box.id}/proxy/port"

    def status(port: int) -> int:
        try:
            with urllib.request.urlopen(f"{path}/{port}/hello?a", timeout=30) as answer:
                assert json.load(answer)["path"] == "/hello?a"
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    try:
        assert box.write("/root/program.py", PROGRAM).ok
        assert box.execute("python3 /root/program.py 7003 >/dev/null 2>&1 &", shell=True).ok
        until(lambda: status(7003) == 200, 20, "the program")
        assert [status(engine_server.port), status(engine_server.redis_port)] == [502, 502]
        client = Client(f"{path.replace('http', 'ws')}/7003/echo")
        client.send(b"\x00\x01")
        assert client.receive(timeout=20) == b"\x00\x01"
        client.close()
    finally:
        box.stop()
