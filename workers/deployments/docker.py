"""Sandboxes as containers of an engine: Docker, Podman, or the engine of another host.

A container's name is a function of cluster, node and sandbox id, so every call goes straight to it without looking it
up: a start is create + start, a removal is one forced remove.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from threading import Event
from typing import Any

from app.keys import check_name
from app.references import split_reference
from rock.errors import AlreadyExists, NotFound, SandboxGone, StartFailed, Unavailable
from workers.deployments import cgroups, main_process, podman, snapshot, wire
from workers.deployments.abstract import ContainerEvent, ContainerSpec, ContainerState, Credentials, Pull, Stream, Usage
from workers.deployments.container_body import LABEL_CLUSTER, LABEL_NODE, LABEL_SANDBOX, Ulimits, create_body, mark_of
from workers.deployments.dialing import Dialer
from workers.deployments.engine import Engine
from workers.deployments.engine_facts import event_of, layer_bytes, measure, state_of, usage_between
from workers.deployments.exec_stream import EngineExec, check_argv, killer
from workers.deployments.faults import NO_DISK_LIMIT, Doing, NameTaken, NoDiskLimit, not_started, wrong_architecture
from workers.images import Images

_SAMPLE_GAP = 0.1
_SAMPLE_AGE = 60.0
"""Seconds for which an earlier sample is still something to measure against."""
_RECONNECT = 1.0
_NOT_STARTED = (b"OCI runtime exec failed", b"unable to find user", b"Error: runc", b"Error: crun", b"Error: OCI")
"""How the output begins when a process could not be started: an engine has already promised a stream by then."""
_MARK = "ROCK_EXEC"


class DockerDeployment:
    """Runs sandboxes as containers.

    Params:
        engine: the engine.
        images: where images come from.
        cluster, node: mark our containers; a container of another cluster or node is never touched.
        boot_argv: the main process of every sandbox.
        ulimits: limits of open files and processes inside.
        name: `docker`, `podman` or `remote`.
    """

    isolation = True

    def __init__(
        self, engine: Engine, images: Images, *, cluster: str, node: str, boot_argv: list[str], ulimits: Ulimits, name: str
    ) -> None:  # fmt: skip
        self.name = name
        self.description = f"containers of {engine.version} at {engine.endpoint.url}"
        self._engine, self.images = engine, images
        self._labels = {LABEL_CLUSTER: cluster, LABEL_NODE: node}
        self.mark = mark_of(cluster, node)
        self._ulimits = ulimits
        self._boot_argv = podman.hold_stdin(boot_argv) if engine.is_podman else list(boot_argv)
        self._pipes = main_process.Pipes(engine)
        self._disk_limits = True  # until the engine says otherwise
        self._dialer = Dialer(engine, self._name)
        self._samples: dict[str, dict[str, float]] = {}

    def prepare_image(
        self,
        image: str,
        *,
        pull: Pull = Pull.MISSING,
        credentials: Credentials | None = None,
        deadline: float | None = None,
        progress: Callable[[str], None] = lambda text: None,
    ) -> str:
        """Have the image on this node; return its id. See `Images.prepare`."""
        return self.images.prepare(image, pull=pull, credentials=credentials, deadline=deadline, progress=progress)

    def start(self, spec: ContainerSpec) -> ContainerState:
        """Create and start the container; for a living one return its state.

        Whatever this call made is removed when it fails.
        Errors: BadRequest, ImageNotFound, StartFailed; AlreadyExists when that sandbox ran before and ended.
        """
        name = self._name(spec.sandbox_id)
        wanted, node = self.images.facts(spec.image).architecture, self.images.node_architecture
        doing = Doing(f"start sandbox {spec.sandbox_id}", spec.image, built_for=wanted, node_has=node)
        try:
            notes = self._create(spec, doing)
        except NameTaken:
            return self._start_again(spec, doing)
        try:
            self._engine.start(name, doing)
            if not self._pipes.prove(name):
                self._engine.remove(name)
                return self.start(spec)
            self._check_architecture(spec, doing)
            state = ContainerState(exists=True, running=True)
            if spec.options.ports:  # only the engine knows which host ports it chose
                state = self.inspect(spec.sandbox_id)
        except BaseException:
            self._engine.remove(name)
            raise
        return replace(state, notes=notes)

    def restart(self, sandbox_id: str) -> ContainerState:
        """Start a container again, with its files. Errors: NotFound, StartFailed."""
        name, state = self._name(sandbox_id), self.inspect(sandbox_id)
        if not state.exists:
            raise NotFound(f"sandbox {sandbox_id} has no container on this node")
        if state.running:  # or it was stopped, and the engine has not seen that yet
            self._engine.kill(name)
        self._engine.start(name, Doing(f"restart sandbox {sandbox_id}"))
        return self.inspect(sandbox_id)

    def attach(self, sandbox_id: str) -> Stream:
        """Open a stream to the main process. Errors: SandboxGone."""
        name = self._name(sandbox_id)
        facts = self._engine.inspect(name)
        if facts is not None and main_process.LABEL_PIPE in facts["Config"]["Labels"]:
            return main_process.reach(facts, sandbox_id)
        stream = self._attach(name, sandbox_id, Doing(f"attach to sandbox {sandbox_id}"))
        # An engine attaches to a stopped container too, and such a stream has no end. A later death ends the stream.
        if not self.inspect(sandbox_id).running:
            stream.close()
            raise SandboxGone(f"cannot attach to sandbox {sandbox_id}: its main process is not running")
        return stream

    def stop(self, sandbox_id: str) -> None:
        """Kill everything in the sandbox; the container and its files stay. The engine may see the end a little later."""
        name = self._name(sandbox_id)
        if not (self._engine.endpoint.is_local and main_process.end(self._engine.inspect(name))):
            self._engine.kill(name)

    def commit(self, sandbox_id: str, image: str) -> str:
        """Make an image of the container's files; return its id. See `snapshot.take`. Errors: SandboxGone."""
        doing = Doing(f"commit sandbox {sandbox_id} as {image}", image)
        return snapshot.take(self._engine, self._name(sandbox_id), *split_reference(image), doing)

    def remove(self, sandbox_id: str) -> None:
        """Kill and remove the container with its anonymous volumes."""
        self._samples.pop(sandbox_id, None)
        remove = podman.remove if self._engine.is_podman else Engine.remove
        remove(self._engine, self._name(sandbox_id))

    def inspect(self, sandbox_id: str) -> ContainerState:
        """Return the container's state."""
        return state_of(self._engine.inspect(self._name(sandbox_id)))

    def list(self) -> Sequence[tuple[str, bool]]:
        """Return (sandbox id, running) of this node's containers."""
        found = self._engine.containers(self._labels)
        return [(item["Labels"][LABEL_SANDBOX], item["State"] == "running") for item in found]

    def statistics(self, sandbox_id: str) -> Usage:
        """Return what the sandbox uses, in percent of its own limits. Errors: SandboxGone."""
        facts = self._engine.inspect(self._name(sandbox_id))
        if facts is None or not facts["State"]["Running"]:
            raise SandboxGone(f"sandbox {sandbox_id} is not running: nothing to measure")
        before = self._samples.get(sandbox_id)
        if before is None or not _SAMPLE_GAP <= time.monotonic() - before["time"] <= _SAMPLE_AGE:
            before = self._measure(sandbox_id, facts)
            time.sleep(_SAMPLE_GAP)
        after = self._measure(sandbox_id, facts)
        self._samples[sandbox_id] = after
        return usage_between(before, after, facts, local=self._engine.endpoint.is_local)

    def disk_use(self, sandbox_id: str) -> int | None:
        """Return the bytes of the container's own layer; None where the engine holds it to its limit. Errors: SandboxGone."""
        facts = self._engine.inspect(self._name(sandbox_id))
        if facts is None:
            raise SandboxGone(f"sandbox {sandbox_id} has no container: nothing to measure")
        if (facts["HostConfig"].get("StorageOpt") or {}).get("size"):
            return None
        # The engine adds up the lengths of files, and a database's sparse one may be a thousand times what it takes.
        seen = layer_bytes(facts) if self._engine.endpoint.is_local else None
        return self._engine.layer_size(self._name(sandbox_id)) if seen is None else seen

    def exec_stream(
        self, sandbox_id: str, argv: Sequence[str], *, stdin: Iterable[bytes] | None = None, user: str | None = None
    ) -> EngineExec:
        """Run a program beside the keeper.

        Errors: SandboxGone; BadRequest for an argument that holds a NUL, and, by the end of the output at the latest, for
        a user or a program that the image lacks.
        """
        check_argv(argv)
        doing = Doing(f"run {argv[0]} in sandbox {sandbox_id}")
        name, mark = self._name(sandbox_id), f"{_MARK}={secrets.token_hex(8)}"
        exec_id, answer = self._engine.exec(name, [*argv], user or "", doing, dict([mark.split("=")]))
        return EngineExec(
            answer,
            stdin,
            lambda head: self._exit_code(exec_id, head, doing),
            lambda: self._kill_marked(sandbox_id, mark),
        )

    def dial(self, sandbox_id: str, port: int, timeout: float) -> socket.socket:
        """Connect to a port of the container. Errors: SandboxGone, PortClosed; BadRequest, see `Dialer`."""
        return self._dialer.dial(sandbox_id, port, timeout)

    def watch(self, callback: Callable[[ContainerEvent], None], stop: Event) -> None:
        """Report what happens to our containers until `stop` is set; after a break it goes on where it was."""
        since = time.time()
        out_of_memory: set[str] = set()
        while not stop.is_set():
            with contextlib.suppress(Unavailable):  # the engine restarts: its events are told again from `since`
                for raw in self._engine.events(self._labels, since, lambda: not stop.is_set()):
                    since, event = event_of(raw, out_of_memory)
                    callback(event)
            stop.wait(_RECONNECT)

    def close(self) -> None:
        """Release connections."""
        self._engine.close()

    def _name(self, sandbox_id: str) -> str:
        return f"rock-{self.mark}-{check_name(sandbox_id, 'sandbox_id')}"

    def _attach(self, name: str, sandbox_id: str, doing: Doing) -> wire.AttachedStream:
        if self._engine.is_podman:
            return podman.attach(self._engine, name, sandbox_id, doing)
        return wire.AttachedStream(self._engine.attach(name, doing, stdin=True), sandbox_id)

    def _create(self, spec: ContainerSpec, doing: Doing) -> tuple[str, ...]:
        """Create the container; return what could not be enforced."""
        labels = {**self._labels, LABEL_SANDBOX: spec.sandbox_id}
        limited = spec if self._disk_limits else replace(spec, disk_bytes=None)
        image = self.images.facts(spec.image)
        piped = self._pipes.argv(self._boot_argv, spec)
        if piped:
            labels[main_process.LABEL_PIPE] = "pipe"
        body = create_body(
            limited, boot_argv=piped or self._boot_argv, labels=labels, image_env=image.env, ulimits=self._ulimits,
            podman=self._engine.is_podman,
        )  # fmt: skip
        # By its id: since it was prepared, its name may have been lent to another (Images.push).
        body["Image"] = image.id
        try:
            self._engine.create(self._name(spec.sandbox_id), body, doing)
        except NoDiskLimit:
            # Asked once: the storage driver does not change while the engine lives.
            self._disk_limits = False
            return self._create(spec, doing)
        return (NO_DISK_LIMIT,) if spec.disk_bytes and not limited.disk_bytes else ()

    def _start_again(self, spec: ContainerSpec, doing: Doing) -> ContainerState:
        """A container of this sandbox exists: an earlier attempt's, which a crash may have left created but not started."""
        # An engine reserves the name some milliseconds before the container can be seen.
        if not _wait_until(lambda: self.inspect(spec.sandbox_id).exists, 5.0):
            raise StartFailed(f"sandbox {spec.sandbox_id}: another attempt to start it failed at the same time")
        self._pipes.settle(self._name(spec.sandbox_id))
        state = self.inspect(spec.sandbox_id)
        if state.started_at and not state.running:
            raise AlreadyExists(f"sandbox {spec.sandbox_id} was started before and has ended; take another id")
        self._engine.start(self._name(spec.sandbox_id), doing)
        return self.inspect(spec.sandbox_id)

    def _check_architecture(self, spec: ContainerSpec, doing: Doing) -> None:
        """An image for another processor starts, and dies at once, unless the node emulates it: then look, else do not."""
        if doing.built_for in ("", doing.node_has):
            return
        if _wait_until(lambda: not self.inspect(spec.sandbox_id).running, 1.0):
            raise wrong_architecture("its main process ended at once", doing)

    def _measure(self, sandbox_id: str, facts: Mapping[str, Any]) -> dict[str, float]:
        counters = None
        if self._engine.endpoint.is_local:
            counters = cgroups.measure(facts["State"]["Pid"], facts["Id"])
        return {**(counters or measure(self._engine.stats(self._name(sandbox_id)))), "time": time.monotonic()}

    def _exit_code(self, exec_id: str, head: bytes, doing: Doing) -> int:
        # The output's end and the exit code come by different ways, the latter sometimes a little later.
        _wait_until(lambda: not self._engine.exec_state(exec_id)["Running"], 5.0, 0.005)
        code = self._engine.exec_state(exec_id)["ExitCode"]
        if code is None:
            raise Unavailable("the container engine does not say how a process ended")
        if code in (126, 127) and head.startswith(_NOT_STARTED):
            raise not_started(head.decode(errors="replace"), doing)
        return int(code)

    def _kill_marked(self, sandbox_id: str, mark: str) -> None:
        """End a process that was left, and its children. The engine's API cannot, so another process does it in there."""
        with contextlib.suppress(SandboxGone):  # then everything in it is gone as well
            answer = self._engine.exec(self._name(sandbox_id), killer(mark), "", Doing("end a file transfer"))[1]
            with EngineExec(answer, None, lambda head: 0, lambda: None, idle=10.0) as stream:
                for _ in stream:
                    continue


def _wait_until(ready: Callable[[], bool], seconds: float, interval: float = 0.02) -> bool:
    """Return True as soon as `ready` does, False after `seconds`."""
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() >= end:
            return False
        time.sleep(interval)
    return True
