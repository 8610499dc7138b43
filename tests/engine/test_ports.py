"""Ports of real containers: reached where they listen, whatever their network, and nothing else through them."""

import contextlib
import json
import os
import threading
import urllib.error
import urllib.request

import pytest
from simple_websocket import Client

from rock.errors import PortClosed, SandboxGone
from scripts import images
from tests.engine.conftest import Sandboxes, _Cleared, on_engine
from tests.service.test_proxy import PROGRAM
from tests.wire import PREFIX, Api, until
from workers.deployments.docker_args import EngineOptions
from workers.deployments.wire import Endpoint

SAYS = "hello from inside"
LISTENER = """import socket
listener = socket.create_server(("127.0.0.1", 7001))
while True:
    with listener.accept()[0] as caller:
        caller.sendall(b"hello from inside")
"""


ECHO = """import socket, threading
listener = socket.create_server(("127.0.0.1", 7002))
def echo(caller):
    with caller:
        while data := caller.recv(65536):
            caller.sendall(data)
while True:
    threading.Thread(target=echo, args=listener.accept()[:1], daemon=True).start()
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


class Elsewhere(Endpoint):
    """The machine's engine, taken for another machine's: nothing of its containers is in reach but through it."""

    is_local = False


@pytest.fixture
def elsewhere(engine_url):
    deployment = on_engine(Elsewhere(engine_url), "remote")
    with contextlib.closing(_Cleared(deployment, images.PYTHON)) as made:
        yield made
    deployment.close()


def test_ports_of_another_machines_containers_are_reached_by_a_process_in_them(elsewhere):
    sandbox_id = elsewhere.start(options=EngineOptions(network="none", env={"BASH_ENV": "/dev/stdin"}))
    elsewhere.hand(sandbox_id).ask(f"python3 -c ${ECHO!r} >/dev/null 2>&1 &")

    def listens() -> bool:
        try:
            elsewhere.deployment.dial(sandbox_id, 7002, 5.0).close()
        except PortClosed:
            return False
        return True

    until(listens, 20, "the program")
    body = os.urandom(3 << 20)
    with contextlib.closing(elsewhere.deployment.dial(sandbox_id, 7002, 5.0)) as connection:
        sender = threading.Thread(target=connection.sendall, args=(body,))
        sender.start()
        got = b""
        while len(got) < len(body):
            piece = connection.recv(65536)
            assert piece, f"it ended after {len(got)} bytes"
            got += piece
        sender.join()
        assert got == body
    assert said(elsewhere, sandbox_id, 7003) is None
    listing = ["bash", "-c", "for p in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$p; echo; done"]

    def processes() -> str:
        with elsewhere.deployment.exec_stream(sandbox_id, listing) as process:
            return b"".join(process).decode()

    until(lambda: "rock-port" not in processes(), 20, "the end of what served the connections")
    elsewhere.deployment.stop(sandbox_id)
    with pytest.raises(SandboxGone, match=sandbox_id):
        elsewhere.deployment.dial(sandbox_id, 7002, 5.0)


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
