"""The port between a node and whatever runs its sandboxes: one protocol, and the plain data that crosses it.

`docker.py` (Docker, Podman, a remote engine) and `local.py` (a process tree) implement it. Nothing here knows either,
so the agent, the relay and the reaper are written once and tested against the one that needs no engine.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Event
from typing import Protocol

from workers.deployments.docker_args import EngineOptions

RUN_DIR = "/run/rock"
"""The keeper's private runtime folder in a container: a tmpfs that only root may enter."""

USERS_DIR = "/run/rock-users"
"""Beside it, what the keeper gives to sessions of other users: a tmpfs in which only root may list and make files."""


class Pull(StrEnum):
    """When an image is fetched although, or because, the node (does not) have it."""

    MISSING = "missing"
    NEVER = "never"
    ALWAYS = "always"


@dataclass(frozen=True)
class Credentials:
    """A registry login of one request. Never stored; its text form shows no secret."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class ContainerSpec:
    """What a sandbox is started with.

    Params:
        sandbox_id: its id; also the idempotency key of `start`.
        image: reference as the caller wrote it.
        cpus: hard cap, in CPUs (0.5 is half of one).
        memory_bytes: hard limit; swap is pinned to it.
        pids: most processes and threads at once.
        disk_bytes: limit of the container's own layer, or None for none.
        tmpfs_bytes: size of the keeper's runtime folder.
        env: the caller's variables; they win over the image's and ours.
        options: the parsed `docker_args`.
        runtime: the engine's runtime (`runsc`, `kata`), or None for its default.
        network: network the container joins, unless `options` name one (`bridge`, `none`).
        threads: how many programs are told to use; None: they count the machine's CPUs.
        init: run the keeper under the engine's init; by default the keeper is PID 1 and reaps by itself.
        labels: further labels; ours win.
    """

    sandbox_id: str
    image: str
    cpus: float
    memory_bytes: int
    pids: int = 4096
    disk_bytes: int | None = None
    tmpfs_bytes: int = 256 * 1024 * 1024
    env: dict[str, str] = field(default_factory=dict)
    options: EngineOptions = field(default_factory=EngineOptions)
    runtime: str | None = None
    network: str = "bridge"
    threads: int | None = None
    init: bool = False
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ContainerState:
    """What is known of a container; `exists=False` and nothing else for an unknown one.

    Params:
        exit_code: of the main process, once it ended (None: running, or not known).
        error: the engine's own words on why it does not run, "" if none.
        ip: address on its network, "" without one.
        port_mapping: {container port: host port} of published ports.
        started_at: ISO 8601 with zone, "" before the first start.
        notes: what was asked for and is not enforced here, for status.
    """

    exists: bool
    running: bool = False
    exit_code: int | None = None
    oom_killed: bool = False
    error: str = ""
    ip: str = ""
    port_mapping: dict[int, int] = field(default_factory=dict)
    started_at: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Usage:
    """A sandbox's consumption: `cpu` and `mem` in percent of its own limits, `disk` in percent of the disk its files
    are on (None where that cannot be seen), `net` in bytes in and out since it started."""

    cpu: float
    mem: float
    disk: float | None
    net: int


@dataclass(frozen=True)
class ContainerEvent:
    """Something happened to one of our containers: `event` is `die`, `oom` or `destroy`."""

    sandbox_id: str
    event: str
    exit_code: int | None = None
    oom: bool = False


class Stream(Protocol):
    """A held connection to a sandbox's main process; never blocks. One thread uses it at a time."""

    def fileno(self) -> int:
        """Return the descriptor that is readable when `receive` has something (or the end)."""

    def writable_fileno(self) -> int:
        """Return the descriptor that is writable when `send` would accept something."""

    def receive(self) -> bytes | None:
        """Return what the main process printed; b"" when there is nothing yet, None when the stream ended."""

    def send(self, data: bytes | memoryview) -> int:
        """Send to the main process's stdin; return how many bytes were accepted (0: would block).

        Errors: SandboxGone when the other side is gone.
        """

    def close(self) -> None:
        """Give the connection back; the main process and its stdin stay as they are. May be called twice."""


class ExecStream(Protocol):
    """A process of its own in a sandbox, streamed with flat memory. A context manager; leaving it early ends it."""

    exit_code: int | None

    @property
    def stderr(self) -> bytes:
        """What it wrote to stderr, up to 64 KiB."""

    def __enter__(self) -> ExecStream:
        """Return itself."""

    def __exit__(self, *exc: object) -> None:
        """Close."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield stdout as it comes, feeding stdin meanwhile. At the end `exit_code` is set."""

    def close(self) -> None:
        """End the process if it still runs, and release everything. May be called twice."""


