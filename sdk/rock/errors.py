"""Every error of ROCK, on both sides of the wire. Standard library only.

    RockError
    ├── CallerFault    4000  the request is wrong; sending it again unchanged cannot help
    │   ├── BadRequest  NotFound  AlreadyExists  Forbidden  NotRunning
    │   └── Unauthorized (HTTP 401)  RouteNotFound (404)  MethodNotAllowed (405)  TooLarge (413)
    ├── ServiceFault   5000  the service failed; the model that asked is not to blame
    │   ├── NoCapacity  PullFailed  StartTimeout  NodeLost  Unavailable (503)      retryable
    │   └── ImageNotFound  ImageAccess  StartFailed  SandboxGone  Internal
    └── CommandFault   6000  the command itself failed
        ├── SessionEnded  CommandFailed  CommandTimeout  Cancelled  OutOfMemory
        └── PortClosed  ProgramFault    what listens in a sandbox, or does not

An error travels as data: `to_envelope` on one side, `from_envelope` on the other, joined by `kind`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class RockError(Exception):
    """Base of all errors; each concrete class fixes `code`, `kind`, `retryable` and `http_status`.

    Params:
        message: what happened and what to do about it, for a human.
        exit_code: of the command or the container, when there is one.
        details: what else is known (`output=…`, `sandbox_id=…`); rides in the envelope's `result`.
    """

    code: int = 5000
    kind: str = "internal"
    retryable: bool = False
    http_status: ClassVar[int] = 200

    def __init__(self, message: str, *, exit_code: int | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.details = details

    def to_result(self) -> dict[str, Any]:
        """Return the envelope's `result`: code, kind, retryable, exit_code, failure_reason and the details."""
        result: dict[str, Any] = {"failure_reason": self.message, **self.details}
        # The fixed keys come last, so that no detail can pose as one of them.
        result.update(code=self.code, kind=self.kind, retryable=self.retryable, exit_code=self.exit_code)
        return result

    def to_envelope(self) -> dict[str, Any]:
        """Return the whole Failed answer of the wire."""
        return {"status": "Failed", "message": self.message, "error": self.message, "result": self.to_result()}


class CallerFault(RockError):
    """The request is wrong (code 4000)."""

    code = 4000
    kind = "bad_request"


class BadRequest(CallerFault):
    """A field is missing, of the wrong type or out of range; the message names it."""


class NotFound(CallerFault):
    """No such sandbox, session, file or call."""

    kind = "not_found"


class AlreadyExists(CallerFault):
    """A living sandbox or session has that name."""

    kind = "already_exists"


class Forbidden(CallerFault):
    """The caller may not do this, or the node's configuration does not allow it."""

    kind = "forbidden"


class NotRunning(CallerFault):
    """The sandbox exists but is not running."""

    kind = "not_running"


class Unauthorized(CallerFault):
    """The API key is missing or wrong."""

    kind = "unauthorized"
    http_status = 401


class RouteNotFound(CallerFault):
    """The service has no such route."""

    kind = "route_not_found"
    http_status = 404


class MethodNotAllowed(CallerFault):
    """The route exists, but not for this HTTP method."""

    kind = "method_not_allowed"
    http_status = 405


class TooLarge(CallerFault):
    """The request's body is above the configured limit."""

    kind = "too_large"
    http_status = 413


class ServiceFault(RockError):
    """The service failed (code 5000)."""


class NoCapacity(ServiceFault):
    """No node has room within the startup timeout."""

    kind = "no_capacity"
    retryable = True


class ImageNotFound(ServiceFault):
    """The registry does not have the image."""

    kind = "image_not_found"


class ImageAccess(ServiceFault):
    """The registry refuses the image with the credentials at hand."""

    kind = "image_access"


class PullFailed(ServiceFault):
    """The image could not be fetched: network, disk or registry trouble."""

    kind = "pull_failed"
    retryable = True


class StartFailed(ServiceFault):
    """The container did not come up (no bash in the image, a bad mount, …)."""

    kind = "start_failed"


class StartTimeout(ServiceFault):
    """Pull and start took longer than the startup timeout."""

    kind = "start_timeout"
    retryable = True


