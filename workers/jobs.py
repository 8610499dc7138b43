"""What a keeper is asked for each kind of call, and what its outcome means. Pure: from a call to frames, from an outcome to an answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from app.calls import Call
from rock.actions import (
    BashAction,
    BashObservation,
    Command,
    CommandResponse,
    revive,
)
from rock.errors import (
    AlreadyExists,
    BadRequest,
    Cancelled,
    CommandFailed,
    CommandTimeout,
    Internal,
    NotFound,
    OutOfMemory,
    RockError,
    SessionEnded,
    Unavailable,
)
from workers import protocol, scripts
from workers.output import Collected

TIMEOUT_EXIT = 124
"""Exit code of a command that its timeout ended, as of timeout(1)."""


OOM_REASON = "out of memory: the kernel killed a process of the sandbox at its memory limit; start it with more memory"


class Stopped(StrEnum):
    """Why we ended a command before its own end."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    SILENCE = "silence"
    ABANDONED = "abandoned"


_SESSION = "Session {session!r} of sandbox {sandbox_id}"
REFUSALS: dict[str, tuple[type[RockError], str]] = {
    "nospace": (
        Unavailable,
        "Sandbox {sandbox_id} has no space left for commands and output; wait for running commands to end",
    ),
    "nosession": (NotFound, f"{_SESSION} not found; create it with create_session"),
    "exists": (AlreadyExists, f"{_SESSION} already exists; close it or choose another name"),
    "ended": (SessionEnded, f"{_SESSION} ended before this command ran"),
    "full": (
        CommandFailed,
        "Sandbox {sandbox_id} is at its limit of processes, so this was not run; end some of them, or stop it",
    ),
    "files": (
        CommandFailed,
        "Sandbox {sandbox_id} is at its limit of open files (`ulimit -n` of its main process), so this was not run; close sessions, or start it with a higher one",
    ),
    # Seen only if Redis lost the answer in a crash: otherwise the true answer is stored, and this one comes too late.
    "past": (Internal, "The call ran before, but its answer was lost; it was not run again"),
    "withdrawn": (Cancelled, "The command was cancelled before it ran"),
    "tty": (
        BadRequest,
        f"{_SESSION} has a program at its terminal; talk to it with is_interactive_command, or end it with is_interactive_quit",
    ),
    "terminal": (BadRequest, f"{_SESSION} has a terminal open; close that first, or use another session"),
    "noprogram": (
        BadRequest,
        f"{_SESSION} has no interactive program to talk to; start one with is_interactive_command",
    ),
    "deaf": (BadRequest, "The program does not read what is typed, and too much is waiting for it"),
}
"""What a keeper's reasons to reject a call mean."""


@dataclass
class Outcome:
    """How a call ended: its streams, the exit code, and what else happened."""

    stdout: Collected
    stderr: Collected
    exit_code: int
    shell_ended: bool = False
    stopped: Stopped | None = None
    reopened: int | None = None
    """Exit code of the session's former shell, when this command ran in a new one."""
    oom: bool = False
    """The kernel killed a process of the sandbox for want of memory meanwhile."""


class Job:
    """One call in a keeper's hands. Subclasses say what is sent and what comes of it."""

    verb = "EXEC"
    is_file = False
    """Its stdout is a file's content, which nobody reads by offset."""
    keeps_output = False
    """Its output is read by offset alone, and stays with the keeper for that."""
    attended: float | None = None
    """Seconds after which it is ended if nobody asks for its output, None: never."""
    streams: tuple[int, ...] = (protocol.STDOUT, protocol.STDERR)

    def __init__(self, call: Call) -> None:
        """`call`: as loaded, its body not yet checked again. Raises BadRequest for a body of another version."""
        self.call = call
        self.id = call.call_id[:10]
        self.target = "file"
        self.timeout: float | None = None
        self.silence: float | None = None
        """Seconds without output after which the command is ended, None for none."""

    def script(self) -> bytes:
        """Return the script to run."""
        raise NotImplementedError

    def stdin(self) -> bytes | None:
        """Return the standard input, or None for an empty one."""
        return None

    def frames(self) -> Iterator[bytes]:
        """Yield the frames that submit this call."""
        return protocol.submit(self.verb, self.id, self.target, self.script(), self.stdin())

    def answer(self, outcome: Outcome) -> object:
        """Return the response of the wire. Raises RockError for a failure."""
        raise NotImplementedError

    def refused(self, reason: str) -> RockError:
        """Return the error for a `reject` of the keeper."""
        place = {"sandbox_id": self.call.sandbox_id, "session": self.call.body.get("session", "default")}
        kind, text = REFUSALS.get(
            reason, (Internal, f"The keeper of sandbox {{sandbox_id}} refused the call: {reason}")
        )
        return kind(text.format_map(place), **place)


