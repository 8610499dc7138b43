"""What the service answers: the `result` of a Success envelope, each in a class of its own."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from marshmallow import fields

from rock.actions.codec import schema_of
from rock.actions.fields import wire


def _text(default: str | None = None) -> Any:
    """Declare a text with a default."""
    return wire(fields.String(), default)


class ResponseStatus(StrEnum):
    """The envelope's `status`."""

    SUCCESS = "Success"
    FAILED = "Failed"


class State(StrEnum):
    """The life of a sandbox."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPED = "stopped"
    ARCHIVING = "archiving"
    ARCHIVED = "archived"
    DELETED = "deleted"


class PhaseStatus(StrEnum):
    """How far one phase of a start is."""

    WAITING = "waiting"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    TIMEOUT = "timeout"


class CommitPhase(StrEnum):
    """How far a commit is."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


@dataclass(kw_only=True)
class StartResponse:
    """Where a sandbox was placed, and what it was given."""

    sandbox_id: str = wire(fields.String())
    host_name: str | None = _text()
    host_ip: str | None = _text()
    cpus: float | None = wire(fields.Float(), None)
    memory: str | None = _text()
    disk: str | None = _text()


@dataclass(kw_only=True)
class IsAliveResponse:
    """Whether a sandbox runs; `bool()` of it says the same."""

    is_alive: bool = wire(fields.Boolean())
    message: str = _text("")

    def __bool__(self) -> bool:
        return self.is_alive


@dataclass(kw_only=True)
class Phase:
    """One phase of a start; a failed one's message says why. Times are ISO 8601 with zone."""

    status: PhaseStatus = wire(fields.Enum(PhaseStatus, by_value=True), PhaseStatus.WAITING)
    message: str = _text("")
    started_at: str | None = _text()
    completed_at: str | None = _text()


@dataclass(kw_only=True)
class StateTransition:
    """One move of a sandbox's state. The time is ISO 8601 with zone. Existing clients refuse null here."""

    from_state: str = _text("")
    to_state: str = _text("")
    event: str = _text("")
    timestamp: str = _text("")


def _phases() -> fields.Dict:
    """Return the field of the phases by name (`image_pull`, `docker_run`)."""
    # Loaded as plain dictionaries: existing clients index them (`status["image_pull"]["message"]`).
    return fields.Dict(keys=fields.String(), values=fields.Nested(lambda: schema_of(Phase)))


@dataclass(kw_only=True)
class StatusResponse:
    """All that is known of a sandbox. Times are ISO 8601 with zone."""

    sandbox_id: str = wire(fields.String())
    status: dict[str, dict[str, Any]] = wire(_phases(), factory=dict)
    state: State | None = wire(fields.Enum(State, by_value=True), None)
    is_alive: bool = wire(fields.Boolean(), False)
    host_name: str | None = _text()
    host_ip: str | None = _text()
    port_mapping: dict[str, Any] = wire(fields.Dict(), factory=dict)
    image: str | None = _text()
    metadata: dict[str, Any] = wire(fields.Dict(), factory=dict)
    user_id: str | None = _text()
    experiment_id: str | None = _text()
    namespace: str | None = _text()
    cluster: str | None = _text()
    cpus: float | None = wire(fields.Float(), None)
    limit_cpus: float | None = wire(fields.Float(), None)
    memory: str | None = _text()
    disk: str | None = _text()
    num_gpus: float | None = wire(fields.Float(), None)
    accelerator_type: str | None = _text()
    create_time: str | None = _text()
    start_time: str | None = _text()
    stop_time: str | None = _text()
    delete_time: str | None = _text()
    archive_time: str | None = _text()
    auto_stop_time: str | None = _text()
    auto_archive_time: str | None = _text()
    auto_delete_time: str | None = _text()
    state_history: list[StateTransition] = wire(
        fields.List(fields.Nested(lambda: schema_of(StateTransition))), factory=list
    )

    def __post_init__(self) -> None:
        """Turn a loaded history's objects into StateTransitions."""
        self.state_history = [
            StateTransition(**item) if isinstance(item, dict) else item for item in self.state_history
        ]


