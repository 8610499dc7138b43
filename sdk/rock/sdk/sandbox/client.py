"""`Sandbox`: one sandbox, every verb a coroutine. `SandboxGroup`: several that are alike, all of them or none.

async with Sandbox(SandboxConfig(image="python:3.11", memory="8g", cpus=2)) as sandbox:
    seen = await sandbox.arun("python --version")
    print(seen.output, seen.exit_code)
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from types import TracebackType
from typing import Self

from rock import errors
from rock.sdk.sandbox.config import SandboxConfig, SandboxGroupConfig
from rock.sdk.sandbox.files import FileSystem, FileVerbs
from rock.sdk.sandbox.lifecycle import LifecycleVerbs
from rock.sdk.sandbox.process import Process
from rock.sdk.sandbox.sessions import RunMode

RETRY_SECONDS = 1.0
"""Pause before a group tries a start again; grows with each try."""


class Sandbox(LifecycleVerbs, FileVerbs):
    """A sandbox at the service.

    Params:
        config: what to start and where; None means all defaults.

    `fs` has helpers for folders, downloads and permissions; `process` runs scripts.
    """

    def __init__(self, config: SandboxConfig | None = None) -> None:
        super().__init__(config)
        self.fs = FileSystem(self)
        self.process = Process(self)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class SandboxGroup:
    """A group of sandboxes.

    Params:
        config: what to start, how many, and how eagerly.
    Raises:
        BadRequest: config fixes a sandbox_id or a request_id, which only one sandbox can have, or its numbers are below 1.

    `sandbox_list` has the sandboxes.
    """

    def __init__(self, config: SandboxGroupConfig) -> None:
        if config.sandbox_id is not None and config.size > 1:
            raise errors.BadRequest("sandbox_id names one sandbox; a group of several cannot share it")
        if config.request_id is not None and config.size > 1:
            raise errors.BadRequest("request_id names one start; a group of several cannot share it")
        if min(config.size, config.start_concurrency, config.start_retry_times) < 1:
            raise errors.BadRequest("size, start_concurrency and start_retry_times must be at least 1")
        self.config = config
        # Each has its own copy: attach() writes to it.
        self.sandbox_list = [Sandbox(dataclasses.replace(config)) for _ in range(config.size)]

    async def start(self) -> None:
        """Start all, start_concurrency at a time, each tried start_retry_times times.

        Raises:
            RockError: one could not be started; the others are stopped again.
        """
        slots = asyncio.Semaphore(self.config.start_concurrency)
        starts = [asyncio.create_task(self._start_one(sandbox, slots)) for sandbox in self.sandbox_list]
        try:
            await asyncio.gather(*starts)
        except BaseException as reason:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            try:
                await self.stop()
            except errors.RockError as error:
                reason.add_note(f"a sandbox of the group could not be stopped: {error}")
            raise

    async def _start_one(self, sandbox: Sandbox, slots: asyncio.Semaphore) -> None:
        """Start one sandbox, trying again unless the request itself is wrong."""
        for attempt in range(1, self.config.start_retry_times + 1):
            try:
                async with slots:
                    await sandbox.start()
                return
            except errors.ServiceFault:
                if attempt == self.config.start_retry_times:
                    raise
            await asyncio.sleep(RETRY_SECONDS * attempt * (0.5 + random.random()))

    async def stop(self) -> None:
        """Stop all.

        Raises:
            RockError: the first failure, after all were tried.
        """
        ends = await asyncio.gather(*(sandbox.stop() for sandbox in self.sandbox_list), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


__all__ = ["RunMode", "Sandbox", "SandboxGroup"]
