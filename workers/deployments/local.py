"""Sandboxes as plain process trees of this machine: for tests, and for machines without an engine. NO isolation: what runs
in such a sandbox runs as this user, with this machine's files and network, and no limit is enforced.

A sandbox is a folder `<data_dir>/sandboxes/<id>/` with the pipes `in` and `out` of its main process, its `home`, and what
is needed to find the process again. The tree outlives the worker that started it.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

from app.keys import check_name
from rock.errors import AlreadyExists, BadRequest, NotFound, SandboxGone, StartFailed
from workers.deployments import dialing, local_launch, processes
from workers.deployments.abstract import ContainerEvent, ContainerSpec, ContainerState, Credentials, Pull, Usage
from workers.deployments.container_body import QUIET, mark_of
from workers.deployments.exec_tunnel import closed
from workers.deployments.local_copies import Copies, make_writable
from workers.deployments.local_streams import PIPE_SIZE, FifoStream, ProcessExec

_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NOTE = "limits of cpu, memory, disk and pids are not enforced here"
_LOOK_EVERY = 0.25


class LocalDeployment:
    """Runs sandboxes as process trees.

    Params:
        data_dir: folder that keeps the sandboxes' folders.
        cluster, node: mark our sandboxes.
        boot_argv: the main process of every sandbox.
        environ: variables of the node; of them a sandbox sees only the search path, the language and the like.
    """

    name = "local"
    isolation = False
    description = "process trees of this machine: NO isolation, no limits"

    def __init__(
        self, data_dir: Path, *, cluster: str, node: str, boot_argv: list[str], environ: Mapping[str, str]
    ) -> None:
        self.images = Copies(data_dir / "copies")
        self._root = data_dir / "sandboxes"
        self._owner, self.mark = {"cluster": cluster, "node": node}, mark_of(cluster, node)
        self._boot_argv = list(boot_argv)
        self._env = {name: environ[name] for name in _PASSED_ON if name in environ}

    def prepare_image(
        self,
        image: str,
        *,
        pull: Pull = Pull.MISSING,
        credentials: Credentials | None = None,
        deadline: float | None = None,
        progress: Callable[[str], None] = lambda text: None,
    ) -> str:
        """Say that there are no images here: the machine's own files are what a sandbox sees, and perhaps a copy of another's folder."""
        progress(f"local deployment: image {image} is not used, the sandbox sees this machine's own files")
        return "local"

    def start(self, spec: ContainerSpec) -> ContainerState:
        """Start a sandbox's process tree; for a living one return its state.

        Errors: BadRequest (options that only a container can have), AlreadyExists, StartFailed.
        """
        folder = self._folder(spec.sandbox_id)
        asked = {**vars(spec.options), "env": None, "user": None}
        if any(asked.values()):
            names = ", ".join(name for name, value in asked.items() if value)
            raise BadRequest(f"docker_args: the local deployment has no containers, so it cannot give: {names}")
        try:
            (folder / "home").mkdir(parents=True)
        except FileExistsError:
            state = self.inspect(spec.sandbox_id)
            if state.running:
                return state
            raise AlreadyExists(
                f"sandbox {spec.sandbox_id} was started before and has ended; take another id"
            ) from None
        try:
            env = {**QUIET, "PATH": _PATH, "LANG": "C.UTF-8", **self._env, **spec.env, **spec.options.env}
            self.images.lay_out(spec.image, folder / "home")
            about = {**self._owner, "cpus": spec.cpus, "memory": spec.memory_bytes, "env": env}
            _write(folder / "about.json", about)
            return self._launch(spec.sandbox_id, folder, env)
        except BaseException:
            self.remove(spec.sandbox_id)
            raise

    def restart(self, sandbox_id: str) -> ContainerState:
        """Start a sandbox again, in its folder. Errors: NotFound, StartFailed."""
        about = self._about(sandbox_id)
        if about is None:
            raise NotFound(f"sandbox {sandbox_id} is not on this node")
        self.stop(sandbox_id)
        folder = self._folder(sandbox_id)
        shutil.rmtree(folder / "run", ignore_errors=True)  # as a container's tmpfs, it does not outlive the processes
        return self._launch(sandbox_id, folder, about["env"])

    def attach(self, sandbox_id: str) -> FifoStream:
        """Open the pipes of the main process; what waits in them from before is dropped. Errors: SandboxGone."""
        folder = self._folder(sandbox_id)
        return FifoStream(folder / "in", folder / "out", sandbox_id, lambda: self._pid(sandbox_id) != 0, size=PIPE_SIZE)

    def stop(self, sandbox_id: str) -> None:
        """Kill the whole tree; the folder stays."""
        if self._about(sandbox_id) is not None and not processes.kill_tree(
            self._pid(sandbox_id), self._marker(sandbox_id)
        ):
            raise StartFailed(f"sandbox {sandbox_id}: some of its processes cannot be killed")

    def commit(self, sandbox_id: str, image: str) -> str:
        """Copy the sandbox's own folder; what runs goes on meanwhile. Errors: SandboxGone."""
        if self._about(sandbox_id) is None:
            raise SandboxGone(f"cannot copy sandbox {sandbox_id}: it is not on this node")
        self.images.keep(image, self._folder(sandbox_id) / "home")
        return image

    def remove(self, sandbox_id: str) -> None:
        """Kill the whole tree and remove the folder."""
        if not self._folder(sandbox_id).exists():
            return
        processes.kill_tree(self._pid(sandbox_id), self._marker(sandbox_id))
        folder = self._folder(sandbox_id)
        shutil.rmtree(folder, onerror=make_writable)

    def inspect(self, sandbox_id: str) -> ContainerState:
        """Return the state; how a main process ended is not known here, as it is nobody's child."""
        facts = self._read(sandbox_id, "pid.json")
        if facts is None:
            return ContainerState(exists=self._about(sandbox_id) is not None, notes=(_NOTE,))
        running = processes.alive(facts["pid"], facts["start"])
        return ContainerState(
            exists=True, running=running, ip="127.0.0.1", started_at=facts["started_at"], notes=(_NOTE,)
        )

    def list(self) -> Sequence[tuple[str, bool]]:
        """Return (sandbox id, running) of this node's sandboxes."""
        names = sorted(path.name for path in self._root.iterdir()) if self._root.is_dir() else []
        return [(name, self._pid(name) != 0) for name in names if self._is_ours(name)]

    def statistics(self, sandbox_id: str) -> Usage:
        """Return what the tree uses, in percent of what was asked for. Errors: SandboxGone."""
        about, pid = self._about(sandbox_id), self._pid(sandbox_id)
        if about is None or not pid:
            raise SandboxGone(f"sandbox {sandbox_id} is not running: nothing to measure")
        marker, ticks, gap = self._marker(sandbox_id), os.sysconf("SC_CLK_TCK"), 0.1
        before = sum(process.cpu for process in processes.tree(pid, marker))
        time.sleep(gap)
        after = processes.tree(pid, marker)
        cpu = max(0, sum(process.cpu for process in after) - before) / ticks / gap / about["cpus"]
        memory = sum(process.memory for process in after) * os.sysconf("SC_PAGE_SIZE") / about["memory"]
        disk = shutil.disk_usage(self._root)
        return Usage(round(100 * cpu, 2), round(100 * memory, 2), round(100 * disk.used / disk.total, 2), 0)

    def disk_use(self, sandbox_id: str) -> int | None:
        """Return None: its files are the machine's, and could be anywhere."""
        return None

    def exec_stream(
        self, sandbox_id: str, argv: Sequence[str], *, stdin: Iterable[bytes] | None = None, user: str | None = None
    ) -> ProcessExec:
        """Run a program in the sandbox's home. Errors: SandboxGone; BadRequest for another user than this one."""
        about = self._about(sandbox_id)
        if about is None or not self._pid(sandbox_id):
            raise SandboxGone(f"cannot run {argv[:1]} in sandbox {sandbox_id}: it is not running")
        if user not in (None, "0:0", "root", "0") or (user and os.getuid()):
            raise BadRequest(f"user {user}: the local deployment runs everything as the user of the service")
        folder = self._folder(sandbox_id)
        return ProcessExec(argv, folder / "home", self._environment(sandbox_id, about["env"]), stdin)

    def dial(self, sandbox_id: str, port: int, timeout: float) -> socket.socket:
        """Connect to a port of this machine that a process of the sandbox listens on. Errors: SandboxGone, PortClosed."""
        pid = self._pid(sandbox_id)
        if not pid:
            raise dialing.gone(sandbox_id)
        # All share the machine's network, the service's own Redis included: only what is the sandbox's may be reached.
        if not dialing.listens((one.pid for one in processes.tree(pid, self._marker(sandbox_id))), port):
            raise closed(sandbox_id, port)
        return dialing.dial(sandbox_id, port, dialing.LOOPBACK, timeout)

    def watch(self, callback: Callable[[ContainerEvent], None], stop: Event) -> None:
        """Report main processes that end, by looking four times a second."""
        before = dict(self.list())
        while not stop.wait(_LOOK_EVERY):
            now = dict(self.list())
            for sandbox_id, was_running in before.items():
                if was_running and not now.get(sandbox_id):
                    callback(ContainerEvent(sandbox_id, "die"))
                if sandbox_id not in now:
                    callback(ContainerEvent(sandbox_id, "destroy"))
            before = now

    def close(self) -> None:
        """Nothing is held."""

    def _launch(self, sandbox_id: str, folder: Path, env: Mapping[str, str]) -> ContainerState:
        (folder / "run").mkdir(mode=0o700)
        for name in ("in", "out"):
            if not (folder / name).exists():
                os.mkfifo(folder / name, 0o600)
        program = [sys.executable, "-I", "-S", local_launch.__file__, str(folder), json.dumps(self._boot_argv)]
        ran = subprocess.run(
            program, env=self._environment(sandbox_id, env), capture_output=True, text=True, timeout=30
        )
        if ran.returncode:
            raise StartFailed(f"cannot start sandbox {sandbox_id}: {ran.stderr.strip()}")
        pid = int(ran.stdout)
        process = processes.read(pid)
        if process is None:
            raise StartFailed(f"sandbox {sandbox_id}: its main process ended at once")
        _write(folder / "pid.json", {"pid": pid, "start": process.start, "started_at": datetime.now(UTC).isoformat()})
        return self.inspect(sandbox_id)

    def _environment(self, sandbox_id: str, env: Mapping[str, str]) -> dict[str, str]:
        folder = self._folder(sandbox_id)
        ours = {"HOME": str(folder / "home"), "ROCK_RUN_DIR": str(folder / "run"), "ROCK_SANDBOX_ID": sandbox_id}
        # The marker names the folder, not the id: two services on one machine may have the same id.
        return {**env, **ours, "ROCK_SANDBOX_DIR": str(folder)}

    def _marker(self, sandbox_id: str) -> bytes:
        return b"ROCK_SANDBOX_DIR=" + os.fsencode(self._folder(sandbox_id))

    def _folder(self, sandbox_id: str) -> Path:
        return self._root / check_name(sandbox_id, "sandbox_id")

    def _pid(self, sandbox_id: str) -> int:
        """Return the id of the living main process, else 0."""
        facts = self._read(sandbox_id, "pid.json")
        return facts["pid"] if facts and processes.alive(facts["pid"], facts["start"]) else 0

    def _about(self, sandbox_id: str) -> dict[str, Any] | None:
        return self._read(sandbox_id, "about.json")

    def _is_ours(self, sandbox_id: str) -> bool:
        about = self._about(sandbox_id)
        return about is not None and all(about[key] == value for key, value in self._owner.items())

    def _read(self, sandbox_id: str, name: str) -> dict[str, Any] | None:
        try:
            return dict(json.loads((self._folder(sandbox_id) / name).read_text()))
        except (FileNotFoundError, NotADirectoryError):
            return None


def _write(path: Path, value: Mapping[str, Any]) -> None:
    """Write a small file whole or not at all; it may hold a caller's secrets, so nobody else may read it."""
    temporary = path.with_suffix(".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(value, file)
    temporary.replace(path)