@dataclass(kw_only=True)
class SandboxListResponse:
    """One page of a list: `total` counts all pages."""

    items: list[Any] = wire(fields.List(fields.Nested(lambda: schema_of(StatusResponse))), factory=list)
    total: int = wire(fields.Integer(), 0)
    has_more: bool = wire(fields.Boolean(), False)


@dataclass(kw_only=True)
class BatchResponse:
    """The statuses of those sandboxes of a batch that are known."""

    statuses: list[Any] = wire(fields.List(fields.Nested(lambda: schema_of(StatusResponse))), factory=list)


@dataclass(kw_only=True)
class StatisticsResponse:
    """Use of a sandbox: percent of its own CPU and memory limit, percent of disk, bytes in and out."""

    cpu: float | None = wire(fields.Float(), None)
    mem: float | None = wire(fields.Float(), None)
    disk: float | None = wire(fields.Float(), None)
    net: int | None = wire(fields.Integer(), None)


@dataclass(kw_only=True)
class CreateBashSessionResponse:
    """A session is open; output is what its startup printed."""

    output: str = _text("")
    session_type: str = _text("bash")


@dataclass(kw_only=True)
class BashObservation:
    """The outcome of a session command; output has lost one trailing newline and nothing else."""

    output: str = _text("")
    exit_code: int | None = wire(fields.Integer(), None)
    failure_reason: str = _text("")
    expect_string: str = _text("")
    session_type: str = _text("bash")


@dataclass(kw_only=True)
class CloseBashSessionResponse:
    """A session is closed."""

    session_type: str = _text("bash")


@dataclass(kw_only=True)
class CommandResponse:
    """The outcome of `execute`, byte for byte as far as UTF-8 allows."""

    stdout: str = _text("")
    stderr: str = _text("")
    exit_code: int | None = wire(fields.Integer(), None)
    failure_reason: str = _text("")
    """What ended it, when that was neither itself nor its timeout (out of memory)."""


@dataclass(kw_only=True)
class ReadFileResponse:
    """A file's content."""

    content: str = _text("")


@dataclass(kw_only=True)
class WriteFileResponse:
    """A file is written."""

    success: bool = wire(fields.Boolean(), False)
    message: str = _text("")


@dataclass(kw_only=True)
class UploadResponse:
    """A file is uploaded."""

    success: bool = wire(fields.Boolean(), False)
    message: str = _text("")
    file_name: str = _text("")


@dataclass(kw_only=True)
class ExecuteBashSessionResponse:
    """The outcome of `run_nohup_and_wait`."""

    success: bool = wire(fields.Boolean(), False)
    message: str = _text("")


@dataclass(kw_only=True)
class FileResponse:
    """The outcome of a file helper (chown, chmod, download_file)."""

    success: bool = wire(fields.Boolean(), False)
    message: str = _text("")


@dataclass(kw_only=True)
class CommitStatusResponse:
    """How a commit stands. Times are ISO 8601 with zone."""

    sandbox_id: str = wire(fields.String())
    image_tag: str = wire(fields.String())
    phase: CommitPhase = wire(fields.Enum(CommitPhase, by_value=True))
    started_at: str | None = _text()
    completed_at: str | None = _text()
    exit_code: int | None = wire(fields.Integer(), None)
    failed_stage: str | None = _text()
    error_code: str | None = _text()
    error_message: str | None = _text()


@dataclass(kw_only=True)
class CloseResponse:
    """A client has let go of its sandbox."""


@dataclass(kw_only=True)
class UnfinishedResponse:
    """How a call stands (`pending`, `running`, `done`): GET /results/{request_id} has its end. `position`: the calls that its session runs before it, while it waits for them."""

    request_id: str = wire(fields.String())
    state: str = wire(fields.String())
    position: int | None = wire(fields.Integer(allow_none=True), None)


@dataclass(kw_only=True)
class OutputResponse:
    """A piece of a call's output; offsets count bytes."""

    output: str = _text("")
    offset: int = wire(fields.Integer(), 0)
    next_offset: int = wire(fields.Integer(), 0)
    done: bool = wire(fields.Boolean(), False)
    truncated: bool = wire(fields.Boolean(), False)
