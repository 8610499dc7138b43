"""What clients send. Defaults and ranges are written here and nowhere else."""

from __future__ import annotations

import re
from dataclasses import dataclass

from marshmallow import fields

from rock.actions.fields import (
    Choice,
    Flag,
    Labels,
    Number,
    Size,
    Text,
    TextOrTexts,
    Texts,
    Variables,
    Whole,
    image_name,
    label,
    path_text,
    sandbox_name,
    seconds,
    wire,
)
from rock.actions.units import parse_disk, parse_memory
from rock.errors import BadRequest

USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?")
"""A user of an image, by name or number, perhaps with a group: one word, and data wherever it goes."""


@dataclass(kw_only=True)
class Call:
    """What every mutating request may carry."""

    request_id: str | None = wire(label(200), None)
    """The caller's own id of this call: the same one sent again attaches to the first."""


@dataclass(kw_only=True)
class WaitingCall(Call):
    """A call that may be left unfinished."""

    wait: float | None = wire(seconds(above=False), None)
    """Seconds to wait for the end; None: until done, 0: answer at once."""


@dataclass(kw_only=True)
class StartRequest(WaitingCall):
    """POST /start and /start_async."""

    image: str = wire(image_name())
    image_os: str = wire(Choice("linux"), "linux")
    sandbox_id: str | None = wire(sandbox_name(), None)
    memory: str = wire(Size(), "8g")
    """Hard limit, swap pinned to it."""
    cpus: float = wire(Number(low=0.01, high=4096), 2.0)
    """Reserved on the node, and the hard quota unless limit_cpus is given."""
    limit_cpus: float | None = wire(Number(low=0.01, high=4096), None)
    disk: str | None = wire(Size(), "50G", null_is_value=True)
    """Limit of the writable layer; None: no limit."""
    num_gpus: float | None = wire(Number(high=1024), None)
    accelerator_type: str | None = wire(label(), None)
    startup_timeout: float | None = wire(seconds(), None)
    """Seconds over pull and start; None: the server's own."""
    auto_clear_seconds: float | None = wire(seconds(), None)
    auto_clear_time_minutes: float | None = wire(Number(above=True, high=525_600, unit=" minutes"), None)
    auto_clear_time: float | None = wire(Number(above=True, high=525_600, unit=" minutes"), None)
    """Old name of auto_clear_time_minutes."""
    auto_archive_seconds: int | None = wire(Whole(high=31_536_000, unit=" seconds"), None)
    auto_delete_seconds: int | None = wire(Whole(high=31_536_000, unit=" seconds"), None)
    pull: str = wire(Choice("missing", "never", "always"), "missing")
    registry_username: str | None = wire(Text(longest=1024), None)
    registry_password: str | None = wire(Text(longest=65_536), None, secret=True)
    docker_args: list[str] = wire(Texts(most=1000), factory=list)
    route_key: str | None = wire(label(), None)
    """Sandboxes with one key go to one node."""
    use_kata_runtime: bool = wire(Flag(), False)
    runtime: str | None = wire(label(64), None)
    """A container runtime that the node's configuration names (runsc, kata)."""
    env: dict[str, str] = wire(Variables(), factory=dict)
    metadata: dict[str, object] = wire(Labels(), factory=dict)

    def __post_init__(self) -> None:
        """Refuse what no single field can: raises BadRequest."""
        if self.auto_archive_seconds is not None and self.auto_delete_seconds is not None:
            raise BadRequest("auto_archive_seconds and auto_delete_seconds cannot be given together")

    def lease_seconds(self, default: float) -> float:
        """Return the idle lease in seconds: the most precise field that is given, else default (seconds)."""
        if self.auto_clear_seconds is not None:
            return self.auto_clear_seconds
        minutes = self.auto_clear_time if self.auto_clear_time_minutes is None else self.auto_clear_time_minutes
        return default if minutes is None else minutes * 60

    def memory_bytes(self) -> int:
        """Return the memory limit in bytes."""
        return parse_memory(self.memory)

    def disk_bytes(self) -> int | None:
        """Return the disk limit in bytes, None for none."""
        return parse_disk(self.disk)


@dataclass(kw_only=True)
class SandboxRequest(Call):
    """POST /stop, /restart, /delete."""

    sandbox_id: str = wire(sandbox_name(required=True), "")


@dataclass(kw_only=True)
class CreateBashSessionRequest(Call):
    """POST /create_session. In the SDK the sandbox fills in its own id."""

    sandbox_id: str = wire(sandbox_name(required=True), "")
    session: str = wire(label(), "default")
    session_type: str = wire(Choice("bash"), "bash")
    startup_source: list[str] = wire(Texts(path_text(), most=1000), factory=list)
    """Files that the new shell sources."""
    env_enable: bool = wire(Flag(), False)
    """For older clients, whose sessions have the container's variables only with it; here every session has them."""
    env: dict[str, str] | None = wire(Variables(shell=True), None)
    remote_user: str | None = wire(
        Text(pattern=USER, says="must be a user name or number, with :group if need be"), None
    )
    """User (name or number, `:group` if need be) that the session's shell runs as; None: the sandbox's own, usually root."""
    startup_timeout: float | None = wire(seconds(), None)
    max_read_size: int | None = wire(Whole(low=1, unit=" bytes"), None)
    """Bytes of one command's output that are kept; None: the server's limit."""


