"""The life of a sandbox: start, status, stop, restart, delete, fork, commit."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Self
from urllib.parse import quote

from rock import errors
from rock.actions import (
    CloseResponse,
    CommitPhase,
    CommitRequest,
    CommitStatusResponse,
    ForkRequest,
    ForkResponse,
    IsAliveResponse,
    SandboxRequest,
    StartResponse,
    StatisticsResponse,
    StatusResponse,
    dump,
    parse,
)
from rock.sdk.sandbox.remote import Remote
from rock.sdk.transport import is_unfinished, new_request_id


class LifecycleVerbs(Remote):
    """Verbs on the sandbox as a whole."""

    async def start(self) -> None:
        """Start the sandbox and wait until it is alive.

        Cancelled, it withdraws the start, so that no sandbox is left behind.

        Raises:
            NoCapacity, ImageNotFound, PullFailed, StartTimeout, …: why there is no sandbox.
            AlreadyExists: config.sandbox_id names a living one, or this object has been started.
        """
        if self._sandbox_id is not None:
            raise errors.AlreadyExists(f"this Sandbox is already {self._sandbox_id}", sandbox_id=self._sandbox_id)
        request_id = self.config.request_id or new_request_id()
        body = dump(self.config.to_request()) | {"request_id": request_id}
        try:
            self._placed(parse(StartResponse, await self.transport.call("/start", body)))
        except asyncio.CancelledError as cancelled:
            await self.transport.withdraw(request_id, cancelled)
            raise

    def _placed(self, response: StartResponse) -> None:
        """Take on what a start answered."""
        self._sandbox_id = response.sandbox_id
        self._host_name, self._host_ip = response.host_name, response.host_ip

    async def attach(self, sandbox_id: str) -> None:
        """Take over a sandbox that someone started; config then says what it was given.

        Raises:
            NotFound: there is no such sandbox, or it belongs to someone else.
        """
        status = await self._status(sandbox_id, include_all_states=True)
        self._sandbox_id = sandbox_id
        self._host_name, self._host_ip = status.host_name, status.host_ip
        for name in ("image", "cpus", "memory", "user_id", "experiment_id", "namespace"):
            value = getattr(status, name)
            if value is not None:
                setattr(self.config, name, value)

    async def stop(self) -> None:
        """Stop the sandbox. Again, or before a start: nothing happens."""
        if self._sandbox_id is not None:
            await self.transport.post("/stop", dump(SandboxRequest(sandbox_id=self._sandbox_id)))

    async def close(self) -> CloseResponse:
        """Stop the sandbox and be done with it."""
        await self.stop()
        return CloseResponse()

    async def restart(self) -> None:
        """Bring a stopped sandbox back with its container and files, and wait until it is alive.

        Raises:
            BadRequest, NotFound: it is running, or its container is gone.
        """
        self._placed(await self.send(StartResponse, "/restart", SandboxRequest(), self.config.startup_timeout))

    async def delete(self) -> None:
        """Delete a stopped sandbox for good; an unknown one counts as deleted.

        Raises:
            CallerFault: it is running.
        """
        await self.transport.post("/delete", dump(SandboxRequest(sandbox_id=self.required_id())))

    async def fork(self, count: int = 1) -> list[Self]:
        """Return new sandboxes that have this one's files as they are now, all of them or none.

        They are on its node, and like it in everything that `config` and the service know. Running processes and sessions are not
        copied. Cancelled, it leaves no sandbox behind.

        Params:
            count: how many, at most 64.
        Raises:
            BadRequest: its node could never hold so many.
            NoCapacity, StartTimeout, …: why there are none.
        """
        config, request_id = self.config, new_request_id()
        request = ForkRequest(
            count=count, env=dict(config.env), docker_args=list(config.docker_args),
            startup_timeout=config.startup_timeout, request_id=request_id,
        )  # fmt: skip
        path = f"/sandboxes/{quote(self.required_id(), safe='')}/fork"
        try:
            made = parse(ForkResponse, await self.transport.call(path, dump(request)))
        except asyncio.CancelledError as cancelled:
            await self.transport.withdraw(request_id, cancelled)
            raise
        return [self._forked(response) for response in made.sandboxes]

    def _forked(self, response: StartResponse) -> Self:
        """Return the object of a sandbox that was made of this one."""
        sandbox = type(self)(replace(self.config, sandbox_id=None))
        sandbox._placed(response)
        return sandbox

    async def is_alive(self) -> IsAliveResponse:
        """Return whether the sandbox runs; an unknown one does not."""
        return parse(IsAliveResponse, await self.transport.get("/is_alive", {"sandbox_id": self.required_id()}))

    async def get_status(self, include_all_states: bool = False) -> StatusResponse:
        """Return all that the service knows of the sandbox.

        Params:
            include_all_states: whether a stopped one counts as found.
        Raises:
            NotFound: unknown, or stopped without include_all_states.
        """
        return await self._status(self.required_id(), include_all_states)

    async def _status(self, sandbox_id: str, include_all_states: bool) -> StatusResponse:
        """Return the status of any sandbox."""
        params = {"sandbox_id": sandbox_id, "include_all_states": str(include_all_states).lower()}
        return parse(StatusResponse, await self.transport.get("/get_status", params))

    async def get_statistics(self) -> StatisticsResponse:
        """Return the sandbox's use of CPU, memory and disk (percent of its limits) and network (bytes)."""
        params = {"sandbox_id": self.required_id()}
        return parse(StatisticsResponse, await self.transport.get("/get_sandbox_statistics", params))

    async def commit(
        self,
        image_tag: str,
        username: str | None = None,
        password: str | None = None,
        timeout: float = 180,
        interval: float = 2,
    ) -> CommitStatusResponse:
        """Make an image of the sandbox and wait until it is done, or pushed.

        Params:
            image_tag: the image's name; with a registry in it and credentials, it is pushed there.
            username, password: for the registry.
            timeout: seconds to wait.
            interval: seconds between two looks.
        Returns:
            The final status; look at its phase.
        Raises:
            TimeoutError: it goes on after timeout; the commit itself is not ended.
        """
        async with asyncio.timeout(timeout):
            status = await self.commit_async(image_tag, username, password)
            while status.phase is CommitPhase.RUNNING:
                await asyncio.sleep(interval)
                status = await self.get_commit_status()
            return status

    async def commit_async(
        self, image_tag: str, username: str | None = None, password: str | None = None
    ) -> CommitStatusResponse:
        """Begin to make an image of the sandbox, and return how that stands; parameters as for `commit`."""
        request = CommitRequest(
            sandbox_id=self.required_id(), image_tag=image_tag, username=username, password=password, wait=0
        )
        result: Any = await self.transport.post("/commit", dump(request))
        return await self.get_commit_status() if is_unfinished(result) else parse(CommitStatusResponse, result)

    async def get_commit_status(self) -> CommitStatusResponse:
        """Return how the sandbox's last commit stands.

        Raises:
            NotFound: it was never committed.
        """
        path = f"/commit/{quote(self.required_id(), safe='')}"
        return parse(CommitStatusResponse, await self.transport.get(path))
