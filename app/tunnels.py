"""Connections from this API process into sandboxes, by way of the gates of their nodes; and the bytes of those that are no HTTP."""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app import gate
from app.auth import Identity
from app.calls import Claim, ClaimWord
from app.clock import Clock
from app.config_proxy import Proxy
from app.records import State
from app.results import refused
from app.stores import Stores
from rock.errors import NodeLost

log = logging.getLogger(__name__)

CHUNK = 256 * 1024


class Tunnels:
    """The connections of one process."""

    def __init__(self, stores: Stores, settings: Proxy, clock: Clock) -> None:
        self._sandboxes, self._gates, self._lost_after = stores.sandboxes, stores.gates, stores.nodes.lost_after
        self._clock, self.settings = clock, settings
        self._open: set[socket.socket] = set()
        self._lasting: set[socket.socket] = set()
        self.ending = False
        """True once this process is about to end: what breaks then is not the program's fault."""

    @contextmanager
    def to(self, sandbox_id: str, port: int, identity: Identity) -> Iterator[socket.socket]:
        """Give a connection to a port of a sandbox, and renew its lease. See `connect`."""
        connection = self.connect(sandbox_id, port, identity)
        try:
            yield connection
        finally:
            self.release(connection)

    def connect(self, sandbox_id: str, port: int, identity: Identity) -> socket.socket:
        """Return a connection to a port of a sandbox, whose lease is renewed; `release` it.

        Raises:
            NotFound, NotRunning, SandboxGone, NodeLost: about the sandbox.
            PortClosed, Unavailable, BadRequest: what its node says.
        """
        node_id = self._node_of(sandbox_id, identity)
        where = self._gates.get(node_id)
        if where is None:
            text = f"node {node_id} has no way into its sandboxes open at present; try again shortly"
            raise NodeLost(text, node=node_id, sandbox_id=sandbox_id)
        connection = gate.enter(where, node_id, gate.Wish(sandbox_id, port), self.settings.connect_seconds)
        self._open.add(connection)
        return connection

    def release(self, connection: socket.socket) -> None:
        """Close a connection."""
        self._open.discard(connection)
        self._lasting.discard(connection)
        connection.close()

    @contextmanager
    def lasting(self, connection: socket.socket) -> Iterator[None]:
        """Mark a connection as one that is no request with an end: this process waits for none of those when it ends."""
        self._lasting.add(connection)
        try:
            yield
        finally:
            self._lasting.discard(connection)

    def end_lasting(self) -> None:
        """End the connections that would last: this process ends."""
        self.ending = True
        _end(self._lasting)

    def end_all(self) -> None:
        """End every connection: the time is over."""
        self.ending = True
        _end(self._open)

    def _node_of(self, sandbox_id: str, identity: Identity) -> str:
        now = self._clock()
        found = self._sandboxes.touch(sandbox_id, now, identity.owner, identity.admin)
        if found is None:
            raise refused(sandbox_id, Claim(ClaimWord.MISSING))
        record, heartbeat = found
        if record.state is not State.RUNNING:
            state = record.state.value
            raise refused(
                sandbox_id, Claim(ClaimWord.STATE, state=state, stop_event=record.stop_event, reason=record.reason)
            )
        if heartbeat < now - self._lost_after:
            raise refused(sandbox_id, Claim(ClaimWord.LOST, node=record.node))
        return record.node


def _end(connections: set[socket.socket]) -> None:
    for connection in list(connections):
        # Whoever works with it sees its end, and closes it.
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


class Traffic:
    """When bytes have last passed on a connection, whichever way."""

    def __init__(self, idle: float) -> None:
        """`idle`: seconds without any after which it is over."""
        self.idle, self._last = idle, time.monotonic()

    def passed(self) -> None:
        """Note that some have."""
        self._last = time.monotonic()

    @property
    def over(self) -> bool:
        """True when none have for too long."""
        return time.monotonic() - self._last >= self.idle


def pump(source: socket.socket, take: Callable[[memoryview], None], traffic: Traffic) -> None:
    """Give what comes from `source` to `take`, until it ends or nothing passes either way for too long.

    Raises OSError when a side breaks.
    """
    view = memoryview(bytearray(CHUNK))
    source.settimeout(traffic.idle)
    while True:
        try:
            count = source.recv_into(view)
        except TimeoutError:
            if traffic.over:
                return
            continue
        if not count:
            return
        take(view[:count])
        traffic.passed()
        # Where both sides are quick, nothing above waits: other requests of this process have their turn here.
        time.sleep(0)


def join(one: socket.socket, other: socket.socket, idle: float) -> None:
    """Move bytes both ways between two connections until one side ends or breaks, or nothing passes for `idle` seconds."""
    traffic = Traffic(idle)

    def carry(source: socket.socket, sink: socket.socket) -> None:
        try:
            pump(source, sink.sendall, traffic)
        except OSError as error:
            log.debug("a connection into a sandbox broke: %s", error)
        for side in (one, other):
            # The end of one way is the end of both: a WebSocket has said all it had to say by then.
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    back = threading.Thread(target=carry, args=(other, one), name="proxy-back", daemon=True)
    back.start()
    carry(one, other)
    back.join()