class NodeLost(ServiceFault):
    """The node that has the sandbox does not answer."""

    kind = "node_lost"
    retryable = True


class SandboxGone(ServiceFault):
    """The sandbox ended while the call was under way; it never comes back under its id."""

    kind = "sandbox_gone"


class Unavailable(ServiceFault):
    """The queue or Redis is down, or the service cannot be reached."""

    kind = "unavailable"
    retryable = True
    http_status = 503


class Internal(ServiceFault):
    """A fault of the service that has no better name."""


class CommandFault(RockError):
    """The command itself failed (code 6000); `output` and `exit_code` ride along."""

    code = 6000
    kind = "command_failed"


class SessionEnded(CommandFault):
    """The command ended the session's shell."""

    kind = "session_ended"


class CommandFailed(CommandFault):
    """The command's exit code is not 0, and the caller asked for an error then."""


class CommandTimeout(CommandFault):
    """The command ran longer than its timeout and was ended."""

    kind = "command_timeout"


class Cancelled(CommandFault):
    """The call was cancelled."""

    kind = "cancelled"


class OutOfMemory(CommandFault):
    """The sandbox reached its memory limit and the command was killed."""

    kind = "out_of_memory"


class PortClosed(CommandFault):
    """Nothing in the sandbox listens on the port that was asked for; a program may still be starting."""

    kind = "port_closed"
    retryable = True


class ProgramFault(CommandFault):
    """The program that listens in the sandbox broke the connection, or answered with what is no HTTP."""

    kind = "program_fault"


_CONCRETE: tuple[type[RockError], ...] = (
    BadRequest, NotFound, AlreadyExists, Forbidden, NotRunning, Unauthorized, RouteNotFound, MethodNotAllowed, TooLarge,
    NoCapacity, ImageNotFound, ImageAccess, PullFailed, StartFailed, StartTimeout, NodeLost, SandboxGone, Unavailable,
    Internal, SessionEnded, CommandFailed, CommandTimeout, Cancelled, OutOfMemory,
    PortClosed, ProgramFault,
)  # fmt: skip

KINDS: Mapping[str, type[RockError]] = {error.kind: error for error in _CONCRETE}
"""The closed table of fault classes: `kind` on the wire → class."""

_BY_CODE: Mapping[int, type[RockError]] = {4000: BadRequest, 5000: Internal, 6000: CommandFailed}
_FIXED = frozenset({"code", "kind", "retryable", "exit_code"})


def success(result: Any, message: str | None = None) -> dict[str, Any]:
    """Return a Success envelope.

    Params:
        result: what the call answers: an object, a text or nothing.
        message: a remark for a human, if any.
    """
    return {"status": "Success", "message": message, "error": None, "result": result}


def from_envelope(envelope: Mapping[str, Any]) -> RockError:
    """Rebuild the error that a Failed envelope carries.

    Params:
        envelope: the answer of the wire; any part of it may be missing.
    Returns:
        An error of the class of its `kind`; of an unknown kind, of the class of its code; else `Internal`.
    """
    result = envelope.get("result")
    fields: dict[str, Any] = dict(result) if isinstance(result, Mapping) else {}
    message = envelope.get("error") or envelope.get("message") or fields.get("failure_reason") or "no reason was given"
    kind, code = fields.get("kind"), fields.get("code")
    known = KINDS.get(kind) if isinstance(kind, str) else None
    by_code = _BY_CODE.get(code) if isinstance(code, int) else None
    details = {key: value for key, value in fields.items() if key not in _FIXED and key != "message"}
    if details.get("failure_reason") == message:
        del details["failure_reason"]  # to_result() writes it again
    exit_code = fields.get("exit_code")
    error = (known or by_code or Internal)(
        str(message), exit_code=exit_code if isinstance(exit_code, int) else None, **details
    )
    if known is None and isinstance(kind, str):
        error.kind = kind  # a newer server's word: callers should see it as it was sent
    if isinstance(fields.get("retryable"), bool):
        error.retryable = fields["retryable"]
    return error
