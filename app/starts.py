"""The end of a start that does not come up: its phase, its record and its answer, in one place."""

import json
import logging

from app.calls import Call
from app.placement import could_take, shortage
from app.records import Event, NodeRecord, PhaseName, PhaseStatus, SandboxRecord, State, phase_field
from app.results import ResultStore
from app.store import SandboxStore
from rock.errors import NoCapacity, RockError

log = logging.getLogger(__name__)


def fail_start(
    sandboxes: SandboxStore, results: ResultStore, call: Call, error: RockError, now: float,
    event: Event = Event.START_FAILED, *, only_waiting: bool = False,
) -> bool:  # fmt: skip
    """End start `call` with `error`: the phase that was under way, the record, the answer.

    Params:
        now: epoch seconds.
        only_waiting: only if it still waits for room.
    Returns:
        True if it was starting still, and this ended it. A start that is over already keeps its answer.
    """
    record = sandboxes.get(call.sandbox_id)
    if record is None or record.start_call != call.call_id:
        return results.fail(call.call_id, error, now)
    if only_waiting and not record.waits:
        return False
    moved = sandboxes.transition(
        call.sandbox_id, [State.PENDING], State.STOPPED, event, now,
        only_start=call.call_id, only_waiting=only_waiting, reason=error.message,
        **_failed_phase(record, error, now),  # type: ignore[arg-type]  # a field, none of the options
    )  # fmt: skip
    if only_waiting and not moved:
        return False
    results.fail(call.call_id, error, now)
    log.warning("start failed", extra={**call.about, "kind": error.kind, "error": str(error)})
    return moved


def no_room(record: SandboxRecord, alive: list[NodeRecord], waited: float) -> NoCapacity:
    """Return the error for a start that found no room: what was short, and for how many seconds it waited."""
    text = (
        f"no room within {waited:.0f} s: {shortage(record, alive, record.place)}; try again when a sandbox has stopped"
    )
    return NoCapacity(text, sandbox_id=record.sandbox_id)


def hopeless(record: SandboxRecord, alive: list[NodeRecord]) -> NoCapacity | None:
    """Return the error for a waiting start for which no living node is large enough any more; None while there may be hope.

    It would hold up those behind it. With no node alive at all it waits on: most likely one comes back.
    """
    if not alive or could_take(record, alive):
        return None
    return NoCapacity(f"{shortage(record, alive, 0)}; the node that was has been lost", sandbox_id=record.sandbox_id)


def _failed_phase(record: SandboxRecord, error: RockError, now: float) -> dict[str, str]:
    """Return, as a field of the record, the phase that was under way, or else the first not begun: it says why the start failed."""
    for name in PhaseName:
        known = record.phases.get(name.value, {})
        if known.get("status") in (PhaseStatus.RUNNING.value, None):
            outcome = PhaseStatus.TIMEOUT if error.kind == "start_timeout" else PhaseStatus.FAILED
            entry = {"status": outcome.value, "message": error.message, "started_at": known.get("started_at") or now}
            return {phase_field(name.value): json.dumps({**entry, "completed_at": now})}
    return {}