@dataclass(kw_only=True)
class BashAction(WaitingCall):
    """POST /run_in_session. In the SDK the sandbox fills in its own id."""

    sandbox_id: str = wire(sandbox_name(required=True), "")
    command: str = wire(Text(allow_nul=True))
    """NUL passes: bash drops it, as it does in a script."""
    session: str = wire(label(), "default")
    timeout: float | None = wire(seconds(), None)
    """Seconds; None: no limit."""
    no_output_timeout: float | None = wire(seconds(), None)
    """Seconds without any output after which the command is ended as by its timeout; None: no limit."""
    check: str = wire(Choice("raise", "silent", "ignore"), "raise")
    action_type: str = wire(Choice("bash"), "bash")
    is_interactive_command: bool = wire(Flag(), False)
    """A line for the program at the session's terminal; starts it where there is none."""
    is_interactive_quit: bool = wire(Flag(), False)
    """The last line for that program, whose end is waited for."""
    expect: list[str] = wire(Texts(most=1000), factory=list)
    """Regular expressions or plain texts, the first of which to show ends the wait for an interactive program."""
    error_msg: str = wire(Text(), "")
    """Put before the message when the command fails under check="raise"."""


@dataclass(kw_only=True)
class TerminalRequest:
    """The query of GET /sandboxes/{id}/terminal, a WebSocket."""

    session: str = wire(label(), "default")
    rows: int = wire(Whole(low=1, high=1000), 24)
    cols: int = wire(Whole(low=1, high=1000), 80)


@dataclass(kw_only=True)
class TerminalFrame:
    """A text frame that a client sends over that WebSocket: keys (also sent as they are, in binary frames), or a new size."""

    keys: str = wire(Text(allow_nul=True), "")
    rows: int = wire(Whole(low=1, high=1000), 24)
    cols: int = wire(Whole(low=1, high=1000), 80)


@dataclass(kw_only=True)
class CloseBashSessionRequest(Call):
    """POST /close_session. In the SDK the sandbox fills in its own id."""

    sandbox_id: str = wire(sandbox_name(required=True), "")
    session: str = wire(label(), "default")
    session_type: str = wire(Choice("bash"), "bash")


@dataclass(kw_only=True)
class Command(WaitingCall):
    """POST /execute: one process of its own, outside every session."""

    sandbox_id: str = wire(sandbox_name(required=True), "")
    command: str | list[str] = wire(TextOrTexts())
    timeout: float | None = wire(seconds(), 1200.0, null_is_value=True)
    """Seconds; None: no limit."""
    shell: bool = wire(Flag(), False)
    check: bool = wire(Flag(), False)
    error_msg: str = wire(Text(), "")
    env: dict[str, str] | None = wire(Variables(shell=True), None)
    cwd: str | None = wire(path_text(), None)
    session_type: str = wire(Choice("bash"), "bash")


@dataclass(kw_only=True)
class ReadFileRequest(Call):
    """POST /read_file."""

    sandbox_id: str = wire(sandbox_name(required=True), "")
    path: str = wire(path_text())
    encoding: str | None = wire(label(64), None)
    errors: str | None = wire(label(64), None)


@dataclass(kw_only=True)
class WriteFileRequest(Call):
    """POST /write_file; parent folders are made."""

    sandbox_id: str = wire(sandbox_name(required=True), "")
    path: str = wire(path_text())
    content: str = wire(Text(allow_nul=True))


@dataclass(kw_only=True)
class UploadRequest:
    """A local file for `Sandbox.upload`; upload_mode is accepted and not needed."""

    source_path: str = wire(path_text())
    target_path: str = wire(path_text())
    upload_mode: str = wire(Choice("auto", "oss", "direct"), "auto")


@dataclass(kw_only=True)
class UploadForm(Call):
    """The text parts of POST /upload; the file itself is the part `file`."""

    sandbox_id: str = wire(sandbox_name(required=True), "")
    target_path: str = wire(path_text())


@dataclass(kw_only=True)
class CommitRequest(WaitingCall):
    """POST /commit."""

    sandbox_id: str = wire(sandbox_name(required=True), "")
    image_tag: str = wire(image_name())
    username: str | None = wire(Text(longest=1024), None)
    password: str | None = wire(Text(longest=65_536), None, secret=True)


@dataclass(kw_only=True)
class RemoveImageRequest(Call):
    """POST /remove_image."""

    image: str = wire(image_name())
    node: str | None = wire(label(), None)


@dataclass(kw_only=True)
class BatchRequest:
    """POST /sandboxes/batch."""

    sandbox_ids: list[str] = wire(Texts(sandbox_name(), most=500))


@dataclass(kw_only=True)
class WarmupRequest(Call):
    """POST /warmup/tasks: `images`, else `image`, on every live node."""

    image: str = wire(image_name(), "python:3.11")
    images: list[str] | None = wire(Texts(image_name(), most=500), None)


@dataclass(kw_only=True)
class EnvMakeRequest:
    """POST /make of GEM."""

    env_id: str = wire(label())


@dataclass(kw_only=True)
class EnvResetRequest:
    """POST /reset of GEM."""

    sandbox_id: str = wire(sandbox_name())
    seed: int | None = wire(Whole(low=-(2**63), high=2**63 - 1), None)


@dataclass(kw_only=True)
class EnvStepRequest:
    """POST /step of GEM; an action is whatever the environment takes."""

    sandbox_id: str = wire(sandbox_name())
    action: str | int | float | list[object] | dict[str, object] = wire(fields.Raw())


@dataclass(kw_only=True)
class EnvCloseRequest:
    """POST /close and /list of GEM."""

    sandbox_id: str = wire(sandbox_name())
