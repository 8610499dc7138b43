"""The warm pool of a node: sandboxes started ahead, one at a time, and ended when they are in the way (app/stock.py)."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator

from app.config import Config
from app.config_values import Pooled
from app.records import Event, NodeRecord, SandboxRecord, State
from app.references import canonical
from app.stock import OWNER, mark_of
from app.stores import Stores
from rock.actions import StartRequest
from rock.errors import Forbidden, SandboxGone

log = logging.getLogger(__name__)

LOOK_EVERY = 0.25
"""Seconds between two looks at the pool, which is also the least time between two starts for it."""
UNDONE = 5.0
"""Seconds that a node which ends gives the start of a pooled sandbox to undo itself."""
LONGEST_PAUSE = 60.0
"""Seconds, at most, before what failed to start is tried again."""


class Kind:
    """One kind of pooled sandbox, and how its starts go."""

    def __init__(self, wanted: Pooled) -> None:
        self.request: StartRequest = wanted.request()
        self.count, self.mark, self.image = wanted.count, mark_of(self.request), canonical(wanted.image)
        self.last_call = ""
        self._failures, self._not_before = 0, 0.0

    def fits(self, cpus: float, memory: int) -> int:
        """Return how many of them fit into so many CPUs and bytes, at most the wanted number."""
        return max(0, min(self.count, int(cpus / self.request.cpus + 1e-9), memory // self.request.memory_bytes()))

    def may_start(self, now: float) -> bool:
        """Return whether it is time for another one: after failures it is tried less and less often."""
        return now >= self._not_before

    def ended(self, failed: bool, now: float) -> None:
        """Note how the last start ended."""
        self._failures = self._failures + 1 if failed else 0
        self._not_before = now + min(LONGEST_PAUSE, 2.0**self._failures) if failed else 0.0
        self.last_call = ""


class Pool:
    """Keeps a node's pool as the configuration wants it, as far as there is room.

    It starts one sandbox at a time, and none while the node brings up somebody's. Pooled sandboxes reserve nothing: what takes their room finds it,
    and here they are ended as soon as that is seen.
    """

    def __init__(
        self, config: Config, stores: Stores, start: Callable[[str], None], end: Callable[[str, str, float], None],
        is_busy: Callable[[], bool],
    ) -> None:  # fmt: skip
        """
        Params:
            start: has a start call carried out, in a thread of its own: a pull may take minutes.
            end: removes the container of a sandbox that was stopped: its id, its life, the time.
            is_busy: whether somebody's sandbox is being brought up now.
        """
        self._node, self._limit = config.node.id, config.runtime.start_timeout_seconds
        self._stores, self._start, self._end, self._is_busy = stores, start, end, is_busy
        self._kinds = {kind.mark: kind for kind in map(Kind, config.pool.sandboxes)}
        self._removing: Counter[str] = Counter()
        self._looked = False

    def look(self, now: float) -> None:
        """End what is too much, or start one that is missing. Raises Unavailable."""
        self._looked = True
        if not self._kinds and not self._stores.stock.ids(self._node):
            return
        node = self._stores.nodes.get(self._node)
        if node is None:
            return
        self._learn(now)
        records = [one for one in self._stores.sandboxes.many(self._stores.stock.ids(self._node)) if one.stock]
        wanted = self._wanted(node)
        have: Counter[str] = Counter()
        for record in records:
            have[record.stock] += 1
            if have[record.stock] > wanted.get(record.stock, 0):
                self._discard(record, now, "the node has no room or use for it")
        if any(record.state is State.PENDING for record in records) or self._is_busy():
            return
        for mark, kind in self._kinds.items():
            if have[mark] < wanted[mark] and kind.may_start(now) and not self._removing[kind.image]:
                self._fill(kind, node, now)
                return

    @contextlib.contextmanager
    def without(self, image: str) -> Iterator[None]:
        """Have no pooled sandbox of an image while the context lasts: it is being removed. One that is just starting stays."""
        name = canonical(image)
        self._removing[name] += 1
        try:
            marks = {mark for mark, kind in self._kinds.items() if kind.image == name}
            for record in self._stores.sandboxes.many(self._stores.stock.ids(self._node) if marks else ()):
                if record.stock in marks:
                    self._discard(record, self._stores.results.clock(), f"image {name} is being removed")
            yield
        finally:
            self._removing[name] -= 1

    def close(self, now: float) -> None:
        """End all of the pool: the node ends in good order, and may not come back. Raises Unavailable."""
        if not self._looked:
            return  # this process never held the node
        for record in self._stores.sandboxes.many(self._stores.stock.ids(self._node)):
            self._discard(record, now, "the node ends", starting=True)
        # One that is just being made is found unwanted by its own thread, which needs a moment to undo it.
        end = time.monotonic() + UNDONE
        while self._is_busy() and time.monotonic() < end:
            time.sleep(0.02)

    def _wanted(self, node: NodeRecord) -> dict[str, int]:
        """Return how many of each kind the node is to have: what is configured, as far as it has room, in that order."""
        if not node.is_active:
            return dict.fromkeys(self._kinds, 0)
        wanted, cpus, memory = {}, node.cpus - node.used_cpus, node.memory - node.used_memory
        for mark, kind in self._kinds.items():
            wanted[mark] = kind.fits(cpus, memory)
            cpus -= wanted[mark] * kind.request.cpus
            memory -= wanted[mark] * kind.request.memory_bytes()
        return wanted

    def _fill(self, kind: Kind, node: NodeRecord, now: float) -> None:
        """Start one of a kind."""
        try:
            self._stores.images.only_node(kind.image, OWNER)
        except Forbidden as error:
            # Under that name the node has, or may get, what a user made.
            log.warning("not pooled: %s", error.message, extra={"image": kind.image})
            kind.ended(True, now)
            return
        call = self._stores.stock.begin(kind.request, node, self._limit, now)
        kind.last_call = call.call_id
        self._start(call.call_id)

    def _learn(self, now: float) -> None:
        """See how the starts went that were begun here."""
        for kind in self._kinds.values():
            call = self._stores.results.load(kind.last_call) if kind.last_call else None
            if call is not None and call.done:
                answer = call.envelope or {}
                failed = answer.get("status") != "Success"
                if failed:
                    log.warning("pooled sandbox did not start: %s", answer.get("error"), extra={"image": kind.image})
                kind.ended(failed, now)

    def _discard(self, record: SandboxRecord, now: float, why: str, *, starting: bool = False) -> None:
        """End a pooled sandbox, unless somebody has just taken it; `starting`: one that has not come up yet as well."""
        living = [State.PENDING, State.RUNNING] if starting else [State.RUNNING]
        moved = self._stores.sandboxes.transition(
            record.sandbox_id, living, State.STOPPED, Event.STOP, now, only_stock=True, reason=why
        )
        if moved:
            self._stores.results.fail(record.start_call, SandboxGone(f"pooled sandbox {record.sandbox_id}: {why}"), now)
            log.info("pooled sandbox ended: %s", why, extra={"sandbox_id": record.sandbox_id})
            self._end(record.sandbox_id, record.start_call, now)
