"""Starts whose images come slowly: they are given up in time, can be stopped meanwhile, and hold up nothing else."""

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from scripts import registry
from scripts.images import ALPINE
from tests.service_stack import MARKER, clean_environment, free_port
from tests.wire import Api, until

LOGIN = {"registry_username": registry.USER, "registry_password": registry.PASSWORD}
SMALL = {"memory": "64m", "cpus": 0.05}
MORE_THAN_THREADS = 12
"""Starts at once; a lifecycle worker has 8 threads."""


class Gate:
    """A registry behind a gate: what comes in waits until it is opened."""

    def __init__(self, port: int) -> None:
        self._target, self.open, self._over = port, threading.Event(), threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Let go of whoever waits."""
        self._over.set()
        self.open.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(5)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                threading.Thread(target=self._pass, args=(self._listener.accept()[0],), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        self.open.wait(60)
        with client, contextlib.suppress(OSError):
            if self._over.is_set():
                return
            with socket.create_connection(("127.0.0.1", self._target)) as server:
                back = threading.Thread(target=_pump, args=(server, client), daemon=True)
                back.start()
                _pump(client, server)
                back.join()


def _pump(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)


@pytest.fixture(scope="module")
def api(engine_server):
    return Api(engine_server.url)


@pytest.fixture
def gate(run_id, tmp_path, engine):
    """The gate before a registry that has the image `slow:1`."""
    port, login = free_port(), {"username": registry.USER, "password": registry.PASSWORD}
    with registry.serve(tmp_path, port, {**clean_environment(), MARKER: run_id}):
        name = f"127.0.0.1:{port}/slow"
        engine.images.get(ALPINE).tag(name, "1")
        assert "errorDetail" not in engine.api.push(name, "1", auth_config=login)
        engine.images.remove(f"{name}:1")
        with contextlib.closing(Gate(port)) as made:
            yield made


@pytest.fixture
def slow(gate, engine):
    """The image's name through the gate; it is gone after the test."""
    name = f"127.0.0.1:{gate.port}/slow:1"
    yield name
    with contextlib.suppress(Exception):
        engine.images.remove(name, force=True)


def room(api):
    """Return how many sandboxes the node holds room for."""
    (node,) = api.get("/nodes").result["nodes"]
    return node["sandboxes"]


def containers(engine, *names):
    everything = engine.containers.list(all=True, ignore_removed=True)
    return [one.name for one in everything if any(name in one.name for name in names)]


def test_L04_L13_a_start_that_is_over_before_its_image_comes_never_comes_up(api, engine, gate, slow):
    """One is given up at its startup_timeout, the others are stopped at several moments of the pull and of the start."""
    before = room(api)
    late = api.post("/start", image=slow, sandbox_id="too-late", startup_timeout=1, **SMALL, **LOGIN)
    late.failed(5000, slow, kind="start_timeout")
    names = [f"stopped-{number}" for number in range(6)]
    for name in names:
        assert api.post("/start_async", image=slow, sandbox_id=name, **SMALL, **LOGIN).ok
    for name in names[:3]:
        assert api.post("/stop", sandbox_id=name).ok
    gate.open.set()
    until(lambda: [one for one in engine.images.list() if slow in one.tags], 30, "the image")
    for name in names[3:]:
        assert api.post("/stop", sandbox_id=name).ok
    # A start that comes later is up: whatever those would have made is there by now.
    api.start(image=slow, **SMALL, **LOGIN).stop()
    until(lambda: not containers(engine, "too-late", "stopped-"), 10, "the end of what was half made")
    for name in ("too-late", *names):
        shown = api.get("/get_status", sandbox_id=name, include_all_states="true").result
        assert shown["state"] == "stopped" and not shown["is_alive"]
    assert room(api) == before


def test_C07_slow_pulls_hold_up_nothing_else(api, engine, slow):
    """More of them than the node has threads for starts and stops."""
    shell, before = api.start(image=ALPINE, **SMALL).open(), room(api)
    names = [f"waits-{number}" for number in range(MORE_THAN_THREADS)]
    with ThreadPoolExecutor(MORE_THAN_THREADS) as pool:
        list(pool.map(lambda name: api.post("/start_async", image=slow, sandbox_id=name, **SMALL, **LOGIN), names))

    def pulling(name):
        return api.get("/get_status", sandbox_id=name).result["status"]["image_pull"]["status"] == "running"

    until(lambda: all(pulling(name) for name in names), 20, "the pulls")
    begun = time.monotonic()
    assert shell.output("echo quick") == "quick"
    assert api.get("/get_sandbox_statistics", sandbox_id=shell.id).ok
    assert shell.upload(b"x" * 200_000, "/tmp/file").ok
    api.start(image=ALPINE, **SMALL).stop()
    assert time.monotonic() - begun < 10, "under a second where nothing else runs; the pulls would take a minute"
    with ThreadPoolExecutor(MORE_THAN_THREADS) as pool:
        assert all(reply.ok for reply in pool.map(lambda name: api.post("/stop", sandbox_id=name), names))
    assert room(api) == before and not containers(engine, "waits-")
    shell.stop()
