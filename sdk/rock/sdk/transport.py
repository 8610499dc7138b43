"""The one way from the SDK to the service: sends, retries, waits, and turns a Failed envelope into its error.

Every mutating call carries a `request_id`. After a lost connection the same call is sent again under the same id, and
attaches to the first: a command never runs twice.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote

import aiohttp

from rock import errors
from rock.sdk.pool import CONNECT_SECONDS, client, no_answer

PREFIX = "/apis/envs/sandbox/v1"

POLL_SECONDS = 30.0
"""How long the service holds one request open while a call goes on."""

MARGIN_SECONDS = 30.0
"""What the client gives on top of the service's own limit, so that the service is always the one to end a call."""

QUICK_SECONDS = 0.2
"""How long a call is waited for before its output is followed: most are done by then."""

PART_BYTES = 1024 * 1024
"""Of a download, at most, handed on at a time."""

SLOW_SECONDS = 600.0
"""For calls that the service answers only when done."""

CANCEL_SECONDS = 5.0

PATIENCE_SECONDS = 30.0
"""For how long a call is sent again while nobody answers."""

_AWAY = frozenset({502, 503, 504})

FormMaker = Callable[[], aiohttp.FormData]


class _Away(Exception):
    """The service could not be reached, or said it is down.

    Params:
        error: what the caller gets when patience ends.
        pause: seconds to wait that the service asked for.
        mute: whether the try ended by its time limit, with no sign of life at all.
    """

    def __init__(self, error: errors.RockError, *, pause: float | None = None, mute: bool = False) -> None:
        super().__init__(error.message)
        self.error, self.pause, self.mute = error, pause, mute


def new_request_id() -> str:
    """Return an id that no other call has."""
    return uuid.uuid4().hex


