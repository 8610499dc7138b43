"""One pooled HTTP client per event loop, closed by the loop's own shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import aiohttp

CONNECT_SECONDS = 10.0

_pools: dict[asyncio.AbstractEventLoop, tuple[aiohttp.ClientSession, AsyncGenerator[aiohttp.ClientSession, None]]] = {}


async def _lifetime(loop: asyncio.AbstractEventLoop) -> AsyncGenerator[aiohttp.ClientSession, None]:
    """Yield the loop's client once; close it when this generator is closed."""
    # No limit on connections: thousands of calls wait at once, and each holds one.
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15))
    try:
        yield session
    finally:
        _pools.pop(loop, None)
        await session.close()


async def client() -> aiohttp.ClientSession:
    """Return the running loop's client, made on first use.

    A loop closes its open async generators when it shuts down (`asyncio.run` does it), which closes the client: callers
    that never say good-bye leave no socket behind.
    """
    loop = asyncio.get_running_loop()
    for other in [known for known in _pools if known.is_closed()]:
        _pools.pop(other, None)
    known = _pools.get(loop)
    if known is None or known[0].closed:
        lifetime = _lifetime(loop)
        _pools[loop] = known = (await anext(lifetime), lifetime)
    return known[0]
