"""Record → what clients see: the only mapping between the two. Pure."""

from datetime import UTC, datetime, tzinfo
from typing import Any

from app.records import Commit, PhaseName, SandboxRecord, State
from rock.actions import CommitPhase, CommitStatusResponse, StartResponse, StatusResponse, dump

# Seconds for which a start that failed is shown to callers who did not ask for ended sandboxes.
FAILED_START_SHOWN = 600.0


def is_visible(record: SandboxRecord, include_all_states: bool, now: float) -> bool:
    """Return whether status shows the record: living ones always, ended ones on request or when a start has just failed."""
    if record.state in (State.PENDING, State.RUNNING) or include_all_states:
        return True
    return record.failed_start and now - record.stopped < FAILED_START_SHOWN


def to_status(record: SandboxRecord, node_alive: bool, zone: tzinfo = UTC) -> dict[str, Any]:
    """Return the StatusResponse of a record as an object of the wire.

    Beyond the contract it tells `runtime`, `isolated` (false for the local deployment), `notes` (what was asked for and is not
    enforced as asked) and a `message`.
    """
    running = record.state is State.RUNNING
    known: dict[str, Any] = {name: record.spec.get(name) for name in _FROM_SPEC}
    known.update({name: record.identity.get(name) for name in _FROM_IDENTITY})
    response = StatusResponse(
        sandbox_id=record.sandbox_id, state=record.state, is_alive=running and node_alive,
        host_name=record.host_name, host_ip=record.host_ip, port_mapping=dict(record.port_mapping),
        status=phases(record, zone), cpus=record.cpus, metadata=record.spec.get("metadata") or {},
        create_time=iso(record.created, zone), start_time=iso(record.started, zone), stop_time=iso(record.stopped, zone),
        delete_time=iso(record.deleted, zone), auto_delete_time=iso(delete_time(record), zone),
        auto_stop_time=iso(record.expires, zone) if running else None, **known,
    )  # fmt: skip
    shown = dump(response)
    shown["state_history"] = [{**entry, "timestamp": iso(float(entry["timestamp"]), zone)} for entry in record.history]
    shown["runtime"], shown["isolated"] = record.runtime or None, record.runtime != "local"
    shown["notes"] = record.container.get("notes", [])
    shown["message"] = message(record, node_alive)
    return shown


_FROM_SPEC = ("image", "memory", "disk", "limit_cpus", "num_gpus", "accelerator_type")
_FROM_IDENTITY = ("user_id", "experiment_id", "namespace", "cluster")


def to_commit(sandbox_id: str, commit: Commit, zone: tzinfo = UTC) -> dict[str, Any]:
    """Return the CommitStatus of a commit as an object of the wire."""
    ended = commit.phase is not CommitPhase.RUNNING
    return dump(
        CommitStatusResponse(
            sandbox_id=sandbox_id, image_tag=commit.image_tag, phase=commit.phase, started_at=iso(commit.started, zone),
            completed_at=iso(commit.completed, zone), exit_code=int(commit.phase is CommitPhase.FAILED) if ended else None,
            failed_stage=commit.stage or None, error_code=commit.code or None, error_message=commit.message or None,
        )
    )  # fmt: skip


def delete_time(record: SandboxRecord) -> float:
    """Return when the container and files of a stopped sandbox are deleted (epoch seconds), 0 when nothing is kept."""
    return record.stopped + record.retention if record.state is State.STOPPED and record.kept else 0.0


def phases(record: SandboxRecord, zone: tzinfo = UTC) -> dict[str, dict[str, Any]]:
    """Return all phases of the start by name; those not begun are waiting."""
    blank = {"status": "waiting", "message": "", "started_at": None, "completed_at": None}
    shown = {}
    for name in PhaseName:
        phase = {**blank, **record.phases.get(name.value, {})}
        for stamp in ("started_at", "completed_at"):
            phase[stamp] = iso(float(phase[stamp] or 0), zone)
        shown[name.value] = phase
    if record.waits:
        shown[PhaseName.IMAGE_PULL.value]["message"] = _waits(record)
    return shown


def message(record: SandboxRecord, node_alive: bool) -> str:
    """Return in words how the sandbox is."""
    if record.waits:
        return f"{record.state.value} {_waits(record)}"
    if record.state in (State.PENDING, State.RUNNING) and not node_alive:
        return f"node {record.node} does not answer (node lost)"
    if record.state is State.RUNNING:
        return "running" if record.runtime != "local" else "running as plain processes of the node: no isolation"
    return " ".join(filter(None, [record.state.value, record.stop_event and f"({record.stop_event})", record.reason]))


def _waits(record: SandboxRecord) -> str:
    """Return in words where a start is that has no node yet."""
    return "waiting for capacity" + (f": position {record.place}" if record.place else "")


def to_start(record: SandboxRecord) -> dict[str, Any]:
    """Return the StartResponse of a record as an object of the wire."""
    return dump(
        StartResponse(
            sandbox_id=record.sandbox_id, host_name=record.host_name, host_ip=record.host_ip, cpus=record.cpus,
            memory=record.spec.get("memory"), disk=record.spec.get("disk"),
        )
    )  # fmt: skip


def iso(moment: float, zone: tzinfo = UTC) -> str | None:
    """Return an epoch time as ISO 8601 with zone; None for 0 (not yet)."""
    return datetime.fromtimestamp(moment, zone).isoformat(timespec="milliseconds") if moment else None
