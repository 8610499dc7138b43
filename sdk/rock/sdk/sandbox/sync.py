"""The synchronous twin of `Sandbox`, for code without an event loop. No second implementation: each verb runs the
coroutine of the same name on a private loop in a thread.

    with Sandbox(SandboxConfig(image="python:3.11")) as sandbox:
        print(sandbox.arun("python --version").output)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from rock.sdk import loop
from rock.sdk.sandbox import client, files, process, terminal
from rock.sdk.sandbox.config import SandboxConfig

P = ParamSpec("P")
T = TypeVar("T")


class _Twin(Protocol):
    """A synchronous object and the asynchronous one that it drives."""

    @property
    def twin(self) -> Any:
        """The asynchronous object."""


S = TypeVar("S", bound=_Twin)


def _blocking(
    verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return a method that runs the twin's coroutine of that name and waits for it."""
    name = verb.__name__

    @functools.wraps(verb)
    def run(self: _Twin, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return loop.run(getattr(self.twin, name)(*args, **kwargs))

    # wraps() points inspect at a coroutine function; this one is not, and has the same parameters.
    return run


class FileSystem:
    """Twin of `files.FileSystem`.

    Params:
        twin: the asynchronous one.
    """

    def __init__(self, twin: files.FileSystem) -> None:
        self.twin = twin

    upload_dir = _blocking(files.FileSystem.upload_dir)
    download_file = _blocking(files.FileSystem.download_file)
    download_dir = _blocking(files.FileSystem.download_dir)
    chown = _blocking(files.FileSystem.chown)
    chmod = _blocking(files.FileSystem.chmod)


class Process:
    """Twin of `process.Process`.

    Params:
        twin: the asynchronous one.
    """

    def __init__(self, twin: process.Process) -> None:
        self.twin = twin

    execute_script = _blocking(process.Process.execute_script)


class Terminal:
    """Twin of `terminal.Terminal`: iterate over it for what the screen shows.

    Params:
        twin: the asynchronous one.
    """

    def __init__(self, twin: terminal.Terminal) -> None:
        self.twin = twin

    @classmethod
    def open(cls, sandbox: Sandbox, session: str = "default", rows: int = 24, cols: int = 80) -> Self:
        """Open a terminal of that size in a session that exists; errors as of the asynchronous one."""
        return cls(loop.run(terminal.Terminal.open(sandbox.twin, session, rows, cols)))

    @property
    def exit_code(self) -> int | None:
        """The shell's, once it has ended."""
        return self.twin.exit_code

    type = _blocking(terminal.Terminal.type)
    resize = _blocking(terminal.Terminal.resize)
    close = _blocking(terminal.Terminal.close)

    def __iter__(self) -> Iterator[bytes]:
        """Yield what the screen shows until the shell ends; errors as of the asynchronous one."""
        screen = aiter(self.twin)

        async def more() -> bytes | None:
            return await anext(screen, None)

        while (data := loop.run(more())) is not None:
            yield data


class Sandbox:
    """Twin of `client.Sandbox`: the same names, parameters, results and errors; may be used from several threads.

    Params:
        config: what to start and where; None means all defaults.
    """

    def __init__(self, config: SandboxConfig | None = None) -> None:
        self.twin = client.Sandbox(config)
        self.fs = FileSystem(self.twin.fs)
        self.process = Process(self.twin.process)

    @property
    def config(self) -> SandboxConfig:
        """What was asked for."""
        return self.twin.config

    @property
    def sandbox_id(self) -> str | None:
        """The sandbox's id, None before start."""
        return self.twin.sandbox_id

    @property
    def url(self) -> str:
        """Where the service's routes about sandboxes are."""
        return self.twin.url

    @property
    def cluster(self) -> str | None:
        """The cluster that was asked for."""
        return self.twin.cluster

    @property
    def host_name(self) -> str | None:
        """Name of the machine that has the sandbox, None before start."""
        return self.twin.host_name

    @property
    def host_ip(self) -> str | None:
        """Address of the machine that has the sandbox, None before start."""
        return self.twin.host_ip

    def _fork(self, count: int = 1) -> list[Sandbox]:
        made = []
        for twin in loop.run(self.twin.fork(count)):
            sandbox = Sandbox(twin.config)
            sandbox.twin, sandbox.fs, sandbox.process = twin, FileSystem(twin.fs), Process(twin.process)
            made.append(sandbox)
        return made

    fork = functools.wraps(client.Sandbox.fork)(_fork)
    start = _blocking(client.Sandbox.start)
    attach = _blocking(client.Sandbox.attach)
    stop = _blocking(client.Sandbox.stop)
    close = _blocking(client.Sandbox.close)
    restart = _blocking(client.Sandbox.restart)
    delete = _blocking(client.Sandbox.delete)
    is_alive = _blocking(client.Sandbox.is_alive)
    get_status = _blocking(client.Sandbox.get_status)
    get_statistics = _blocking(client.Sandbox.get_statistics)
    commit = _blocking(client.Sandbox.commit)
    commit_async = _blocking(client.Sandbox.commit_async)
    get_commit_status = _blocking(client.Sandbox.get_commit_status)
    create_session = _blocking(client.Sandbox.create_session)
    close_session = _blocking(client.Sandbox.close_session)
    run_in_session = _blocking(client.Sandbox.run_in_session)
    arun = _blocking(client.Sandbox.arun)
    execute = _blocking(client.Sandbox.execute)
    run_nohup_and_wait = _blocking(client.Sandbox.run_nohup_and_wait)
    read_file = _blocking(client.Sandbox.read_file)
    read_file_by_line_range = _blocking(client.Sandbox.read_file_by_line_range)
    write_file = _blocking(client.Sandbox.write_file)
    write_file_by_path = _blocking(client.Sandbox.write_file_by_path)
    upload = _blocking(client.Sandbox.upload)
    upload_by_path = _blocking(client.Sandbox.upload_by_path)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"sync.{self.twin!r}"
