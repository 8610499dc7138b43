"""Calls to routes without an envelope (GEM, EnvHub): JSON in, JSON out, an error is an HTTP status with a text."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

from rock import errors
from rock.sdk.pool import CONNECT_SECONDS, client, no_answer

PATIENCE_SECONDS = 30.0
"""Seconds for which a call that found nobody is sent again."""

_BY_STATUS: Mapping[int, type[errors.RockError]] = {
    400: errors.BadRequest,
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    413: errors.TooLarge,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.Unavailable,
}


class PlainService:
    """Routes below one URL.

    Params:
        url: without a slash at its end.
        headers: sent with every call.
        seconds: how long one try of a call may take.
        patience: for how long a call is sent again while the service is away, None: PATIENCE_SECONDS; 0: it is sent once.
        longest: seconds until which a try that has had no answer is followed by another, which attaches to it.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], seconds: float, patience: float | None = None, longest: float = 0.0
    ) -> None:
        self.url = url.rstrip("/")
        self._headers, self._seconds, self._longest = dict(headers), seconds, longest
        self._patience = PATIENCE_SECONDS if patience is None else patience

    async def send(
        self, path: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """POST `body` to `path`, or GET it without one, and return the JSON value of the answer.

        What is sent again must be safe to repeat: either of its own nature, or by an X-Request-Id in `headers`.

        Raises:
            RockError: the service's error, or Unavailable.
        """
        begun = time.monotonic()
        end, tries = begun + self._patience, 0
        while True:
            try:
                return await self._try(path, body, {**self._headers, **(headers or {})})
            except TimeoutError as error:
                # The service is there, and may be busy with it still.
                if time.monotonic() > begun + self._longest:
                    raise errors.Unavailable(f"{self.url}/{path} gave no answer in time") from error
                end = time.monotonic() + self._patience
            except errors.Unavailable:
                tries += 1
                pause = min(0.1 * 2**tries, 3.0) * (0.5 + random.random() / 2)
                if time.monotonic() + pause > end:
                    raise
                await asyncio.sleep(pause)

    async def _try(self, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> Any:
        """Send once. Raises TimeoutError when a service that was reached gave no answer in time."""
        url, method = f"{self.url}/{path}", "GET" if body is None else "POST"
        timeout = aiohttp.ClientTimeout(total=self._seconds, sock_connect=CONNECT_SECONDS)
        session = await client()
        try:
            async with session.request(method, url, json=body, headers=headers, timeout=timeout) as response:
                return _answer(response.status, await response.read(), url)
        except aiohttp.InvalidURL as error:
            raise errors.BadRequest(f"{self.url!r} is not a URL") from error
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ClientError):
                raise  # aiohttp's own kinds are of a connection that was not made in time
            raise no_answer(url, error) from None


def _answer(status: int, raw: bytes, url: str) -> Any:
    """Return the value of a good answer; raise the error of any other."""
    try:
        value = json.loads(raw)
    except ValueError as error:
        if status == 200:
            raise errors.Internal(f"{url} gave no JSON; is it that of a ROCK service?") from error
        value = None
    if status == 200:
        return value
    text = value.get("error") if isinstance(value, dict) else None
    if text and isinstance(value, dict) and isinstance(value.get("kind"), str):
        known = {name: item for name, item in value.items() if name not in ("error", "info")}
        raise errors.from_envelope({"error": text, "result": known})
    raise _BY_STATUS.get(status, errors.Internal)(str(text or f"{url} gave HTTP {status} and no reason"))
