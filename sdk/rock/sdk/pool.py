"""One pooled HTTP client per event loop, closed by the loop's own shutdown."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator

import aiohttp

from rock import errors

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


def no_answer(url: str, error: Exception) -> errors.Unavailable:
    """Return the error for a request to `url` that ended without an answer, in words for whoever has to do something about it."""
    if not isinstance(error, aiohttp.ClientConnectorError):
        return errors.Unavailable(f"{url} does not answer: {str(error) or type(error).__name__}")
    cause = error.os_error
    refused = cause.errno is not None and not isinstance(cause, socket.gaierror)
    reason = os.strerror(cause.errno or 0) if refused else cause.strerror or str(cause)
    return errors.Unavailable(
        f"{url} does not answer: {reason}. Is the service running, and base_url (ROCK_BASE_URL) its address?"
    )


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