class NodeImages(Protocol):
    """The images of a node."""

    def has(self, image: str) -> bool:
        """Return whether the node has an image of that name."""

    def names(self) -> Sequence[str]:
        """Return the names of the images that need no pull here; none where images mean nothing."""

    def push(
        self, image: str, credentials: Credentials, *, private: str = "", pushed: Callable[[], None] = lambda: None
    ) -> None:
        """Push an image to the registry that its name begins with.

        Params:
            private: the name that it has here instead, in place of which it has `image` if the push succeeds. If not, `image` is as before.
            pushed: called when the registry has it, and it still has its private name.
        Errors: ImageAccess, PullFailed.
        """

    def take_back(self, repository: str) -> None:
        """Have the images of a repository no other names than those in it: pushes of a killed process may have left some. None may be under way."""

    def reclaim(self) -> None:
        """Take back the names that failed pushes of this process still have, since the engine was away; till then they cannot be started."""

    def remove(self, image: str) -> bool:
        """Remove an image, though containers may use it; True if the node had it."""

    def evict(self, image: str, *, asked_for: bool = False) -> bool:
        """Remove an image that no container was made from and that nobody is fetching or (without `asked_for`) has just asked for; True if it went."""

    def disk_percent(self) -> float | None:
        """Return how full the disk is that images are on, None where that cannot be seen."""


class AbstractDeployment(Protocol):
    """How a node runs its sandboxes. Every method may be called from any thread.

    Errors of every method, besides its own: Unavailable when the engine does not answer.
    """

    name: str
    isolation: bool
    description: str
    mark: str  # tells this node of this service from all others that use the same engine

    @property
    def images(self) -> NodeImages:
        """The images of this node."""

    def prepare_image(
        self, image: str, *, pull: Pull = Pull.MISSING, credentials: Credentials | None = None,
        deadline: float | None = None, progress: Callable[[str], None] = lambda text: None,
    ) -> str:  # fmt: skip
        """Have `image` on this node and return its id.

        Params:
            deadline: monotonic clock reading (`time.monotonic()`, seconds) after which to give up, or None.
            progress: told in short texts what is going on.
        Errors: BadRequest (bad reference), ImageNotFound, ImageAccess, PullFailed, StartTimeout.
        """

    def start(self, spec: ContainerSpec) -> ContainerState:
        """Create and start a sandbox's container. Again for a living one: its state; whatever failed is removed.

        Errors: BadRequest, ImageNotFound, StartFailed, AlreadyExists (a stopped one has that id).
        """

    def restart(self, sandbox_id: str) -> ContainerState:
        """Start a sandbox again, one that still runs after its end: the same files, none of its processes.

        Errors: NotFound, StartFailed.
        """

    def attach(self, sandbox_id: str) -> Stream:
        """Open a stream to the main process; what it printed before is not repeated. Errors: SandboxGone."""

    def stop(self, sandbox_id: str) -> None:
        """Kill everything in the sandbox at once; its files stay. Unknown or stopped: nothing happens."""

    def remove(self, sandbox_id: str) -> None:
        """Kill and remove the sandbox with its files. Unknown: nothing happens."""

    def commit(self, sandbox_id: str, image: str) -> str:
        """Make the image of that name of the sandbox's files, running or stopped; return its id. What runs stands still meanwhile.

        Errors: SandboxGone; BadRequest where there are no images.
        """

    def inspect(self, sandbox_id: str) -> ContainerState:
        """Return the state of a sandbox's container."""

    def list(self) -> Sequence[tuple[str, bool]]:
        """Return (sandbox id, is running) of every container of this cluster and node, and of no other."""

    def statistics(self, sandbox_id: str) -> Usage:
        """Return what a sandbox uses. The first call takes two samples 0.1 s apart. Errors: SandboxGone."""

    def disk_use(self, sandbox_id: str) -> int | None:
        """Return the bytes of a sandbox's own files; None where the engine limits them itself, or they cannot be told apart.

        It may read every folder that the sandbox has written to. Errors: SandboxGone.
        """

    def exec_stream(
        self, sandbox_id: str, argv: Sequence[str], *, stdin: Iterable[bytes] | None = None, user: str | None = None
    ) -> ExecStream:
        """Run a program in the sandbox beside the keeper: for big files, which must not block it.

        Params:
            argv: program and arguments, passed as they are.
            stdin: what to feed it, or None for an empty input.
            user: name or number, None for the one that the container runs as.
        Errors: SandboxGone; BadRequest (no such user or program).
        """

    def dial(self, sandbox_id: str, port: int, timeout: float) -> socket.socket:
        """Return a blocking connection to a program that listens in the sandbox, and to nothing else.

        Params:
            timeout: seconds for each address of the sandbox.
        Errors: SandboxGone, PortClosed; BadRequest where no port of the sandbox can be reached from the node.
        """

    def watch(self, callback: Callable[[ContainerEvent], None], stop: Event) -> None:
        """Report containers of ours that die, until `stop` is set. Reconnects by itself and repeats nothing it missed
        for longer than the engine remembers: `list` after a gap is the caller's."""

    def close(self) -> None:
        """Release connections. Sandboxes go on."""
