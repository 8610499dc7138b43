"""Connections to programs that listen in a sandbox, and never to anything else.

A container is entered, not addressed: the socket is made in the container's network namespace, so it reaches the container's own
loopback (where many programs listen, and which one without a network has too) and cannot leave it for anybody else's.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rock.errors import BadRequest, PortClosed, SandboxGone
from workers.deployments import exec_tunnel
from workers.deployments.engine import Engine
from workers.deployments.engine_facts import state_of
from workers.deployments.exec_tunnel import closed
from workers.deployments.faults import Doing
from workers.deployments.main_process import PLAIN_RUNTIMES

_PROC = Path("/proc")
_CLONE_NEWNET = 0x40000000
_LISTENS = "0A"
"""The state of a listening socket in /proc/net/tcp."""
_LIBC = ctypes.CDLL(None, use_errno=True)
LOOPBACK = ("127.0.0.1", "::1")

Make = Callable[[socket.AddressFamily], socket.socket]


@dataclass(frozen=True)
class _Place:
    """Where a container is: its main process (0: it has its network elsewhere), the engine's id, its own addresses."""

    pid: int
    container_id: str
    own: tuple[str, ...]


class Dialer:
    """Makes connections into the containers of an engine.

    It remembers their main processes, as asking the engine costs more than all the rest; that one is still the container's is seen each time.
    """

    MOST = 1000

    def __init__(self, engine: Engine, name_of: Callable[[str], str]) -> None:
        """`name_of`: gives the name of a sandbox's container."""
        self._engine, self._name_of, self._local = engine, name_of, engine.endpoint.is_local
        self._places: dict[str, _Place] = {}

    def dial(self, sandbox_id: str, port: int, timeout: float) -> socket.socket:
        """Return a connection to a port of a container.

        Params:
            timeout: seconds for each of its addresses.
        Errors: SandboxGone, PortClosed; BadRequest where it takes a process in the container, and the image lacks what that needs.
        """
        place = None
        for place in self._candidates(sandbox_id):
            with within(place.pid, place.container_id) as make:
                if make is not None:
                    return dial(sandbox_id, port, [*LOOPBACK, *place.own], timeout, make)
        if place is not None and self._local:
            with contextlib.suppress(PortClosed):  # it may still listen on the loopback
                return dial(sandbox_id, port, place.own, timeout)
        name, doing = self._name_of(sandbox_id), Doing(f"connect to sandbox {sandbox_id}")
        answer = self._engine.exec(name, exec_tunnel.argv(port), "", doing, exec_tunnel.ENVIRONMENT)[1]
        return exec_tunnel.tunnel(answer, sandbox_id, port, timeout)

    def _candidates(self, sandbox_id: str) -> Iterator[_Place]:
        """Yield where it was, and then where it is. Errors: SandboxGone, BadRequest."""
        if known := self._places.get(sandbox_id):
            yield known
        facts = self._engine.inspect(self._name_of(sandbox_id))
        if facts is None or not facts["State"]["Running"]:
            self._places.pop(sandbox_id, None)
            raise gone(sandbox_id)
        if facts["HostConfig"].get("NetworkMode") == "host":
            text = f"ports of sandbox {sandbox_id} are not its own: it was started in its node's network"
            raise BadRequest(text, sandbox_id=sandbox_id)
        if len(self._places) >= self.MOST:
            self._places.clear()
        self._places[sandbox_id] = place = _place(facts, self._local)
        yield place


def _place(facts: Mapping[str, Any], local: bool) -> _Place:
    """Return where the container of an inspect answer is."""
    address, runtime = state_of(facts).ip, str(facts.get("OCIRuntime") or facts["HostConfig"].get("Runtime") or "runc")
    # A runtime with a network stack of its own (gVisor, Kata) has its loopback where no namespace of the kernel is.
    pid = int(facts["State"]["Pid"]) if local and runtime.startswith(PLAIN_RUNTIMES) else 0
    return _Place(pid, str(facts["Id"]), (address,) if address else ())


def gone(sandbox_id: str) -> SandboxGone:
    """Return the error for a sandbox that does not run."""
    return SandboxGone(f"cannot connect to sandbox {sandbox_id}: it is not running", sandbox_id=sandbox_id)


def dial(
    sandbox_id: str, port: int, hosts: Iterable[str], timeout: float, make: Make = lambda family: socket.socket(family)
) -> socket.socket:
    """Return a connection to the first of `hosts`, addresses of one sandbox, where a program takes it.

    Params:
        timeout: seconds for each.
        make: makes the socket.
    Errors: PortClosed; OSError where no socket can be made.
    """
    said: OSError | None = None
    for host in hosts:
        try:
            connection = make(socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            if error.errno != errno.EAFNOSUPPORT:
                raise
            continue  # a machine without IPv6
        try:
            connection.settimeout(timeout)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.connect((host, port))
            return connection
        except OSError as error:
            connection.close()
            # Nobody there is the better answer than an address that the sandbox does not have.
            said = said if isinstance(said, ConnectionRefusedError) else error
    raise closed(sandbox_id, port, said)


@contextlib.contextmanager
def within(pid: int, container_id: str) -> Iterator[Make | None]:
    """Give what makes sockets in the network namespace of a container's main process.

    Params:
        pid: the process, as the engine tells it.
        container_id: the engine's id; it is part of the process's control group, which shows that the process is the one meant.
    Returns:
        None where the namespace cannot be entered: no such process here, no right to, or it is this process's own.
    """
    try:
        space = os.open(_PROC / str(pid) / "ns" / "net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        yield (lambda family: _socket_in(space, family)) if _may_enter(space, pid, container_id) else None
    finally:
        os.close(space)


def _may_enter(space: int, pid: int, container_id: str) -> bool:
    """Return whether a namespace that was opened is that container's, and sockets can be made there."""
    try:
        # Read after it was opened: a process that has ended meanwhile, and whose id is used again, shows here.
        if container_id not in (_PROC / str(pid) / "cgroup").read_text() or _is_ours(space):
            return False
        _socket_in(space, socket.AF_INET).close()
    except OSError:
        return False
    return True


def _is_ours(space: int) -> bool:
    ours, its = os.stat(_PROC / "self" / "ns" / "net"), os.fstat(space)
    return (ours.st_dev, ours.st_ino) == (its.st_dev, its.st_ino)


def _socket_in(space: int, family: socket.AddressFamily) -> socket.socket:
    """Return a socket of a network namespace. Errors: OSError."""
    made: list[socket.socket | OSError] = []

    def make() -> None:
        try:
            if _LIBC.setns(space, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            made.append(socket.socket(family))
        except OSError as error:
            made.append(error)

    # A thread's namespace is its own, and this one ends here: no other work can find itself elsewhere. A socket stays where it was made.
    thread = threading.Thread(target=make, name="netns")
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


def listens(pids: Iterable[int], port: int) -> bool:
    """Return whether one of these processes of this machine holds a socket that listens on a port."""
    sockets = _listening(port)
    return bool(sockets) and any(not sockets.isdisjoint(_sockets_of(pid)) for pid in pids)


def _listening(port: int) -> Set[str]:
    """Return the names, as links in /proc/<pid>/fd, of the sockets that listen on a port."""
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / table).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue  # a machine without IPv6
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(f"socket:[{fields[9]}]")
    return found


def _sockets_of(pid: int) -> Set[str]:
    folder, found = _PROC / str(pid) / "fd", set()
    try:
        for name in os.listdir(folder):
            found.add(os.readlink(folder / name))
    except OSError:
        return found  # it has ended, or has closed that one meanwhile
    return found
