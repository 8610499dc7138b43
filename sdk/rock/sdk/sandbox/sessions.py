"""Commands in a sandbox: bash sessions, and single processes outside them."""

from __future__ import annotations

import asyncio
import shlex
import uuid
from enum import StrEnum

from rock import errors
from rock.actions import (
    BashAction,
    BashObservation,
    CloseBashSessionRequest,
    CloseBashSessionResponse,
    Command,
    CommandResponse,
    CreateBashSessionRequest,
    CreateBashSessionResponse,
    ExecuteBashSessionResponse,
)
from rock.sdk.live import OnOutput
from rock.sdk.sandbox.config import SandboxConfig
from rock.sdk.sandbox.remote import Remote


class RunMode(StrEnum):
    """How `arun` runs a command."""

    NORMAL = "normal"
    """In the session itself: `cd`, exports and functions stay."""
    NOHUP = "nohup"
    """In a subshell of the session with empty input; the outcome is data, never an exception, even when it times out."""


class SessionVerbs(Remote):
    """Verbs that run commands."""

    def __init__(self, config: SandboxConfig | None = None) -> None:
        super().__init__(config)
        self._own_session: str | None = None
        self._own_session_lock = asyncio.Lock()

    async def create_session(self, create_session_request: CreateBashSessionRequest) -> CreateBashSessionResponse:
        """Open a bash session.

        Raises:
            AlreadyExists: a session of that name lives.
        """
        limit = create_session_request.startup_timeout
        return await self.send(CreateBashSessionResponse, "/create_session", create_session_request, limit)

    async def close_session(self, request: CloseBashSessionRequest) -> CloseBashSessionResponse:
        """End a session and what runs in its foreground.

        Raises:
            NotFound: there is no such session.
        """
        return await self.send(CloseBashSessionResponse, "/close_session", request)

    async def run_in_session(self, action: BashAction, on_output: OnOutput | None = None) -> BashObservation:
        """Run a command in a session, after those that were sent to it before, and wait for its end.

        Params:
            on_output: called with `"stdout"` and text while the command prints; from the SDK's own thread in the synchronous twin.
        Raises:
            CommandFailed: exit code not 0 under check="raise"; the error has exit_code and `details["output"]`.
            CommandTimeout, SessionEnded, Cancelled, OutOfMemory: how else it ended.
            NotFound: there is no such session.
        """
        return await self.listen(BashObservation, "/run_in_session", action, ("output",), on_output)

    async def execute(self, command: Command, on_output: OnOutput | None = None) -> CommandResponse:
        """Run one process outside every session; `on_output` also gets its `"stderr"`. Otherwise as `run_in_session`."""
        return await self.listen(CommandResponse, "/execute", command, ("stdout", "stderr"), on_output)

    async def arun(
        self,
        cmd: str,
        session: str | None = None,
        wait_timeout: float | None = 300,
        wait_interval: float = 10,
        mode: str = RunMode.NORMAL,
        response_limited_bytes_in_nohup: int | None = None,
        ignore_output: bool = False,
        output_file: str | None = None,
    ) -> BashObservation:
        """Run a shell command and return its output and exit code; a code other than 0 is no exception.

        Params:
            cmd: shell text.
            session: where; None means one session that this Sandbox opens when first needed and keeps.
            wait_timeout: seconds after which the command is ended; None: never.
            wait_interval: not needed, the end of a command is pushed; existing callers pass it.
            mode: see RunMode.
            response_limited_bytes_in_nohup: nohup: how many bytes of the output come back at most.
            ignore_output: nohup: write the output to a file and return where it is instead.
            output_file: nohup: that file, in the sandbox; the output comes back too, unless ignore_output.
        Raises:
            CommandTimeout: normal mode: it was ended by wait_timeout; `details["output"]` has what it printed.
            CallerFault, ServiceFault: the command did not run, or its end is unknown.
        """
        if mode == RunMode.NORMAL:
            return await self._run(cmd, session, wait_timeout)
        if mode != RunMode.NOHUP:
            raise errors.BadRequest(f"mode must be normal or nohup, is {mode!r}")
        target = output_file or (f"/tmp/rock-{uuid.uuid4().hex}.out" if ignore_output else None)
        seen = await self._run_detached(cmd, session, wait_timeout, target)
        if ignore_output:
            seen.output = f"The output was written to {target} in the sandbox; read_file or download_file fetch it."
            return seen
        return await self._limited(seen, session, target, response_limited_bytes_in_nohup)

    async def run_nohup_and_wait(
        self, cmd: str, redirect_file_path: str = "/dev/null", wait_timeout: float = 300, wait_interval: float = 10
    ) -> ExecuteBashSessionResponse:
        """Run a shell command with its output in a file, and wait for its end.

        Params:
            redirect_file_path: the file, in the sandbox.
            others: as for `arun`.
        Returns:
            success: whether it ended in time with exit code 0; message: how it ended.
        """
        seen = await self._run_detached(cmd, None, wait_timeout, redirect_file_path)
        how = seen.failure_reason or f"the command ended with exit code {seen.exit_code}"
        return ExecuteBashSessionResponse(success=seen.exit_code == 0, message=how)

    async def _run_detached(
        self, cmd: str, session: str | None, timeout: float | None, target: str | None
    ) -> BashObservation:
        """Run cmd in a subshell with empty input, output to the target file if there is one; failures are data."""
        # eval keeps whatever cmd is (an open quote, a comment at its end) inside the redirection.
        script = f"( eval {shlex.quote(cmd)} ) < /dev/null"
        if target is not None:
            folder = target.rpartition("/")[0]
            made = f"mkdir -p -- {shlex.quote(folder)} && " if folder else ""
            script = f"{made}{script} > {shlex.quote(target)} 2>&1"
        try:
            return await self._run(script, session, timeout)
        except errors.CommandFault as error:
            code = 1 if error.exit_code in (None, 0) else error.exit_code
            output = str(error.details.get("output", ""))
            return BashObservation(output=output, exit_code=code, failure_reason=error.message)

    async def _limited(
        self, seen: BashObservation, session: str | None, target: str | None, limit: int | None
    ) -> BashObservation:
        """Return seen with its output, from the target file if there is one, cut to limit bytes."""
        if target is not None:
            reader = f"cat -- {shlex.quote(target)}" if limit is None else f"head -c {limit:d} -- {shlex.quote(target)}"
            seen.output = (await self._run(reader, session, 60)).output
        elif limit is not None:
            # The cut may fall inside a character.
            seen.output = seen.output.encode()[:limit].decode(errors="ignore")
        return seen

    async def _run(self, cmd: str, session: str | None, timeout: float | None) -> BashObservation:
        """Run cmd in the named session, or in the one that this object keeps."""
        if session is not None:
            return await self._run_silently(cmd, session, timeout)
        name = await self._kept_session()
        try:
            return await self._run_silently(cmd, name, timeout)
        except errors.NotFound:
            # Our session's shell has ended (a command said `exit`): the command has not run, a new shell can.
            return await self._run_silently(cmd, await self._kept_session(ended=name), timeout)

    async def _run_silently(self, cmd: str, session: str, timeout: float | None) -> BashObservation:
        """Run cmd so that its exit code is data."""
        return await self.run_in_session(BashAction(command=cmd, session=session, timeout=timeout, check="silent"))

    async def _kept_session(self, ended: str | None = None) -> str:
        """Return the name of this object's own session, which is opened if there is none but the ended one."""
        async with self._own_session_lock:
            if self._own_session is None or self._own_session == ended:
                name = f"arun-{uuid.uuid4().hex[:12]}"
                await self.create_session(CreateBashSessionRequest(session=name))
                self._own_session = name
            return self._own_session
