"""A process beside the keeper, streamed through one hijacked connection: stdin in, stdout and stderr out, by one poll loop
without a thread. Memory stays flat whatever the size: no more than one chunk each way is held."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence

from rock.errors import BadRequest, Unavailable
from workers.deployments.streams import STDOUT, Demultiplexer
from workers.deployments.wire import CHUNK, Answer

STDERR_LIMIT = 65536


class EngineExec:
    """The `ExecStream` of an engine.

    Params:
        answer: the hijacked connection of the started process.
        stdin: what to feed; None feeds nothing and closes stdin at once.
        ended: asked once at the end, with the first bytes of its output: the exit code.
        kill: ends the process, if it was left before its end.
        idle: seconds without a byte in either direction after which the connection counts as broken.
    """

    def __init__(
        self,
        answer: Answer,
        stdin: Iterable[bytes] | None,
        ended: Callable[[bytes], int],
        kill: Callable[[], None],
        idle: float = 600.0,
    ) -> None:
        self.exit_code: int | None = None
        self._stderr = bytearray()
        self._head = b""
        self._connection = answer.connection
        self._connection.setblocking(False)
        self._frames = Demultiplexer()
        self._source: Iterator[bytes] | None = iter(stdin or ())
        self._ended, self._kill, self._idle = ended, kill, idle
        self._closed = False
        self._input_refused = False

    @property
    def stderr(self) -> bytes:
        """What it wrote to stderr, up to 64 KiB."""
        return bytes(self._stderr)

    def __enter__(self) -> EngineExec:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        """Yield stdout to its end, feeding stdin meanwhile; then `exit_code` is set. Errors: Unavailable."""
        try:
            yield from self._pump()
            self.exit_code = self._ended(self._head)
        finally:
            self.close()

    def close(self) -> None:
        """Release the connection; a process that has not ended is killed. May be called twice."""
        if self._closed:
            return
        self._closed = True
        # Its output is not wanted: an engine that cannot get rid of it handles no other event of this container.
        # Its input stays open until it is killed: the end of stdin would make half a file pass for a whole one.
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RD)
        if self._source is None:
            self._connection.close()
        try:
            if self.exit_code is None:
                self._kill()
        finally:
            self._connection.close()

    def _pump(self) -> Iterator[bytes]:
        """Move bytes both ways until stdout ends."""
        unsent = memoryview(self._next_input())
        poller = select.poll()
        while True:
            writing = self._source is not None
            poller.register(self._connection, select.POLLIN | (select.POLLOUT if writing else 0))
            ready = poller.poll(self._idle * 1000)
            if not ready:
                raise Unavailable(f"a file transfer stood still for {self._idle:.0f} s")
            events = ready[0][1]
            if events & select.POLLOUT and writing:
                unsent = self._feed(unsent)
            if events & ~select.POLLOUT:
                data = self._receive()
                if data is None:
                    return
                yield from self._split(data)

    def _next_input(self) -> bytes:
        """Return the next non-empty chunk; at the end close stdin, so that the process sees the end of its input."""
        for chunk in self._source or ():
            if chunk:
                return chunk
        self._source = None
        self._connection.shutdown(socket.SHUT_WR)
        return b""

    def _feed(self, unsent: memoryview) -> memoryview:
        try:
            unsent = unsent[self._connection.send(unsent[:CHUNK]) :]
        except BlockingIOError:
            return unsent
        except (BrokenPipeError, ConnectionResetError):
            self._source, self._input_refused = (
                None,
                True,
            )  # it closed its stdin, as `head` does: what it prints and how it ends still counts
            return memoryview(b"")
        return unsent if unsent else memoryview(self._next_input())

    def _receive(self) -> bytes | None:
        try:
            return self._connection.recv(CHUNK) or None
        except BlockingIOError:
            return b""
        except OSError as error:
            if self._source is not None or self._input_refused:
                return None  # Podman hangs up like this on input that nobody took: the exit code says what that means
            raise Unavailable(f"the container engine broke a file transfer: {error}") from error

    def _split(self, data: bytes) -> Iterator[bytes]:
        for stream, piece in self._frames.feed(data):
            self._head = self._head or piece[:1024]
            if stream == STDOUT:
                yield piece
            else:
                self._stderr += piece[: STDERR_LIMIT - len(self._stderr)]


def killer(mark: str) -> list[str]:
    """Return the arguments of a process that ends those whose environment has the entry `mark`; it needs bash only."""
    script = """for p in /proc/[0-9]*; do
  while IFS= read -r -d '' v; do [[ $v == "$1" ]] && kill -9 "${p#/proc/}"; done <"$p/environ"
done 2>/dev/null; exit 0"""
    return ["bash", "--noprofile", "--norc", "-c", script, "rock-kill", mark]


def check_argv(argv: Sequence[str]) -> None:
    """Refuse what no program can be started with. Errors: BadRequest."""
    if not argv or any("\0" in word for word in argv):
        raise BadRequest("a program and its arguments may not be empty or hold a NUL")
