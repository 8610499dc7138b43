"""Many callers at once from one thread: asynchronous requests to the service, and what its processes hold meanwhile."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.wire import PREFIX, Box


@dataclass
class Crowd:
    """A client that has as many requests open as it is asked to."""

    http: aiohttp.ClientSession
    url: str

    async def post(self, route: str, **fields: Any) -> dict[str, Any]:
        """POST to a route of the prefix, and return the envelope."""
        async with self.http.post(self.url + PREFIX + route, json=fields) as reply:
            return dict(json.loads(await reply.read()))

    async def get(self, route: str, **query: Any) -> dict[str, Any]:
        """GET a route of the prefix, and return the envelope."""
        async with self.http.get(self.url + PREFIX + route, params=query) as reply:
            return dict(json.loads(await reply.read()))

    async def run(self, shell: Box, command: str, **fields: Any) -> dict[str, Any]:
        """Run a command in a session."""
        fields = {"session": shell.session, "command": command, "check": "silent", **fields}
        return await self.post("/run_in_session", sandbox_id=shell.id, **fields)


@contextlib.asynccontextmanager
async def crowd(url: str) -> AsyncIterator[Crowd]:
    """Yield a crowd before the service at `url`."""
    limits = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=limits, timeout=aiohttp.ClientTimeout(total=170)) as http:
        yield Crowd(http, url)


async def in_batches(work: Iterable[Any], at_once: int) -> list[Any]:
    """Await coroutines, so many at once, and return what they gave, in order."""
    room = asyncio.Semaphore(at_once)

    async def one(coroutine: Any) -> Any:
        async with room:
            return await coroutine

    return list(await asyncio.gather(*(one(coroutine) for coroutine in work)))


def family(pid: int) -> list[int]:
    """Return a process and its children: gunicorn serves in a child."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def threads(pid: int) -> int:
    """Return how many threads a process and its children have."""
    return sum(len(list(Path(f"/proc/{one}/task").iterdir())) for one in family(pid))


def descriptors(pid: int) -> int:
    """Return how many descriptors they hold."""
    return sum(len(list(Path(f"/proc/{one}/fd").iterdir())) for one in family(pid))


def resident(pid: int) -> float:
    """Return their resident memory in MiB."""
    pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in family(pid))
    return pages * 4096 / 2**20


async def timed(coroutine: Any) -> tuple[float, Any]:
    """Return how many seconds it took, and what it gave."""
    begun = time.monotonic()
    found = await coroutine
    return time.monotonic() - begun, found
