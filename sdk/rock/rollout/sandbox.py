"""`RockSandbox`: the thin client of a rollout. Needs aiohttp, and of the SDK only the errors and the settings."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rock import archive, errors, settings
from rock.rollout.breaker import BREAKER, Breaker
from rock.rollout.service import CANCEL_SECONDS, NoAnswer, Service, Sleep, backoff, new_request_id

START_TRIES = 10
REMOVE_TRIES = 3
COMMAND_SECONDS = 120.0
LEASE_SECONDS = 14_400.0
"""The service stops a sandbox that was not used for so long: what a killed trainer leaves does not stay."""

_holders: dict[tuple[str, str], set[str]] = defaultdict(set)
"""(service, image) → this process's sandboxes of it. Rollouts of one task share its image; the last one removes it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionResult:
    """What a session command came to. `failure_reason` says more than the exit code (the shell ended, …), or ""."""

    output: str
    exit_code: int
    failure_reason: str = ""


@dataclass(frozen=True)
class ExecuteResult:
    """What a one-off command came to."""

    stdout: str
    stderr: str
    exit_code: int


class RockSandbox:
    """One sandbox at a time; after `stop()` another may be started. Usable with `async with`, which stops it.

    Params:
        base_url: where the service is; None: `ROCK_BASE_URL`.
        headers: sent with every request, such as `X-User-Id` or `X-Experiment-Id`.
        api_key: None: `ROCK_API_KEY`.
        breaker: who counts failures; all sandboxes of the process share one unless told otherwise.
        sleep: waits that many seconds between tries.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        api_key: str | None = None,
        breaker: Breaker = BREAKER,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        key = api_key or settings.read("ROCK_API_KEY")
        named = {**({"X-API-Key": key} if key else {}), **(headers or {})}
        self._service = Service(base_url or settings.read("ROCK_BASE_URL"), named, breaker, sleep)
        self._sleep = sleep
        self._sessions: set[str] = set()
        self._node = ""
        self.sandbox_id: str | None = None
        self.image: str | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def start(
        self,
        image: str,
        cpus: float = 2.0,
        memory: str = "8g",
        docker_args: Sequence[str] = (),
        *,
        startup_timeout: float | None = None,
    ) -> str:
        """Start a sandbox, wait until it is alive, return its id. Tried 10 times as long as trying again can help.

        Cancelled, it withdraws the start.

        Params:
            image: its name.
            cpus: cores; memory: such as `16g`.
            docker_args: flags of `docker run` that the node's configuration allows.
            startup_timeout: seconds over pull and start; None: `STACX_SANDBOX_STARTUP_TIMEOUT`.
        Raises:
            AlreadyExists: this object has a sandbox.
            RockError: the last try's error, or the first that no further try can mend.
        """
        if self.sandbox_id is not None:
            raise errors.AlreadyExists(f"this RockSandbox is already {self.sandbox_id}", sandbox_id=self.sandbox_id)
        body = {
            "image": image, "cpus": cpus, "memory": memory, "docker_args": list(docker_args),
            "startup_timeout": startup_timeout or settings.read("STACX_SANDBOX_STARTUP_TIMEOUT"),
            "auto_clear_seconds": LEASE_SECONDS,
            # The container goes with its stop: nobody restarts it, and it would hold its image.
            "auto_delete_seconds": 0,
        }  # fmt: skip
        self.image = image
        try:
            with self._service.outcome():
                return await self._tried(body)
        except errors.RockError:
            await self._service.close()
            raise

    async def _tried(self, body: dict[str, Any]) -> str:
        """Try to start until it succeeds, or further tries cannot help."""
        request_id = new_request_id()
        for tries in range(1, START_TRIES + 1):
            try:
                return await self._start_once(body, request_id)
            except errors.RockError as error:
                if not error.retryable or tries == START_TRIES:
                    raise
                if not isinstance(error, NoAnswer):
                    # That start is over. Without an answer it may go on, and the same id attaches to it.
                    request_id = new_request_id()
                _log.warning("start of %s: try %d of %d failed: %s", self.image, tries, START_TRIES, error.message)
            await self._sleep(backoff(tries))
        raise AssertionError("the last try returns or raises")

    async def _start_once(self, body: dict[str, Any], request_id: str) -> str:
        """Try once. The service names the sandbox: a warm one has its name already."""
        try:
            result = await self._service.attempt("/start", body, request_id, tries=1, wait=True)
        except asyncio.CancelledError as cancelled:
            await self._withdraw(request_id, cancelled)
            raise
        sandbox_id = str(result["sandbox_id"])
        self.sandbox_id, self._node = sandbox_id, str(result.get("host_name") or "")
        _holders[self._service.url, body["image"]].add(sandbox_id)
        return sandbox_id

    async def _withdraw(self, request_id: str, cancelled: asyncio.CancelledError) -> None:
        """Stop what a cancelled start has brought up all the same; trouble is noted on the cancellation."""
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                result = await self._service.result(request_id, CANCEL_SECONDS / 2)
                if isinstance(result, dict) and "sandbox_id" in result:
                    await self._service.call("/stop", {"sandbox_id": result["sandbox_id"]}, tries=1)
        except (errors.CallerFault, errors.CommandFault):
            _log.debug("the start %s is withdrawn, or never came to the service", request_id)
        except (errors.RockError, TimeoutError) as error:
            cancelled.add_note(f"the cancelled start {request_id} may have left a sandbox: {error}")
        finally:
            await self._service.close()

    async def create_session(self, session: str) -> None:
        """Open a bash session, unless this object has one of that name.

        Raises:
            RockError: it could not be opened.
        """
        if session in self._sessions:
            return
        try:
            await self._call("/create_session", {"session": session})
        except errors.AlreadyExists:
            _log.debug("session %s of %s was open already", session, self.sandbox_id)
        self._sessions.add(session)

    async def execute_in_session(
        self, cmd: str, session: str = "default", timeout: float | None = COMMAND_SECONDS
    ) -> SessionResult:
        """Run a command in a bash session, which is opened when it is first named, and wait for its end.

        Params:
            cmd: shell text.
            session: its name.
            timeout: seconds after which the command is ended; None: never.
        Returns:
            Its output and exit code; a code other than 0 is no exception.
        Raises:
            CommandTimeout: it was ended; `details["output"]` has what it printed.
            RockError: it did not run, or its end is not known.
        """
        await self.create_session(session)
        body = {"session": session, "command": cmd, "timeout": timeout, "check": "silent"}
        result = await self._call("/run_in_session", body, wait=True)
        return SessionResult(result["output"], result["exit_code"], result.get("failure_reason") or "")

    async def execute(self, cmd: str | Sequence[str], timeout: float = COMMAND_SECONDS) -> ExecuteResult:
        """Run a command outside every session: a list as it is, a text by the sandbox's shell. Otherwise as above."""
        shell = isinstance(cmd, str)
        body = {"command": cmd if shell else list(cmd), "shell": shell, "timeout": timeout}
        result = await self._call("/execute", body, wait=True)
        return ExecuteResult(result["stdout"], result["stderr"], result["exit_code"])

    async def write_file(self, path: str, content: str) -> None:
        """Write a text to a file in the sandbox; the folders above it are made.

        Raises:
            RockError: it could not be written; the message says why.
        """
        await self._call("/write_file", {"path": path, "content": content})

    async def upload_dir(self, local: str | Path, container: str, timeout: float = 600.0) -> None:
        """Replace a folder's contents in the sandbox by those of a local folder, sent as one tar in one request.

        Params:
            local: the folder; dotfiles, empty folders, modes and links come along.
            container: absolute path of the folder there; made if it is missing. The image needs `tar`.
            timeout: seconds to unpack.
        Raises:
            NotADirectoryError, OSError: the local folder cannot be read.
            CommandFailed: it could not be unpacked; the message says why.
        """
        packed = f"/tmp/rock-{uuid.uuid4().hex}.tar"
        command = archive.unpack_command(packed, container)
        with tempfile.TemporaryDirectory() as folder:
            tar = Path(folder) / "upload.tar"
            await asyncio.to_thread(archive.pack, Path(local), tar)
            await self._service.upload(tar, packed, self._required_id(), node=self._node)
        done = await self.execute(command, timeout)
        if done.exit_code != 0:
            said = done.stderr.strip() or f"exit code {done.exit_code}"
            raise errors.CommandFailed(f"{container} was not unpacked: {said}", exit_code=done.exit_code)

    async def stop(self) -> None:
        """Stop the sandbox. Again, or before a start: nothing happens.

        Raises:
            RockError: the service did not take it; calling it again is safe.
        """
        _holders[self._service.url, self.image or ""].discard(self.sandbox_id or "")
        try:
            if self.sandbox_id is not None:
                await self._call("/stop", {})
                self.sandbox_id, self._node = None, ""
                self._sessions.clear()
        finally:
            await self._service.close()

    async def remove_image(self, image: str | None = None) -> bool:
        """Remove an image from the nodes; an image that stays after 3 tries is logged as LEAKED IMAGE.

        Params:
            image: None: the one of the last start.
        Returns:
            Whether it is gone. False without a try: `STACX_KEEP_IMAGES` keeps it, or another sandbox of this process
            uses it still and will remove it.
        """
        name = image or self.image
        if name is None or settings.read("STACX_KEEP_IMAGES"):
            return False
        if _holders[self._service.url, name] - {self.sandbox_id}:
            return False
        reason = ""
        try:
            for tries in range(1, REMOVE_TRIES + 1):
                reason = await self._removal(name)
                if not reason:
                    return True
                if tries < REMOVE_TRIES:
                    await self._sleep(backoff(tries))
        finally:
            if self.sandbox_id is None:
                await self._service.close()
        _log.warning("LEAKED IMAGE %s at %s: %s", name, self._service.url, reason)
        return False

    async def _removal(self, image: str) -> str:
        """Try once to remove an image; return why it is still there, "" if it is gone."""
        try:
            result = await self._service.call("/remove_image", {"image": image}, tries=1)
        except errors.RockError as error:
            return error.message
        return f"it is still on {result['failed']}" if result.get("failed") else ""

    def _required_id(self) -> str:
        """Return the sandbox's id; raises NotRunning before a start."""
        if self.sandbox_id is None:
            raise errors.NotRunning("this RockSandbox has no sandbox: call start() first")
        return self.sandbox_id

    async def _call(self, path: str, body: dict[str, Any], *, wait: bool = False) -> Any:
        """Make a call on the sandbox."""
        return await self._service.call(path, {**body, "sandbox_id": self._required_id()}, node=self._node, wait=wait)
