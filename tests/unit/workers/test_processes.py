"""Process trees: who belongs to one, and that none gets away."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from workers.deployments import cgroups, processes

MARKER = f"ROCK_TEST_TREE={os.getpid()}"


@pytest.fixture
def start() -> Iterator:
    """A function that runs a script in a session of its own, as a subreaper, and returns its process id."""
    started: list[subprocess.Popen[bytes]] = []
    become = "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); os.execvp('bash', ['bash', '-c', sys.argv[1]])"

    def run(script: str, ready: int) -> int:
        name, _, value = MARKER.partition("=")
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", become, script], start_new_session=True, env={**os.environ, name: value}
            )
        )
        pid, end = started[-1].pid, time.monotonic() + 5
        while len(processes.tree(pid, MARKER.encode())) < ready and time.monotonic() < end:
            time.sleep(0.01)
        return pid

    yield run
    for process in started:
        assert processes.kill_tree(process.pid, MARKER.encode())
        process.wait(5)


def living(pid: int) -> list[processes.Process]:
    return processes.tree(pid, MARKER.encode())


def test_a_process_is_known_by_id_and_start_time():
    own = processes.read(os.getpid())
    assert own is not None
    assert processes.alive(own.pid, own.start)
    assert not processes.alive(own.pid, own.start + 1)
    assert processes.read(2**22 + 1) is None


def test_daemons_without_the_variable_belong_to_the_tree(start):
    pid = start("(env -i setsid bash -c 'sleep 100 & sleep 100' &) ; while :; do wait; sleep 0.05; done", 4)
    assert len(living(pid)) >= 4
    assert processes.kill_tree(pid, MARKER.encode())
    assert living(pid) == []


def test_orphans_of_a_dead_main_process_are_found_by_their_variable(start):
    pid = start("setsid sleep 100 & exec 3<> <(:); read -u 3", 2)
    os.kill(pid, 9)
    time.sleep(0.05)
    assert [process.pid for process in living(0)]
    assert processes.kill_tree(0, MARKER.encode())
    assert living(0) == []


def test_a_tree_that_forks_all_the_time_is_ended(start):
    pid = start("f() { while :; do (sleep 0.01 &) ; done; }; f & f & f", 3)
    began = time.monotonic()
    assert processes.kill_tree(pid, MARKER.encode())
    assert living(pid) == []
    assert time.monotonic() - began < 5


def test_nobody_is_nobody():
    assert processes.tree(0, b"ROCK_TEST_TREE=nobody") == []
    assert processes.kill_tree(0, b"ROCK_TEST_TREE=nobody")


def test_a_process_that_is_not_the_containers_is_not_measured():
    assert cgroups.measure(os.getpid(), "no-such-container") is None
    assert cgroups.measure(2**22 + 1, "x") is None
