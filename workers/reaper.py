"""Ends what is over on a node: sandboxes whose lease has ended, containers of stopped ones, containers nobody wants."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from app.config import Config
from app.database import DatabaseAway
from app.records import Event, SandboxRecord, State
from app.store import SandboxStore
from rock.errors import RockError
from workers.deployments.abstract import AbstractDeployment
from workers.turns import Turns

log = logging.getLogger(__name__)

ADOPT_EVERY = 60.0
"""Seconds between comparisons of the engine with Redis: what a lost node or a crash left is found by them."""


class Reaper:
    """The clean-up of one node. Each pass may be repeated, and does its work one sandbox after the other; a failure ends none."""

    def __init__(
        self, config: Config, sandboxes: SandboxStore, deployment: AbstractDeployment, turns: Turns,
        hold: Callable[[float], None] = lambda now: None,
    ) -> None:  # fmt: skip
        """`hold`: renews the leases of sandboxes that are in use without a call; done before any is ended."""
        self._hold = hold
        self._node, self._most = config.node.id, config.runtime.keep_stopped_limit
        self._sandboxes, self._deployment, self._turns = sandboxes, deployment, turns
        self._adopted = 0.0
        # Longer without Redis, and others may have taken this node for lost.
        self._away_after = config.node.lost_after_seconds - config.node.heartbeat_seconds
        self._finished = time.monotonic()

    def run(self, now: float) -> None:
        """Do one round at `now` (epoch seconds).

        After a time without a whole round (Redis was out of reach, the machine slept) everything is compared: others may have
        taken this node for lost meanwhile, and have ended sandboxes that live here still.
        """
        self._hold(now)
        self.reap(now)
        self.retire(now)
        if now - self._adopted >= ADOPT_EVERY or time.monotonic() - self._finished > self._away_after:
            self.adopt(now)
        self._finished = time.monotonic()

    def reap(self, now: float) -> int:
        """Stop the sandboxes whose lease is over; return how many."""
        return sum(self._guarded(name, self._reap_one, now) for name in self._sandboxes.expired(self._node, now))

    def _reap_one(self, sandbox_id: str, now: float) -> bool:
        record = self._sandboxes.get(sandbox_id)
        moved = record is not None and self._sandboxes.transition(
            sandbox_id, [State.RUNNING], State.STOPPED, Event.EXPIRED, now, only_expired=True,
            only_start=record.start_call, reason="the idle lease ended",
        )  # fmt: skip
        if record is not None and moved:
            log.info("sandbox expired", extra={"sandbox_id": sandbox_id})
            # Should that fail, its container is found by a later pass, as one that was kept or one that nobody wants.
            self.put_down(sandbox_id, record.start_call, now)
        return moved

    def put_down(self, sandbox_id: str, life: str, now: float, ended: Callable[[], object] = lambda: None) -> None:
        """End what runs in a sandbox that has just been stopped. Its container stays if it is to be kept, else it goes.

        Params:
            life: the start call of the life that was stopped; a later one is left alone ("": whichever it is).
            ended: called when nothing of that life runs any more: an engine may take a while to remove the files.
                Where another has the sandbox's turn, when these have gone, too.
        """
        # The next life waits for the end of this one. This one's own start or commit may hold the turn for long, and a stop
        # does not wait for those: a start finds by itself that it is not wanted any more.
        with self._turns.of(sandbox_id, wait=False) as alone:
            record = self._sandboxes.get(sandbox_id)
            if _is_later(record, life):
                ended()
                return
            self._deployment.stop(sandbox_id)
            if record is not None and record.spec.get("auto_delete_seconds") == 0:
                self._deleted(record, now)
            kept = record is not None and record.state is State.STOPPED and record.kept
            if alone:
                ended()
            try:
                # Without the turn nothing keeps the next life back, whose container has the same name.
                if not kept and (alone or not _is_later(self._sandboxes.get(sandbox_id), life)):
                    # Should that fail, `adopt` finds a container that nobody wants.
                    self._deployment.remove(sandbox_id)
            finally:
                if not alone:
                    ended()  # whoever is told may begin the next life at once

    def retire(self, now: float) -> int:
        """Remove the containers of stopped sandboxes that were kept for long enough, or are too many; return how many."""
        retired = self._sandboxes.retired(self._node, now, self._most)
        return sum(self._guarded(name, self._retire_one, now) for name in retired)

    def _retire_one(self, sandbox_id: str, now: float) -> bool:
        with self._turns.of(sandbox_id):
            record = self._sandboxes.get(sandbox_id)
            here = record is not None and record.node == self._node
            if here and record is not None and record.state not in (State.STOPPED, State.DELETED):
                return False  # it was started again in the meantime
            self._deployment.remove(sandbox_id)
            if here and record is not None and record.kept:
                self._deleted(record, now)
            self._sandboxes.forget_stopped(self._node, sandbox_id)
            return True

    def adopt(self, now: float) -> int:
        """Compare the engine with Redis: remove containers nobody wants, write off sandboxes without one; return how many removed."""
        self._adopted = now
        containers = dict(self._deployment.list())
        records = {record.sandbox_id: record for record in self._sandboxes.many(containers)}
        removed = sum(
            self._guarded(name, self._look_at, alive, records.get(name)) for name, alive in containers.items()
        )
        for record in self._sandboxes.by_node(self._node):
            if record.state is State.RUNNING and not containers.get(record.sandbox_id):
                self._guarded(record.sandbox_id, self._write_off, record, now)
        return removed

    def _write_off(self, sandbox_id: str, record: SandboxRecord, now: float) -> bool:
        """Note the end of a sandbox that has no running container, unless it has come up since the list was made."""
        if self._deployment.inspect(sandbox_id).running:
            return False
        return self._sandboxes.transition(
            sandbox_id, [State.RUNNING], State.STOPPED, Event.GONE, now,
            only_start=record.start_call, reason="its container was not there when the node looked",
        )  # fmt: skip

    def _guarded(self, sandbox_id: str, work: Callable[..., bool], *args: object) -> bool:
        """Return what `work` on one sandbox does; what the engine refuses is logged, and must not keep the others from their end."""
        try:
            return work(sandbox_id, *args)
        except DatabaseAway:
            raise  # it would be the same for each of them
        except (RockError, OSError) as error:
            log.warning("clean-up failed, tried again in a later round: %s", error, extra={"sandbox_id": sandbox_id})
        return False

    def _look_at(self, sandbox_id: str, alive: bool, record: SandboxRecord | None) -> bool:
        """Put one container right; True if it was removed. Only a doubtful one costs a second look, in its turn."""
        if self._is_right(record, alive):
            return False
        with self._turns.of(sandbox_id):
            record = self._sandboxes.get(sandbox_id)
            if self._is_right(record, self._deployment.inspect(sandbox_id).running):
                return False
            if record is not None and record.node == self._node and record.state is State.STOPPED and record.kept:
                log.info("sandbox was stopped while the node was away", extra={"sandbox_id": sandbox_id})
                self._deployment.stop(sandbox_id)
                return False
            log.info("container that nobody wants removed", extra={"sandbox_id": sandbox_id})
            self._deployment.remove(sandbox_id)
            return True

    def _is_right(self, record: SandboxRecord | None, alive: bool) -> bool:
        """Return whether a container may stay as it is: its sandbox is starting or running, or kept after its end."""
        if record is None or record.node != self._node:
            return False
        if record.state in (State.PENDING, State.RUNNING):
            return True  # a running one whose container is dead is written off, and then kept as a stopped one
        return record.state is State.STOPPED and record.kept and not alive

    def _deleted(self, record: SandboxRecord, now: float) -> None:
        """Note that a stopped sandbox is no more."""
        log.info("sandbox deleted", extra={"sandbox_id": record.sandbox_id})
        self._sandboxes.transition(
            record.sandbox_id, [State.STOPPED], State.DELETED, Event.AUTO_DELETE, now, only_start=record.start_call
        )


def _is_later(record: SandboxRecord | None, life: str) -> bool:
    """Return whether a record is of another life than that which the start call `life` began ("": of whichever it is)."""
    return record is not None and bool(life) and record.start_call != life
