"""When a container's main process is taken for one of this machine."""

import os
from types import SimpleNamespace

import pytest

from workers.deployments import main_process
from workers.deployments.abstract import ContainerSpec

SPEC = ContainerSpec("a", "x", cpus=1.0, memory_bytes=1 << 20)


class Engine:
    """Tells of one container, again and again, whether it runs."""

    is_podman = False
    endpoint = SimpleNamespace(engine_pid=lambda: 1)

    def __init__(self, *running: bool) -> None:
        self._running = list(running)

    def info(self):
        return {"DefaultRuntime": "runc"}

    def inspect(self, name):
        running = self._running.pop(0) if len(self._running) > 1 else self._running[0]
        return {"Id": "0" * 64, "State": {"Running": running, "Pid": 0}}


@pytest.fixture(autouse=True)
def root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(main_process, "END_SEEN", 0.3)


def test_a_container_that_is_not_seen_though_it_runs_is_another_machines():
    pipes = main_process.Pipes(Engine(True))
    assert pipes.argv(["boot"], SPEC) is not None
    assert not pipes.prove("a") and pipes.argv(["boot"], SPEC) is None
    assert pipes.prove("a"), "it is known by then, and not found out again"


def test_a_container_that_was_ended_meanwhile_proves_nothing():
    """By a stop, which an engine sees a little later."""
    pipes = main_process.Pipes(Engine(True, False))
    assert pipes.prove("a") and pipes.argv(["boot"], SPEC) is not None
