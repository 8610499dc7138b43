"""Bringing up sandboxes on a node: have the image, make the container, hand over to the session side."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from app.broker import NodeTask
from app.calls import Call, Route
from app.config import Config
from app.database import DatabaseAway
from app.nodes import Nodes
from app.placement import could_take
from app.records import PhaseName, PhaseStatus, State
from app.references import is_own
from app.stores import Stores
from rock.actions import StartRequest, load
from rock.errors import AlreadyExists, ImageNotFound, RockError, SandboxGone, StartTimeout
from workers.agent import undo_start
from workers.background import Background
from workers.deployments.abstract import AbstractDeployment, ContainerState, Credentials, Pull
from workers.deployments.faults import NO_DISK_LIMIT, DiskFull, DiskFullForImage
from workers.fullness import Fullness
from workers.specs import policy_of, spec_of
from workers.turns import Turns

log = logging.getLogger(__name__)

FETCHING = 128
"""Starts that may wait for their images at the same time. A wait costs a sleeping thread; the engine itself fetches a few layers at a time."""

FULL_SECONDS = 60.0
"""For so long a node whose disk was full takes nothing new; meanwhile it looks for images that nobody needs."""

Made = tuple[ContainerState, list[dict[str, object]]]
"""A container's state, and its mounts for people."""


