"""One HTTP request to a program in a sandbox and its answer, over a connection of its own. Bodies pass in pieces, whatever their size."""

import contextlib
import errno
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import h11

from app.forwarding import Fields
from rock.errors import CommandTimeout, NodeLost, ProgramFault, RockError

CHUNK = 256 * 1024
LARGEST_HEAD = 64 * 1024
"""Bytes of an answer's head."""
LOOK_EVERY = 30.0
"""Seconds between two looks at how long nothing has come."""
SENDER_GRACE = 5.0
"""Seconds for the rest of a request's body after the answer is complete; then the caller is cut off."""

_UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
"""What the kernel says of a machine that has gone."""

Read = Callable[[], bytes]


@dataclass(frozen=True)
class Head:
    """The head of an answer."""

    status: int
    reason: str
    headers: Fields

    @property
    def upgraded(self) -> bool:
        """True when the connection is no HTTP from here on."""
        return self.status == 101


class Exchange:
    """A request and its answer. Use `ask`, then `body` or `take_over`; and `close` in any case."""

    def __init__(self, connection: socket.socket, where: str, idle: float, caller: socket.socket | None = None) -> None:
        """
        Params:
            connection: to the program.
            where: which program, for messages.
            idle: seconds without a byte after which it is given up.
            caller: the connection on which the answer goes out, watched for its end; None: not to be known.
        """
        self._connection, self._where, self._idle, self._caller = connection, where, idle, caller
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LARGEST_HEAD)
        # The body's sender is a thread of its own: a program may answer before it has read everything.
        self._lock = threading.Lock()
        self._sender: threading.Thread | None = None
        self._sent_last = self._got_last = time.monotonic()
        self._failure: RockError | None = None
        self._ended = False
        connection.settimeout(idle)

    def ask(self, method: str, path: str, headers: Fields, read: Read | None = None) -> Head:
        """Send a request, and return the head of its answer.

        Params:
            headers: all of them, those that frame the body included.
            read: gives the body piece by piece, b"" at its end; None: there is none.
        Raises:
            ProgramFault, CommandTimeout; what `read` raises, if that is one of our errors.
        """
        try:
            self._connection.sendall(self._encode(h11.Request(method=method, target=path, headers=headers)))
            if read is None:
                self._connection.sendall(self._encode(h11.EndOfMessage()))
        except h11.LocalProtocolError as error:
            raise ProgramFault(f"this request cannot be passed on to {self._where}: {error}") from error
        except OSError as error:
            raise self._broken(error) from error
        if read is not None:
            self._sender = threading.Thread(target=self._send_body, args=(read,), name="proxy-body", daemon=True)
            self._sender.start()
        event = self._next()
        while isinstance(event, h11.InformationalResponse) and event.status_code != 101:
            event = self._next()
        if not isinstance(event, h11.Response | h11.InformationalResponse):
            raise self._broken(None)
        fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers.raw_items()]
        return Head(event.status_code, event.reason.decode("latin-1"), fields)

    def body(self) -> Iterator[bytes]:
        """Yield the answer's body as it comes.

        Raises:
            ConnectionResetError: it broke off. The head is out by then, so that all that can be told the caller is the same.
        """
        try:
            while isinstance(event := self._next(), h11.Data):
                yield bytes(event.data)
        except RockError as error:
            raise ConnectionResetError(errno.ECONNRESET, error.message) from error

    def take_over(self) -> bytes:
        """Return what of an upgraded connection has been read already; the rest is to be read from the connection."""
        return self._http.trailing_data[0]

    def close(self) -> None:
        """Give the connection up. A body that is still being sent ends; so does, if that takes long, the caller's connection."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        if self._sender is not None:
            self._sender.join(SENDER_GRACE)
            if self._sender.is_alive() and self._caller is not None:
                # Else the rest of this body would be taken for the next request.
                with contextlib.suppress(OSError):
                    self._caller.shutdown(socket.SHUT_RD)

    def _encode(self, event: Any) -> bytes:
        with self._lock:
            return self._http.send(event) or b""

    def _next(self) -> Any:
        """Return the next event of the answer. Raises ProgramFault, CommandTimeout, or why the request's body did not come."""
        try:
            while True:
                with self._lock:
                    event = self._http.next_event()
                if event is not h11.NEED_DATA:
                    return event
                self._await_data()
                data = self._connection.recv(CHUNK)
                self._got_last, self._ended = time.monotonic(), not data
                with self._lock:
                    self._http.receive_data(data)
        except h11.RemoteProtocolError as error:
            if self._ended:
                raise self._broken(None) from error
            raise self._failure or ProgramFault(f"{self._where} did not answer as HTTP does: {error}") from error
        except OSError as error:
            raise self._broken(error) from error

    def _await_data(self) -> None:
        """Return when the program has sent something. Raises CommandTimeout; ConnectionResetError when the caller has left."""
        while True:
            # While the body is sent, its sender reads from the caller and notices.
            watch = self._caller if self._sender is None or not self._sender.is_alive() else None
            ready = _readable([self._connection, *([watch] if watch else [])], min(LOOK_EVERY, self._idle))
            if self._connection.fileno() in ready:
                return
            if watch is not None and ready:
                if not watch.recv(1, socket.MSG_PEEK):
                    raise ConnectionResetError("the caller has left")
                self._caller = None  # it has sent its next request already
            if time.monotonic() - max(self._got_last, self._sent_last) > self._idle:
                raise CommandTimeout(f"{self._where} sent nothing for {self._idle:g} s (proxy.idle_seconds)")

    def _send_body(self, read: Read) -> None:
        """Send the body; of one that the program does not want any more, read the rest, so that the caller gets to see the answer."""
        wanted = True
        try:
            while chunk := read():
                wanted = wanted and self._pass_on(h11.Data(data=chunk))
            if wanted:
                self._pass_on(h11.EndOfMessage())
        except RockError as error:
            self._failure = error
            self._give_up()
        except OSError:
            self._failure = ProgramFault("the request's body broke off")
            self._give_up()

    def _pass_on(self, event: Any) -> bool:
        """Send a part of the body; False when the program takes no more."""
        try:
            self._connection.sendall(self._encode(event))
        except (OSError, h11.LocalProtocolError):
            return False  # it may have answered before, and that is what counts
        self._sent_last = time.monotonic()
        return True

    def _give_up(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _broken(self, error: OSError | None) -> RockError:
        if self._failure is not None:
            return self._failure
        if error is not None and error.errno in _UNREACHABLE:
            return NodeLost(f"the node with {self._where} does not answer any more")
        if isinstance(error, TimeoutError):
            return CommandTimeout(f"{self._where} took nothing for {self._idle:g} s (proxy.idle_seconds)")
        return ProgramFault(f"{self._where} closed the connection before its answer was complete")


def _readable(connections: list[socket.socket], seconds: float) -> set[int]:
    """Return the descriptors of those from which something, or their end, can be read within that time."""
    poller = select.poll()
    for connection in connections:
        poller.register(connection, select.POLLIN)
    return {descriptor for descriptor, _ in poller.poll(seconds * 1000)}
