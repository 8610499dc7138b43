"""One pass that repairs what lost processes left: calls of dead nodes, overdue calls, leases nobody reaps.

Beat runs it every few seconds, on any node. Each step is idempotent, so two sweeps at once do no harm.
"""

import logging
from collections.abc import Sequence

from app.calls import Call, CallState
from app.records import Event, NodeRecord, SandboxRecord, State
from app.results import ResultStore
from app.store import NodeStore, SandboxStore
from app.watch import node_lost
from rock.errors import RockError, StartTimeout, Unavailable

log = logging.getLogger(__name__)

# Seconds after which a silent node that holds nothing is forgotten, unless it has signed off.
FORGET_AFTER = 24 * 3600.0


class Sweep:
    """The repairing pass over all nodes."""

    def __init__(self, results: ResultStore, sandboxes: SandboxStore, nodes: NodeStore) -> None:
        self._results, self._sandboxes, self._nodes = results, sandboxes, nodes

    def run(self, now: float) -> int:
        """Sweep all nodes at `now` (epoch seconds); return how many calls were answered. Raises Unavailable."""
        answered = 0
        for node in self._nodes.list():
            lost = self._nodes.is_lost(node, now)
            calls = self._results.heads(self._results.inflight(node.node_id))
            answered += self._answer(node, calls, lost, now)
            if lost:
                self._expire(self._sandboxes.by_node(node.node_id), now)
                # One that signed off is not expected back; a heartbeat meanwhile saves it.
                silent_since = node.heartbeat + 0.001 if node.left else now - FORGET_AFTER
                if self._nodes.forget(node.node_id, silent_since):
                    log.info("node %s was forgotten: gone, and empty", node.node_id)
        return answered

    def _answer(self, node: NodeRecord, calls: Sequence[Call], lost: bool, now: float) -> int:
        """Answer the node's calls that will not be answered by it; return how many."""
        answered = 0
        for call in calls:
            error = node_lost(node.node_id) if lost else overdue(call, now)
            if error is None:
                continue
            if call.is_start:
                self.end_start(call, error, Event.NODE_LOST if lost else Event.START_FAILED, now)
            answered += self._results.fail(call.call_id, error, now, only_pending=not lost and not call.is_start)
        if answered:
            log.warning("node %s: %d calls were answered in its place (lost: %s)", node.node_id, answered, lost)
        return answered

    def end_start(self, call: Call, error: RockError, event: Event, now: float) -> bool:
        """Stop a sandbox that is still starting, so that a late success of its node is discarded."""
        return self._sandboxes.transition(
            call.sandbox_id, [State.PENDING], State.STOPPED, event, now, only_start=call.call_id, reason=error.message
        )

    def _expire(self, records: Sequence[SandboxRecord], now: float) -> None:
        """End the leases that are over on a node that cannot do it; it removes the containers when it is back."""
        for record in records:
            if record.state is State.RUNNING and 0 < record.expires <= now:
                self._sandboxes.transition(
                    record.sandbox_id, [State.RUNNING], State.STOPPED, Event.EXPIRED, now,
                    only_start=record.start_call, only_expired=True, reason="the idle lease ended",
                )  # fmt: skip


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