class Starting:
    """Carries out starts and restarts on one node, each call in the thread that brings it unless an image has to be fetched first."""

    def __init__(
        self, config: Config, stores: Stores, nodes: Nodes, deployment: AbstractDeployment, turns: Turns,
        guarded: Callable[[Call, Callable[[Call], None]], None], resolved: Callable[[StartRequest, str], StartRequest],
    ) -> None:  # fmt: skip
        """
        Params:
            nodes: the way to the session side.
            guarded: does work on a call, and makes its failure the call's answer.
            resolved: a request as its owner's images here have it (Commits.resolved).
        """
        self._config, self._nodes, self._deployment, self._turns = config, nodes, deployment, turns
        self._stores, self._clock, self._resolved = stores, stores.results.clock, resolved
        self._policy = policy_of(config)
        # Fetching takes minutes. The threads that bring starts also stop sandboxes, which cannot wait for that.
        self._fetching = Background(stores.results, FETCHING, lambda call: guarded(call, self._fetch_first))
        # An engine that makes many containers at once makes none of them quickly.
        self._makers = threading.BoundedSemaphore(config.celery.lifecycle_threads)
        self._rising: set[str] = set()
        self._fullness = Fullness(deployment)

    @property
    def is_busy(self) -> bool:
        """True while a container is being brought up."""
        return bool(self._rising)

    def holds(self, call_id: str) -> bool:
        """Return whether a start waits here for its image."""
        return self._fetching.holds(call_id)

    def start(self, call: Call) -> None:
        """Bring up a new sandbox. Errors: what keeps it from coming up."""
        if not self._still_pending(call):
            raise _stopped_meanwhile(call)  # Whoever did so has answered, unless that one died in between.
        self._phase(call, PhaseName.IMAGE_PULL, PhaseStatus.RUNNING, "looking for the image")
        request = self._resolved(load(StartRequest, call.body), call.owner)
        if request.pull == Pull.ALWAYS:
            self._fetching.begin(call.call_id)
            return
        try:
            self._prepare(call, request, Pull.NEVER, time.monotonic())
        except StartTimeout:
            # Somebody has the name alone. A push may take for ever, and this thread also stops sandboxes.
            self._fetching.begin(call.call_id)
        except ImageNotFound:
            if request.pull == Pull.NEVER:
                raise
            self._fetching.begin(call.call_id)
        else:
            self._with_image(call, request)

    def watch_disk(self, now: float) -> None:
        """Look at the disk while images are fetched, for `goes_elsewhere`; `now` does not matter."""
        if self._fetching.is_busy:
            self._fullness.look()

    def goes_elsewhere(self, call: Call, error: RockError) -> bool:
        """Have another node take a start for which this one's disk is full, and give this one nothing new for a while.

        Returns:
            False if the disk is not why it failed, there is no other node that could take it, or it was sent on often enough: then it has failed.
        """
        record, node, now = self._stores.sandboxes.get(call.sandbox_id), self._config.node.id, self._clock()
        if not isinstance(error, DiskFull | DiskFullForImage) or record is None or call.route != Route.START:
            return False
        if record.stock:  # of this node's own pool
            return False
        others = [one for one in could_take(record, self._stores.nodes.alive(now)) if one.node_id != node]
        if not any(one.is_active and one.full_until <= now for one in others):
            return False
        # The error is the engine's text, and a registry or the name of a path can put these words into it.
        if not self._fullness.is_full():
            return False
        moved = self._stores.line.displace(call, node, now, FULL_SECONDS)
        if moved:
            log.warning("start goes to another node: %s", error.message, extra=call.about)
        return moved

    def restart(self, call: Call) -> None:
        """Start a stopped container again. What ran in it, if anything still does, is of the life before."""
        self._phase(call, PhaseName.DOCKER_RUN, PhaseStatus.RUNNING, "starting the container again")
        record = self._stores.sandboxes.get(call.sandbox_id)

        def again() -> Made:
            before = record.container if record else {}
            state = self._deployment.restart(call.sandbox_id)
            return replace(state, notes=tuple(before.get("notes", ()))), before.get("mounts", [])

        self._bring_up(call, again)

    def _fetch_first(self, call: Call) -> None:
        request = self._resolved(load(StartRequest, call.body), call.owner)
        self._prepare(call, request, Pull(request.pull), self._deadline(call, request))
        self._with_image(call, request)

    def _with_image(self, call: Call, request: StartRequest) -> None:
        self._phase(call, PhaseName.IMAGE_PULL, PhaseStatus.SUCCESS, "the image is here")
        if time.monotonic() > self._deadline(call, request):
            raise StartTimeout(
                f"startup_timeout of {self._limit(request):g} s was over when the image was there",
                sandbox_id=call.sandbox_id,
            )
        self._phase(call, PhaseName.DOCKER_RUN, PhaseStatus.RUNNING, "starting the container")
        self._bring_up(call, lambda: self._fresh(call, request))

    def _limit(self, request: StartRequest) -> float:
        return request.startup_timeout or self._config.runtime.start_timeout_seconds

    def _deadline(self, call: Call, request: StartRequest) -> float:
        """Return the monotonic time at which the start is too late."""
        return time.monotonic() + self._limit(request) - (self._clock() - call.created)

    def _fresh(self, call: Call, request: StartRequest) -> Made:
        """Return a new container."""
        spec = spec_of(self._config, self._policy, call.sandbox_id, request)
        mounts = [
            {"type": mount.kind, "source": mount.source, "target": mount.target, "read_only": mount.read_only}
            for mount in spec.options.mounts
        ]
        try:
            return self._deployment.start(spec), mounts
        except AlreadyExists:
            # Left by an earlier life of this id, or by an attempt that died half-way.
            self._deployment.remove(call.sandbox_id)
            return self._deployment.start(spec), mounts

    def _bring_up(self, call: Call, make: Callable[[], Made]) -> None:
        """Have the container run, and hand over to the session side; undo it if that is not wanted any more."""
        with self._turns.of(call.sandbox_id), self._makers:
            if not self._still_pending(call):
                raise _stopped_meanwhile(call)
            self._rising.add(call.call_id)
            try:
                state, mounts = make()
                container = {"start": call.call_id, "deployment": self._deployment.name, "notes": self._notes(state)}
                kept = self._still_pending(call) and self._stores.sandboxes.set_container(
                    call.sandbox_id, container={**container, "mounts": mounts},
                    port_mapping={str(inside): outside for inside, outside in state.port_mapping.items()},
                    only_start=call.call_id,
                )  # fmt: skip
                if not kept:
                    raise _stopped_meanwhile(call)
            except DatabaseAway:
                raise  # Nobody knows whether the record has it: whoever takes the start up again finds it there.
            except BaseException:
                undo_start(self._deployment, call)
                raise
            finally:
                self._rising.discard(call.call_id)
        self._nodes.send(NodeTask.OPENED, call.call_id, self._config.node.id)

    def _notes(self, state: ContainerState) -> list[str]:
        """Return what is not as it was asked for, and what is done about that instead."""
        often = self._config.runtime.disk_check_seconds
        measured = (
            f": the node measures the files every {often:g} s, and stops what is above its limit" if often else ""
        )
        return [note + measured if note == NO_DISK_LIMIT else note for note in state.notes]

    def _still_pending(self, call: Call) -> bool:
        record = self._stores.sandboxes.get(call.sandbox_id)
        return record is not None and record.start_call == call.call_id and record.state is State.PENDING

    def _prepare(self, call: Call, request: StartRequest, pull: Pull, deadline: float) -> None:
        """Have the image here, by `deadline` (monotonic seconds)."""
        login = None
        if request.registry_username and request.registry_password:
            login = Credentials(request.registry_username, request.registry_password)
        self._deployment.prepare_image(
            request.image, pull=pull, credentials=login, deadline=deadline,
            progress=lambda text: self._phase(call, PhaseName.IMAGE_PULL, PhaseStatus.RUNNING, text),
        )  # fmt: skip
        if self._deployment.isolation and not is_own(request.image):  # the others have no images
            self._stores.nodes.add_image(self._config.node.id, request.image)
            self._stores.images.note_use(self._config.node.id, request.image, self._clock())

    def _phase(self, call: Call, phase: PhaseName, status: PhaseStatus, message: str) -> None:
        self._stores.sandboxes.set_phase(call.sandbox_id, phase, status, message, self._clock(), call.call_id)


def _stopped_meanwhile(call: Call) -> SandboxGone:
    return SandboxGone(f"Sandbox {call.sandbox_id} was stopped while it was starting", sandbox_id=call.sandbox_id)
