"""Which sockets are a sandbox's, and which containers are entered; with real sockets and processes of this machine."""

import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rock.errors import BadRequest, PortClosed, SandboxGone
from workers.deployments.dialing import LOOPBACK, Dialer, dial, listens, within

LISTENING = "import socket, sys\ns = socket.create_server(('127.0.0.1', 0))\nprint(s.getsockname()[1], flush=True)\nsys.stdin.read()"


@pytest.fixture
def program():
    """A process that listens on a port: (its pid, the port)."""
    with subprocess.Popen([sys.executable, "-c", LISTENING], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process.pid, int(process.stdout.readline())
        process.stdin.close()
        process.wait(10)


def test_a_port_is_a_sandboxs_when_one_of_its_processes_listens_there(program):
    pid, port = program
    assert listens([os.getpid(), pid], port)
    assert not listens([os.getpid()], port) and not listens([], port)
    with socket.create_server(("127.0.0.1", 0)) as ours:
        assert not listens([pid], ours.getsockname()[1])
    with socket.create_connection(("127.0.0.1", port)) as ours:
        # One that is connected from a port does not listen there.
        assert not listens([os.getpid()], ours.getsockname()[1])


def test_a_program_that_listens_on_one_of_two_loopbacks_is_found():
    if not socket.has_ipv6 or not os.path.exists("/proc/net/tcp6"):
        pytest.skip("no IPv6 here")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        dial("a", listener.getsockname()[1], LOOPBACK, 5.0).close()
        port = listener.getsockname()[1]
    with pytest.raises(PortClosed, match=f"port {port} of sandbox a"):
        dial("a", port, LOOPBACK, 5.0)


def test_only_the_process_that_is_meant_is_entered(program):
    for pid, container in ((program[0], "no-such-container"), (0, ""), (2**22 + 1, "")):
        with within(pid, container) as make:
            assert make is None
    # Its network is our own, so it is no container's.
    with within(program[0], "") as make:
        assert make is None


def engine(facts, local=True):
    """An engine that tells this of every container, and whose processes end at once."""

    def refuse(*args):
        raise SandboxGone("no process here")

    return SimpleNamespace(inspect=lambda name: facts, exec=refuse, endpoint=SimpleNamespace(is_local=local))


def facts(pid=0, address="", network="bridge", running=True):
    return {
        "Id": "c1", "State": {"Running": running, "Pid": pid, "ExitCode": 0}, "HostConfig": {"NetworkMode": network},
        "NetworkSettings": {"IPAddress": address},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("told", "error"),
    [
        (None, SandboxGone),
        (facts(running=False), SandboxGone),
        (facts(network="host"), BadRequest),
        # Nothing to enter, and no address: a process in it is tried.
        (facts(), SandboxGone),
    ],
)
def test_where_no_port_can_be_reached(told, error):
    with pytest.raises(error):
        Dialer(engine(told), str).dial("a", 80, 1.0)


def test_a_container_that_cannot_be_entered_is_reached_at_its_address():
    with socket.create_server(("127.0.0.2", 0)) as listener:
        port = listener.getsockname()[1]
        Dialer(engine(facts(address="127.0.0.2")), str).dial("a", port, 5.0).close()
        with pytest.raises(SandboxGone, match="no process"):
            # The address means something else here: the engine is another machine's.
            Dialer(engine(facts(address="127.0.0.2"), local=False), str).dial("a", port, 5.0)
