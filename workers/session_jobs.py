"""The jobs that open and close sessions. Pure, as workers/jobs.py."""

from __future__ import annotations

from collections.abc import Iterator

from app.calls import Call
from rock.actions import (
    CloseBashSessionRequest,
    CloseBashSessionResponse,
    CreateBashSessionRequest,
    CreateBashSessionResponse,
    load,
)
from rock.errors import BadRequest, CommandFailed, RockError, SessionEnded
from workers import protocol, scripts
from workers.jobs import Job, Outcome, stopped

_NO_SUCH_USER = {
    "nouser": "the sandbox has no such user or group (/etc/passwd, /etc/group)",
    "oneuser": "this sandbox has one user only, as which all its sessions run: it was started with docker_args --user, or without a container",
    "noswitch": "nothing in the image can start a shell as that user; it takes mkfifo, chown, and setpriv (util-linux), chroot (coreutils), or su or nsenter (busybox)",
}
"""Why the keeper opens no session for a user, in words."""


class OpenJob(Job):
    """create_session: the shell, then its variables and startup files as a first command."""

    verb = "OPEN"
    streams = (protocol.STDOUT,)

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.request = load(CreateBashSessionRequest, call.body)
        self.target = protocol.session_key(self.request.session)
        self.timeout = self.request.startup_timeout

    def script(self) -> bytes:
        """Return the session's first command: variables and startup files."""
        return scripts.session(self.request)

    def frames(self) -> Iterator[bytes]:
        """Yield the frames that open the session, as its user if it names one."""
        return protocol.submit(self.verb, self.id, self.target, self.script(), flag=self.request.remote_user or "-")

    def refused(self, reason: str) -> RockError:
        """Return the error for a `reject` of the keeper; those about the user are the caller's fault."""
        why = _NO_SUCH_USER.get(reason)
        if why is None:
            return super().refused(reason)
        user = self.request.remote_user
        return BadRequest(f"remote_user {user!r}: {why}", field="remote_user", sandbox_id=self.call.sandbox_id)

    def answer(self, outcome: Outcome) -> object:
        """Return what the startup printed. Raises CommandFailed, SessionEnded, CommandTimeout or Cancelled."""
        output = outcome.stdout.text(strip_newline=True)
        if outcome.stopped:
            raise stopped(outcome, self.timeout, output=output)
        if outcome.shell_ended:
            raise SessionEnded(
                f"the shell of session {self.request.session!r} ended while it started",
                exit_code=outcome.exit_code,
                output=output,
            )
        if outcome.exit_code:
            message = f"startup of session {self.request.session!r} failed with exit code {outcome.exit_code}: {output[-500:]}"
            raise CommandFailed(message, exit_code=outcome.exit_code, output=output)
        return CreateBashSessionResponse(output=output)


class CloseJob(Job):
    """close_session."""

    verb = "CLOSE"
    streams = ()

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.target = protocol.session_key(load(CloseBashSessionRequest, call.body).session)

    def frames(self) -> Iterator[bytes]:
        """Yield the one frame of a close, which has no script."""
        yield protocol.frame(self.verb, self.id, self.target)

    def answer(self, outcome: Outcome) -> object:
        """Return the empty response."""
        return CloseBashSessionResponse()
