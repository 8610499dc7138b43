"""The lifecycle side of a node: slow engine work. Starts, stops, deletions, transfers, statistics."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from app.blobs import BlobStore
from app.calls import Call, Route
from app.config import Config
from app.database import DatabaseAway
from app.nodes import Nodes
from app.records import Event, State
from app.starts import fail_start
from app.stores import Stores
from rock.errors import BadRequest, Internal, RockError, success
from workers.background import Background
from workers.commits import Commits
from workers.deployments.abstract import AbstractDeployment
from workers.disk_guard import DiskGuard
from workers.eviction import Eviction
from workers.forks import Forks
from workers.gate import Gate
from workers.image_calls import ImageCalls
from workers.pool import Pool
from workers.reaper import Reaper
from workers.starting import Starting
from workers.transfers import Transfers
from workers.turns import Turns

log = logging.getLogger(__name__)

MOVES = (Route.UPLOAD, Route.DOWNLOAD)

MOVING = 64
"""Large files that are on their way at the same time."""

LEFT_BEHIND = 5.0
"""Seconds after which work in flight that nobody here does counts as lost on its way."""


class NodeLifecycle:
    """What the lifecycle worker does for each task, and on its own."""

    def __init__(
        self, config: Config, stores: Stores, blobs: BlobStore, nodes: Nodes, deployment: AbstractDeployment
    ) -> None:
        """`nodes`: the way to the session side."""
        self._config, self.deployment = config, deployment
        self.results, self.sandboxes, self.node_store = stores.results, stores.sandboxes, stores.nodes
        self.turns = Turns()
        self.gate = Gate(config, stores.gates, stores.sandboxes, deployment, stores.results.clock)
        self.reaper = Reaper(config, stores.sandboxes, deployment, self.turns, self.gate.hold)
        self.disk_guard = DiskGuard(config, stores.sandboxes, deployment, self.reaper)
        self._transfers = Transfers(stores.results, blobs, deployment)
        # They go as fast as who is at the other end, who may have gone: the threads that stop sandboxes cannot wait for that.
        self._moving = Background(stores.results, MOVING, lambda call: self._guarded(call, self._transfers.move))
        self.commits = Commits(config, stores.results, stores.sandboxes, stores.images, deployment, self.turns)
        self._starting = Starting(config, stores, nodes, deployment, self.turns, self._guarded, self.commits.resolved)
        self._image_store, self._eviction = stores.images, Eviction(config, stores.images, deployment)
        self.forks = Forks(config, stores, deployment, self.turns, self.reaper)
        # What is done again: as many at the same time as before. Starts may take minutes, and the rest must not wait for them.
        starts, others = (Background(stores.results, config.celery.lifecycle_threads, self._again) for _ in range(2))
        self.pool = Pool(config, stores, starts.begin, self.reaper.put_down, lambda: self._starting.is_busy)
        self.images = ImageCalls(stores.results, stores.images, deployment, self.pool.without)
        self._lost: dict[str, Callable[[str], None]] = {
            Route.START.value: starts.begin, Route.RESTART.value: starts.begin, Route.STOP.value: others.begin,
            Route.DELETE.value: others.begin, Route.REMOVE_IMAGE.value: others.begin, Route.STATISTICS.value: others.begin,
            Route.COMMIT.value: self.commits.begin, Route.FORK.value: self.forks.begin,
            Route.WARM.value: self.images.warm,
            Route.UPLOAD.value: self._transfers.give_up, Route.DOWNLOAD.value: self._transfers.give_up,
        }  # fmt: skip
        self._busy: set[str] = set()
        self._lock = threading.Lock()

    def start(self, call_id: str) -> None:
        """NodeTask.START: image, container; then the session side takes over."""
        starting = self._starting
        if not starting.holds(call_id):
            self._take(
                call_id, lambda call: (starting.restart if call.route == Route.RESTART else starting.start)(call)
            )

    def stop(self, call_id: str) -> None:
        """NodeTask.STOP: end the sandbox; its container is kept for a while, or removed. Answered when that is done."""
        self._take(call_id, self._stop)

    def delete(self, call_id: str) -> None:
        """NodeTask.DELETE: remove what a stop has kept of a sandbox."""
        self._take(call_id, self._delete)

    def remove_image(self, call_id: str) -> None:
        """NodeTask.REMOVE_IMAGE: remove an image from the node."""
        self._take(call_id, self.images.remove)

    def transfer(self, call_id: str) -> None:
        """NodeTask.TRANSFER: stream a file into the sandbox, or out of it."""
        self._moving.begin(call_id)

    def statistics(self, call_id: str) -> None:
        """NodeTask.STATISTICS: what the sandbox uses."""
        self._take(call_id, self._statistics)

    def watch_disk(self, now: float) -> None:
        """Look at the disk while images are fetched."""
        self._starting.watch_disk(now)

    def tell_images(self, now: float) -> None:
        """Write down which images the engine has; those of starts are noted at once."""
        self.node_store.set_images(self._config.node.id, self.deployment.images.names())

    def tend_images(self, now: float) -> None:
        """Put right what pushes have left, make room on the disk if need be, and write down which images are left."""
        self.commits.settle(now)
        self._eviction.run(now)
        self.tell_images(now)

    def recover(self, now: float, *, all: bool = False) -> int:
        """Begin again what is in flight on this node and was lost on its way; return how many calls."""
        taken = 0
        # By the time at which they came to this node: a start may have waited for room for long before.
        for call_id in self.results.inflight(self._config.node.id, now if all else now - LEFT_BEHIND):
            call = self.results.load(call_id)
            if call is None or call.done or call.route not in self._lost or self._is_busy(call_id):
                continue
            if call.is_start and self._has_container(call):
                continue  # with the session side
            if call.route in MOVES and ("content_base64" in call.body or not all):
                continue
            self._lost[call.route](call_id)
            taken += 1
        return taken

    def _again(self, call: Call) -> None:
        """Carry out a call that was lost on its way."""
        work: dict[str, Callable[[str], None]] = {
            Route.START.value: self.start, Route.RESTART.value: self.start, Route.STOP.value: self.stop,
            Route.DELETE.value: self.delete, Route.REMOVE_IMAGE.value: self.remove_image,
            Route.STATISTICS.value: self.statistics,
        }  # fmt: skip
        work[call.route](call.call_id)

    def _is_busy(self, call_id: str) -> bool:
        with self._lock:
            return call_id in self._busy or self._starting.holds(call_id) or self._moving.holds(call_id)

    def _has_container(self, call: Call) -> bool:
        record = self.sandboxes.get(call.sandbox_id)
        return record is not None and record.start_call == call.call_id and record.has_container

    def _take(self, call_id: str, work: Callable[[Call], None]) -> None:
        """Do `work` on a call that waits for its answer, unless it is being done; a failure is its answer."""
        with self._lock:
            if call_id in self._busy:
                return
            self._busy.add(call_id)
        try:
            call = self.results.take(call_id, self.results.clock())
            if call is not None:
                self._guarded(call, work)
        finally:
            with self._lock:
                self._busy.discard(call_id)

    def _guarded(self, call: Call, work: Callable[[Call], None]) -> None:
        try:
            work(call)
        except DatabaseAway:
            # It stays in flight, and `recover` does it again: no fault of the call's, and no answer could be stored.
            log.warning("%s put off until Redis is back", call.route, extra=call.about)
        except RockError as error:
            self._failed(call, error)
        except Exception as error:
            log.exception("%s failed", call.route, extra=call.about)
            text = f"the node failed to {call.route} ({type(error).__name__}); see its log"
            self._failed(call, Internal(text, sandbox_id=call.sandbox_id))

    def _failed(self, call: Call, error: RockError) -> None:
        if call.is_start and self._starting.goes_elsewhere(call, error):
            return
        if call.is_start:
            fail_start(self.sandboxes, self.results, call, error, self.results.clock())
        elif not self.results.fail(call.call_id, error, self.results.clock()):
            log.warning("%s answered, and then: %s", call.route, error, extra=call.about)

    def _stop(self, call: Call) -> None:
        # Done again after a crash, it may come when the sandbox has been started again already.
        life, now = call.life, self.results.clock()
        # The record first: the session side must find the end asked for when the stream breaks.
        self.sandboxes.transition(
            call.sandbox_id, [State.PENDING, State.RUNNING], State.STOPPED, Event.STOP, now,
            only_start=life, reason="stop was called",
        )  # fmt: skip
        answer = success(f"Sandbox {call.sandbox_id} is stopped")
        self.reaper.put_down(
            call.sandbox_id, life, now, lambda: self.results.complete(call.call_id, answer, self.results.clock())
        )
        log.info("sandbox stopped", extra={**call.about, "seconds": round(self.results.clock() - call.created, 3)})

    def _delete(self, call: Call) -> None:
        with self.turns.of(call.sandbox_id):
            record = self.sandboxes.get(call.sandbox_id)
            if record is not None and record.state in (State.PENDING, State.RUNNING):
                text = f"Sandbox {call.sandbox_id} is {record.state.value}; stop it first"
                raise BadRequest(text, sandbox_id=call.sandbox_id)
            self.deployment.remove(call.sandbox_id)
            if record is not None and record.state is State.STOPPED:
                self.sandboxes.transition(
                    call.sandbox_id, [State.STOPPED], State.DELETED, Event.DELETE, self.results.clock(),
                    only_start=record.start_call,
                )  # fmt: skip
        self.results.complete(call.call_id, success(f"Sandbox {call.sandbox_id} is deleted"), self.results.clock())
        log.info("sandbox deleted", extra=call.about)

    def _statistics(self, call: Call) -> None:
        usage = self.deployment.statistics(call.sandbox_id)
        result = {"cpu": usage.cpu, "mem": usage.mem, "disk": usage.disk, "net": usage.net}
        self.results.complete(call.call_id, success(result), self.results.clock())
