"""The two ways into a `local` sandbox: the pipes of its main process, and a process of one's own beside it."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rock.errors import BadRequest, SandboxGone, Unavailable
from workers.deployments.exec_stream import STDERR_LIMIT, check_argv
from workers.deployments.wire import CHUNK

PIPE_SIZE = 1 << 20
_DROP_AT_MOST = 1 << 22


class FifoStream:
    """A `Stream` over the pipes of a main process.

    Params:
        into, out: the pipes.
        lives: tells whether the main process lives: a pipe whose other side is held by its orphans has no end of its own.
        folder: descriptor of the folder that the pipes are in.
        size: bytes that each of them shall hold; 0: leave them. All that root's processes hold together is bounded by the
            kernel, and root in a container counts.
    Errors: SandboxGone when it does not live; Unavailable when a pipe cannot be opened for another reason.
    """

    def __init__(
        self, into: Path, out: Path, sandbox_id: str, lives: Callable[[], bool], *, folder: int | None = None, size: int = 0
    ) -> None:  # fmt: skip
        self._sandbox_id, self._lives, self._begun = sandbox_id, lives, False
        if not lives():
            raise SandboxGone(f"cannot attach to sandbox {sandbox_id}: its main process is not running")
        self._out = _open_pipe(out, os.O_RDONLY, sandbox_id, folder)
        try:
            self._in = _open_pipe(into, os.O_WRONLY, sandbox_id, folder)
        except BaseException:
            os.close(self._out)
            raise
        if size:
            self._widen(size)

    def fileno(self) -> int:
        """Return the reading pipe's descriptor."""
        return self._out

    def writable_fileno(self) -> int:
        """Return the writing pipe's descriptor."""
        return self._in

    def receive(self) -> bytes | None:
        """Return output, b"" when there is none yet, None at the end."""
        try:
            data = os.read(self._out, CHUNK)
        except BlockingIOError:
            # Children of a dead main process may hold the pipe open.
            return b"" if self._lives() else None
        return data or None

    def send(self, data: bytes | memoryview) -> int:
        """Send as much as fits now; return how much. Errors: SandboxGone.

        At first it drops what was printed while nobody listened, as an engine does: by then it is decided that this stream is
        the one to go on with, and what is read here nobody else will read.
        """
        if not self._begun:
            self._begun = True
            self._drop_old()
        try:
            return os.write(self._in, data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise SandboxGone(f"sandbox {self._sandbox_id}: its main process is gone: {error.strerror}") from error

    def close(self) -> None:
        """Close our ends; the main process holds its own."""
        for descriptor in (self._in, self._out):
            if descriptor >= 0:
                os.close(descriptor)
        self._in = self._out = -1

    def _widen(self, size: int) -> None:
        try:
            for descriptor in (self._in, self._out):
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, size)
        except BaseException:
            self.close()
            raise

    def _drop_old(self) -> None:
        """Drop what waits. Bounded: the printing may go on meanwhile."""
        dropped = 0
        while dropped < _DROP_AT_MOST:
            try:
                data = os.read(self._out, CHUNK)
            except BlockingIOError:
                return
            if not data:
                return
            dropped += len(data)


def _open_pipe(path: Path, way: int, sandbox_id: str, folder: int | None) -> int:
    """Open a pipe, and nothing else that may be in its place. Errors: SandboxGone, Unavailable."""
    what = f"cannot attach to sandbox {sandbox_id}"
    try:
        descriptor = os.open(path, way | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        kind = SandboxGone if error.errno in (errno.ENOENT, errno.ESRCH, errno.ENXIO) else Unavailable
        raise kind(f"{what}: {error.strerror}") from error
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise SandboxGone(f"{what}: something else is in the place of its pipes")


class ProcessExec:
    """The `ExecStream` of a plain process.

    Params:
        argv: program and arguments.
        folder: where it starts.
        env: its environment, whole.
        stdin: what to feed it; None feeds nothing.
    Errors: BadRequest when there is no such program.
    """

    def __init__(
        self, argv: Sequence[str], folder: Path, env: Mapping[str, str], stdin: Iterable[bytes] | None
    ) -> None:
        check_argv(argv)
        self.exit_code: int | None = None
        self._stderr = bytearray()
        self._source: Iterator[bytes] | None = iter(stdin or ())
        try:
            self._process = subprocess.Popen(
                argv, cwd=folder, env=dict(env), start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
            )  # fmt: skip
        except (FileNotFoundError, PermissionError) as error:
            raise BadRequest(f"cannot run {argv[0]}: {error.strerror}") from error
        self._pipes = {name: _descriptor(getattr(self._process, name)) for name in ("stdin", "stdout", "stderr")}
        for descriptor in self._pipes.values():
            os.set_blocking(descriptor, False)

    @property
    def stderr(self) -> bytes:
        """What it wrote to stderr, up to 64 KiB."""
        return bytes(self._stderr)

    def __enter__(self) -> ProcessExec:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        """Yield stdout to its end, feeding stdin meanwhile; then `exit_code` is set."""
        unsent = memoryview(self._next_input())
        reading = {self._pipes["stdout"], self._pipes["stderr"]}
        while reading:
            poller = select.poll()
            for descriptor in reading:
                poller.register(descriptor, select.POLLIN)
            if self._source is not None:
                poller.register(self._pipes["stdin"], select.POLLOUT)
            for descriptor, _ in poller.poll():
                if descriptor == self._pipes["stdin"]:
                    unsent = self._feed(unsent)
                    continue
                data = os.read(descriptor, CHUNK)
                if not data:
                    reading.discard(descriptor)
                elif descriptor == self._pipes["stdout"]:
                    yield data
                else:
                    self._stderr += data[: STDERR_LIMIT - len(self._stderr)]
        code = self._process.wait()
        self.exit_code = code if code >= 0 else 128 - code
        self.close()

    def close(self) -> None:
        """Kill the process if it still runs, and release its pipes. May be called twice."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _next_input(self) -> bytes:
        for chunk in self._source or ():
            if chunk:
                return chunk
        self._end_input()
        return b""

    def _end_input(self) -> None:
        self._source = None
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _feed(self, unsent: memoryview) -> memoryview:
        try:
            unsent = unsent[os.write(self._pipes["stdin"], unsent[:CHUNK]) :]
        except BlockingIOError:
            return unsent
        except BrokenPipeError:
            self._end_input()  # it closed its stdin; what it prints and how it ends still counts
            return memoryview(b"")
        return unsent if unsent else memoryview(self._next_input())


def _descriptor(pipe: object) -> int:
    return int(pipe.fileno())  # type: ignore[attr-defined]  # a pipe asked for is there
