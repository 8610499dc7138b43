"""Programs at a terminal of a session: what callers say to them, and the terminal of a person. Pure, like workers/jobs.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from app.calls import Call
from rock.actions import BashAction, BashObservation, CloseBashSessionResponse, TerminalFrame, TerminalRequest, revive
from rock.errors import BadRequest, Cancelled, CommandFailed, CommandTimeout, OutOfMemory, SessionEnded
from workers import protocol, scripts
from workers.expect import Expected, shown
from workers.jobs import OOM_REASON, TIMEOUT_EXIT, Job, Outcome, Stopped, stopped

NO_TERMINAL = b"\x1etty\x1e"
"""All that is printed where the image has nothing that makes a terminal."""
ABANDONED_AFTER = 90.0
"""Seconds without a reader after which the terminal of a person is closed."""


@dataclass(frozen=True)
class Heard:
    """What a program showed since it was last talked to, and what else is known."""

    output: bytes
    """As it came, from what nobody was given yet, up to what was expected."""
    fresh: int
    """From which byte of it on it comes after the line that was typed."""
    pattern: str = ""
    """What was expected and showed."""
    exit_code: int | None = None
    """None: it goes on."""
    shell_ended: bool = False
    oom: bool = False
    stopped: Stopped | None = None


class TalkJob(Job):
    """run_in_session with is_interactive_command or is_interactive_quit: a line for the session's program, or the start of one."""

    verb = "TALK"
    streams = ()

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.action = revive(BashAction, call.body)
        self.target = protocol.session_key(self.action.session)
        self.timeout, self.silence = self.action.timeout, self.action.no_output_timeout
        self.expected = Expected(self.action.expect)
        self.quits = self.action.is_interactive_quit

    def frames(self) -> Iterator[bytes]:
        """Yield the frames that type the line, or start the program."""
        line = self.action.command.encode("utf-8", "surrogatepass") + b"\n"
        script = None if self.quits else scripts.program(self.action.command)
        return protocol.talk(self.id, self.target, line, script)

    def reply(self, heard: Heard) -> BashObservation:
        """Return what the caller is told. Raises CommandTimeout, Cancelled, CommandFailed, SessionEnded, OutOfMemory, BadRequest."""
        if heard.output.startswith(NO_TERMINAL) and heard.exit_code is not None:
            raise BadRequest(
                f"The image of sandbox {self.call.sandbox_id} has neither `script` nor `python3`, one of which interactive "
                "programs need to get a terminal",
                sandbox_id=self.call.sandbox_id,
            )
        output = self._text(heard)
        if heard.stopped:
            raise self._stopped(heard, output)
        if heard.exit_code is None:
            return BashObservation(output=output, exit_code=0, expect_string=heard.pattern)
        return self._ended(heard, output)

    def _ended(self, heard: Heard, output: str) -> BashObservation:
        code, session = heard.exit_code or 0, self.action.session
        reason = "" if self.quits else f"the program ended with exit code {code}"
        if self.expected and not self.quits:
            reason += " before any of expect showed"
        if heard.shell_ended:
            reason = f"the shell of session {session!r} ended with exit code {code}; the next command opens it again in its last folder"
        if heard.oom:
            reason = OOM_REASON
        if self.action.check == "raise":
            message = self.action.error_msg or reason or f"The program ended with exit code {code}"
            if heard.oom:
                raise OutOfMemory(message, exit_code=code, output=output)
            if code and heard.shell_ended:
                raise SessionEnded(message, exit_code=code, output=output)
            if code:
                raise CommandFailed(message, exit_code=code, output=output)
        return BashObservation(output=output, exit_code=code, failure_reason=reason, expect_string=heard.pattern)

    def _stopped(self, heard: Heard, output: str) -> CommandTimeout | Cancelled:
        if heard.stopped is Stopped.CANCEL:
            return Cancelled("The call was cancelled, and the program ended", exit_code=130, output=output)
        if heard.stopped is Stopped.SILENCE:
            text = f"no output for {self.silence:g} s: the program was ended"
        elif self.quits:
            text = f"timeout: the program did not end within {self.timeout:g} s and was stopped"
        else:
            wanted = ", ".join(repr(one[:80]) for one in self.action.expect[:5]) or "a pause"
            text = f"timeout: the program showed none of what was expected ({wanted}) within {self.timeout:g} s, and was ended"
        return CommandTimeout(text, exit_code=TIMEOUT_EXIT, output=output)

    def _text(self, heard: Heard) -> str:
        """Return the output as text: without the line that was typed where the terminal shows it first."""
        before = shown(heard.output[: heard.fresh]).text
        after = shown(heard.output[heard.fresh :]).text
        after = after.removeprefix(self.action.command.replace("\r\n", "\n").encode("utf-8", "surrogatepass") + b"\n")
        return (before + after).decode("utf-8", "backslashreplace").removesuffix("\n")


class TerminalJob(Job):
    """A terminal for a person: an interactive bash in the session, until it ends or nobody looks at it any more."""

    verb = "TTY"
    streams = ()
    keeps_output = True
    attended = ABANDONED_AFTER

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.request = revive(TerminalRequest, call.body)
        self.target = protocol.session_key(self.request.session)

    def frames(self) -> Iterator[bytes]:
        """Yield the frames that start the shell."""
        size = f"{self.request.rows}x{self.request.cols}"
        return protocol.terminal(self.id, self.target, size, scripts.shell())

    def answer(self, outcome: Outcome) -> object:
        """Return how the shell ended. Raises Cancelled when its window was closed."""
        if outcome.stopped:
            raise stopped(outcome, self.attended)
        return BashObservation(exit_code=outcome.exit_code)


class InputJob(Job):
    """Keys or a new size for a terminal."""

    verb = "TYPE"
    streams = ()

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.input = revive(TerminalFrame, call.body)
        self.of = str(call.body["call_id"])[:10]

    def frames(self) -> Iterator[bytes]:
        """Yield the frames that type, or that change the size."""
        if self.input.keys:
            return protocol.keys(self.id, self.of, self.input.keys.encode("latin-1"))
        size = f"{self.input.rows}x{self.input.cols}"
        return iter([protocol.frame("SIZE", self.id, self.of, size)])

    def answer(self, outcome: Outcome) -> object:
        """Return the empty response."""
        return CloseBashSessionResponse()