class Transport:
    """Calls to one service with one set of headers.

    Params:
        base_url: such as `http://localhost:8080`.
        headers: sent with every request.
        patience: seconds without any answer after which a call fails with `Unavailable`.
    """

    def __init__(self, base_url: str, headers: Mapping[str, str], patience: float = PATIENCE_SECONDS) -> None:
        self.url = base_url.rstrip("/")
        self._headers = dict(headers)
        self._patience = patience

    async def get(self, path: str, params: Mapping[str, str] | None = None, *, wait: float = 0.0) -> Any:
        """Return the result of a GET.

        Params:
            path: below the sandbox prefix.
            wait: seconds that the service may hold the request.
        Raises:
            RockError: the service's own error, or `Unavailable`.
        """
        return await self._send("GET", path, params=params, limit=wait + MARGIN_SECONDS)

    async def post(self, path: str, body: Mapping[str, Any], seconds: float | None = None) -> Any:
        """Return the result of a POST that the service answers when it is done; otherwise as `get`.

        Params:
            seconds: that the service itself may take, if those can be many; None: SLOW_SECONDS are enough for it.
        """
        request_id = body.get("request_id") or new_request_id()
        limit = max(SLOW_SECONDS, (seconds or 0.0) + MARGIN_SECONDS)
        return await self._send("POST", path, body={**body, "request_id": request_id}, limit=limit)

    async def upload(self, path: str, form: FormMaker) -> Any:
        """Return the result of a multipart POST; form makes a fresh body for each try. Otherwise as `get`."""
        return await self._send("POST", path, form=form, limit=None)

    async def call(
        self, path: str, body: Mapping[str, Any], meanwhile: Callable[[str], Awaitable[None]] | None = None
    ) -> Any:
        """Return the result of a call that may take long: start it, then wait for its end, however long that is.

        When the awaiting task is cancelled, the call is cancelled at the service too. Otherwise as `get`.

        Params:
            meanwhile: awaited with the request id once, if the call is not done at once.
        """
        request_id = body.get("request_id") or new_request_id()
        wait = QUICK_SECONDS if meanwhile else POLL_SECONDS
        body = {**body, "request_id": request_id, "wait": wait}
        try:
            result = await self._send("POST", path, body=body, limit=wait + MARGIN_SECONDS)
            if meanwhile and is_unfinished(result):
                await meanwhile(request_id)
            while is_unfinished(result):
                where = f"/results/{quote(request_id, safe='')}"
                result = await self.get(where, {"wait": f"{POLL_SECONDS:g}"}, wait=POLL_SECONDS)
            return result
        except asyncio.CancelledError as cancelled:
            await self.cancel(request_id, cancelled)
            raise

    async def download(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """Yield the bytes that a GET sends, as they come. Close it if you stop before its end.

        Raises:
            RockError: the service's own error, or Unavailable: nobody answers, or the connection broke on the way.
        """
        silent_since, tries = time.monotonic(), 0
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SLOW_SECONDS)
        session, url, begun = await client(), self.url + PREFIX + path, False
        while True:
            try:
                async with session.get(url, params=params, headers=self._headers, timeout=timeout) as response:
                    if response.content_type == "application/json":
                        _result(response.status, response.headers, await response.read(), url)
                    async for part in response.content.iter_chunked(PART_BYTES):
                        begun = True
                        yield part
                    return
            except (_Away, aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                tries += 1
                pause = _backoff(tries)
                if begun or time.monotonic() + pause - silent_since > self._patience:
                    text = "broke off" if begun else "does not answer"
                    raise errors.Unavailable(f"{url} {text}: {error or type(error).__name__}") from error
                await asyncio.sleep(pause)

    async def websocket(self, path: str, params: Mapping[str, str]) -> aiohttp.ClientWebSocketResponse:
        """Return an open WebSocket to a route of the service.

        Raises:
            RockError: the service refuses it, or does not answer.
        """
        session, url = await client(), self.url + PREFIX + path
        try:
            return await session.ws_connect(url, params=params, headers=self._headers, max_msg_size=0, heartbeat=30)
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 401:
                raise errors.Unauthorized(f"{url} wants an API key, or another one") from error
            raise _foreign(error.status, url) from error
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise no_answer(url, error) from error

    async def withdraw(self, request_id: str, cancelled: asyncio.CancelledError) -> None:
        """Stop what a cancelled call has started all the same; trouble is noted on the cancellation, which must go on."""
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                where = f"/results/{quote(request_id, safe='')}"
                result = await self.get(where, {"wait": f"{CANCEL_SECONDS / 2:g}"})
                made = result.get("sandboxes", [result]) if isinstance(result, dict) else []
                for one in made:
                    if "sandbox_id" in one:
                        await self.post("/stop", {"sandbox_id": one["sandbox_id"]})
        except (errors.CallerFault, errors.CommandFault):
            return  # the service knows no such call, or has cancelled it: nothing is left
        except (errors.RockError, TimeoutError) as error:
            cancelled.add_note(f"the cancelled call {request_id} may have left a sandbox: {error}")

    async def cancel(self, request_id: str, cancelled: asyncio.CancelledError) -> None:
        """End a call at the service; what goes wrong is noted on the cancellation, which must go on."""
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await self.post(f"/results/{quote(request_id, safe='')}/cancel", {})
        except (errors.RockError, TimeoutError) as error:
            cancelled.add_note(f"the call {request_id} could not be cancelled at the service: {error}")

    async def _send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        form: FormMaker | None = None,
        limit: float | None,
    ) -> Any:
        """Send until the service answers; a silence of `patience` seconds ends it.

        Params:
            limit: seconds for one try, None for no limit.
        """
        data = None if body is None else json.dumps(body).encode()
        silent_since, tries = time.monotonic(), 0
        while True:
            started = time.monotonic()
            try:
                return await self._try(method, path, params, form() if form else data, limit)
            except _Away as away:
                # A connection that was held for a while and then broke was no silence: an answer was on its way.
                if not away.mute and time.monotonic() - started > 2 * CONNECT_SECONDS:
                    silent_since = time.monotonic()
                tries += 1
                pause = _backoff(tries) if away.pause is None else away.pause
                if time.monotonic() + pause - silent_since > self._patience:
                    # What the HTTP library says of it would be sixty lines more, and nothing new.
                    raise away.error from None
                await asyncio.sleep(pause)

    async def _try(
        self, method: str, path: str, params: Mapping[str, str] | None, data: bytes | aiohttp.FormData | None,
        limit: float | None,
    ) -> Any:  # fmt: skip
        """Send once and return the result; raises the envelope's error, or _Away."""
        headers = dict(self._headers)
        if isinstance(data, bytes):
            headers["Content-Type"] = "application/json"
        silence = max(SLOW_SECONDS, limit or 0.0)
        timeout = aiohttp.ClientTimeout(total=limit, sock_connect=CONNECT_SECONDS, sock_read=silence)
        session, url = await client(), self.url + PREFIX + path
        try:
            async with session.request(
                method, url, params=params, data=data, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                raw = await response.read()
                return _result(response.status, response.headers, raw, url)
        except aiohttp.InvalidURL as error:
            raise errors.BadRequest(f"base_url {self.url!r} is not a URL") from error
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise _Away(no_answer(url, error), mute=isinstance(error, TimeoutError)) from error


def is_unfinished(result: Any) -> bool:
    """Return whether a Success result only says that the call goes on."""
    return (
        isinstance(result, dict) and result.get("state") in ("pending", "running")
        and "request_id" in result and "sandbox_id" not in result
    )  # fmt: skip


def _result(status: int, headers: Mapping[str, str], raw: bytes, url: str) -> Any:
    """Return a Success envelope's result; raise the error of any other answer."""
    try:
        envelope = json.loads(raw)
    except ValueError:
        envelope = None
    if isinstance(envelope, dict) and envelope.get("status") == "Success":
        return envelope.get("result")
    if isinstance(envelope, dict) and envelope.get("status") == "Failed":
        error = errors.from_envelope(envelope)
    else:
        error = _foreign(status, url)
    if status in _AWAY:
        raise _Away(error, pause=_retry_after(headers))
    raise error


def _foreign(status: int, url: str) -> errors.RockError:
    """Return the error for an answer that is not the service's: some other server's, or a proxy's."""
    if status in _AWAY:
        return errors.Unavailable(f"{url} is down (HTTP {status})")
    if status == 404:
        return errors.RouteNotFound(f"{url} does not exist; is base_url that of a ROCK service?")
    return errors.Internal(f"{url} gave HTTP {status} without an envelope; is base_url that of a ROCK service?")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the Retry-After in seconds, at most 10, or None when there is none to read."""
    text = headers.get("Retry-After", "")
    return min(float(text), 10.0) + random.random() * 0.1 if text.isdigit() else None


def _backoff(tries: int) -> float:
    """Return the pause in seconds after that many tries: doubling, jittered so that clients do not come back at once."""
    return float(min(0.1 * 2**tries, 5.0) * (0.5 + random.random() / 2))
