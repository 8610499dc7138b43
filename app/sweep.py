"""One pass that repairs what lost processes left: calls of dead nodes, overdue calls, leases nobody reaps, starts nobody lets go.

Beat runs it every few seconds, on any node. Each step is idempotent, so two sweeps at once do no harm.
"""

import logging
import time
from collections.abc import Sequence

from app.broker import SWEEP_EVERY
from app.calls import Call, CallState
from app.records import Event, NodeRecord, SandboxRecord, State
from app.starts import fail_start, hopeless, no_room
from app.stores import Stores
from app.watch import node_lost
from rock.errors import RockError, StartTimeout, Unavailable

log = logging.getLogger(__name__)

# Seconds after which a silent node that holds nothing is forgotten, unless it has signed off.
FORGET_AFTER = 24 * 3600.0


class Sweep:
    """The repairing pass over all nodes and lines."""

    def __init__(self, stores: Stores) -> None:
        self._results, self._sandboxes = stores.results, stores.sandboxes
        self._nodes, self._line = stores.nodes, stores.line
        self._ran = float("-inf")

    def tick(self) -> None:
        """Sweep, unless this process has just done so: after a time without workers many are due at once. Raises Unavailable."""
        if time.monotonic() - self._ran >= SWEEP_EVERY / 2:
            self._ran = time.monotonic()
            self.run(self._results.clock())

    def run(self, now: float) -> int:
        """Sweep all nodes and lines at `now` (epoch seconds); return how many calls were answered. Raises Unavailable."""
        answered, alive = 0, []
        for node in self._nodes.list():
            lost = self._nodes.is_lost(node, now)
            calls = self._results.heads(self._results.inflight(node.node_id))
            answered += self._answer(node, calls, lost, now)
            if not lost:
                alive += [node] if self._nodes.is_alive(node, now) else []
                continue
            self._expire(self._sandboxes.by_node(node.node_id), now)
            # One that signed off is not expected back; a heartbeat meanwhile saves it.
            silent_since = node.heartbeat + 0.001 if node.left else now - FORGET_AFTER
            if self._nodes.forget(node.node_id, silent_since):
                log.info("node %s was forgotten: gone, and empty", node.node_id)
        return answered + self._lines(alive, now)

    def _answer(self, node: NodeRecord, calls: Sequence[Call], lost: bool, now: float) -> int:
        """Answer the node's calls that will not be answered by it; return how many."""
        answered = 0
        for call in calls:
            error = node_lost(node.node_id) if lost else overdue(call, now)
            if error is None:
                continue
            if call.is_start:
                event = Event.NODE_LOST if lost else Event.START_FAILED
                answered += fail_start(self._sandboxes, self._results, call, error, now, event)
            else:
                answered += self._results.fail(call.call_id, error, now, only_pending=not lost)
        if answered:
            log.warning("node %s: %d calls were answered in its place (lost: %s)", node.node_id, answered, lost)
        return answered

    def _expire(self, records: Sequence[SandboxRecord], now: float) -> None:
        """End what a silent node cannot: leases that are over, starts. It removes the containers when it is back."""
        for record in records:
            if record.state is State.RUNNING and 0 < record.expires <= now:
                self._sandboxes.transition(
                    record.sandbox_id, [State.RUNNING], State.STOPPED, Event.EXPIRED, now,
                    only_start=record.start_call, only_expired=True, reason="the idle lease ended",
                )  # fmt: skip
            elif record.state is State.PENDING:
                # Its caller was answered already, by a process that ended before it could do this; the call is out of the node's hands.
                self._sandboxes.transition(
                    record.sandbox_id, [State.PENDING], State.STOPPED, Event.NODE_LOST, now,
                    only_start=record.start_call, reason=node_lost(record.node).message,
                )  # fmt: skip

    def _lines(self, alive: list[NodeRecord], now: float) -> int:
        """Let go whose turn it is, and end the starts that waited long enough, or for nothing; return how many ended."""
        self._line.advance(now)
        ended = 0
        for record in self._sandboxes.many(self._line.overdue(now)):
            ended += self._end_waiting(record, no_room(record, alive, now - record.created), now)
        for record in self._sandboxes.many(self._line.heads()):
            error = hopeless(record, alive)
            if error is not None:
                ended += self._end_waiting(record, error, now)
        return ended

    def _end_waiting(self, record: SandboxRecord, error: RockError, now: float) -> bool:
        """End a start that still waits for room; True if this did."""
        calls = self._results.heads([record.start_call])
        return bool(calls) and fail_start(self._sandboxes, self._results, calls[0], error, now, only_waiting=True)


def overdue(call: Call, now: float) -> RockError | None:
    """Return the error for a call that is beyond its deadline, None when it may go on.

    A start is over at its deadline whatever its node does; any other call only if no node has taken it.
    """
    if call.deadline is None or now < call.deadline:
        return None
    if call.is_start:
        waited = call.deadline - call.created
        return StartTimeout(f"the sandbox did not start within {waited:.0f} s", sandbox_id=call.sandbox_id)
    if call.state is not CallState.PENDING:
        return None
    text = f"the node did not take the call within {call.deadline - call.created:.0f} s; it was not run"
    return Unavailable(text, sandbox_id=call.sandbox_id, node=call.node)