class RunJob(Job):
    """run_in_session."""

    verb = "RUN"
    streams = (protocol.STDOUT,)

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.action = revive(BashAction, call.body)
        self.target = protocol.session_key(self.action.session)
        self.timeout, self.silence = self.action.timeout, self.action.no_output_timeout

    def script(self) -> bytes:
        """Return the line that the session's shell sources."""
        return scripts.run(self.action.command)

    def frames(self) -> Iterator[bytes]:
        """Yield the frames that submit the command."""
        flag = scripts.run_flag(self.action.command)
        return protocol.submit(self.verb, self.id, self.target, self.script(), flag=flag)

    def answer(self, outcome: Outcome) -> object:
        """Return a BashObservation. Raises CommandFailed, SessionEnded, CommandTimeout or Cancelled."""
        output, code = outcome.stdout.text(strip_newline=True), outcome.exit_code
        if outcome.stopped:
            raise stopped(outcome, self.silence if outcome.stopped is Stopped.SILENCE else self.timeout, output=output)
        session, reason = self.action.session, ""
        if outcome.reopened is not None:
            reason = f"the shell of session {session!r} had ended with exit code {outcome.reopened}; this command ran in a new one, in its last folder"
        if outcome.shell_ended:
            reason = f"the shell of session {session!r} ended with exit code {code}; the next command opens it again in its last folder"
        if outcome.oom:
            reason = OOM_REASON + (f"; {reason}" if reason else "")
            if self.action.check == "raise":
                raise OutOfMemory(reason, exit_code=code, output=output)
        if code and self.action.check == "raise":
            if outcome.shell_ended:
                raise SessionEnded(reason, exit_code=code, output=output)
            message = (
                self.action.error_msg or f"Command failed with exit code {code}: {scripts.observation(self.action)}"
            )
            raise CommandFailed(message, exit_code=code, output=output)
        return BashObservation(output=output, exit_code=code, failure_reason=reason)


class ExecuteJob(Job):
    """execute: a fresh process, stdout and stderr apart."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.target = "pipe"
        self.command = revive(Command, call.body)
        self.timeout = self.command.timeout

    def script(self) -> bytes:
        """Return the script of the subshell."""
        return scripts.execute(self.command)

    def answer(self, outcome: Outcome) -> object:
        """Return a CommandResponse. Raises BadRequest (cwd), CommandFailed, CommandTimeout or Cancelled."""
        stdout, stderr, code = outcome.stdout.text(), outcome.stderr.text(), outcome.exit_code
        if outcome.stopped:
            raise stopped(outcome, self.timeout, output=stdout, stdout=stdout, stderr=stderr)
        if stderr == scripts.CWD_FAILED:
            raise BadRequest(
                f"cwd: cannot enter folder {self.command.cwd!r} in sandbox {self.call.sandbox_id}", field="cwd"
            )
        if outcome.oom and self.command.check:
            raise OutOfMemory(OOM_REASON, exit_code=code, output=stdout, stdout=stdout, stderr=stderr)
        if code and self.command.check:
            message = self.command.error_msg or f"Command failed with exit code {code}"
            raise CommandFailed(message, exit_code=code, output=stdout, stdout=stdout, stderr=stderr)
        return CommandResponse(
            stdout=stdout, stderr=stderr, exit_code=code, failure_reason=OOM_REASON if outcome.oom else ""
        )


def stopped(outcome: Outcome, limit: float | None, **details: Any) -> RockError:
    """Return the error of a command that we ended, with its `limit` in seconds and the `details` that are known (output)."""
    ended = "; its shell ended too, the next command opens it again" if outcome.shell_ended else ""
    if outcome.stopped is Stopped.CANCEL:
        return Cancelled(f"The command was cancelled{ended}", exit_code=130, **details)
    if outcome.stopped is Stopped.ABANDONED:
        return Cancelled(f"Nobody looked at the terminal for {limit:g} s, so it was closed{ended}", exit_code=130)
    if outcome.stopped is Stopped.SILENCE:
        text = f"no output for {limit:g} s: the command was stopped{ended}"
    else:
        text = f"timeout: the command did not end within {limit:g} s and was stopped{ended}"
    return CommandTimeout(text, exit_code=TIMEOUT_EXIT, **details)
