"""The rollout's way to the service, on aiohttp alone: sends with a request id, sends again what was lost, waits for the
end of long calls, and turns a Failed envelope into its error."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import aiohttp

from rock import errors
from rock.rollout.breaker import Breaker, NotAsked

PREFIX = "/apis/envs/sandbox/v1"
POLL_SECONDS = 30.0
"""How long the service holds a request open while a call goes on."""
SILENCE_SECONDS = 60.0
"""After that long without a byte, a request counts as lost."""
UPLOAD_SILENCE_SECONDS = 600.0
"""An upload is answered when the file is in the sandbox."""
TRIES = 6
"""How often a request is sent while no answer comes: about 15 s with the pauses."""
CANCEL_SECONDS = 5.0

Sleep = Callable[[float], Awaitable[None]]
_AWAY = frozenset({502, 503, 504})
_SICK = (errors.Unavailable, errors.NodeLost, errors.Internal, errors.StartTimeout)
"""Faults of a service or a node. Of the others, one is the caller's, one the image's, and a full node is a healthy one."""


class NoAnswer(errors.Unavailable):
    """No answer came, so nobody knows whether the call runs; the same request id may be sent again."""


def new_request_id() -> str:
    """Return an id that no other call has."""
    return uuid.uuid4().hex


def backoff(tries: int, longest: float = 30.0) -> float:
    """Return the pause in seconds after that many tries: doubling from half a second, jittered against crowds."""
    return float(min(0.5 * 2 ** (tries - 1), longest) * (0.5 + random.random() / 2))


class Service:
    """One service with one set of headers, over one connection pool that opens when it is first used.

    Params:
        base_url: such as `http://localhost:8080`.
        headers: sent with every request.
        breaker: who counts the failures.
        sleep: waits that many seconds.
    """

    def __init__(self, base_url: str, headers: Mapping[str, str], breaker: Breaker, sleep: Sleep) -> None:
        self.url = base_url.rstrip("/")
        self._headers, self._breaker, self._sleep = dict(headers), breaker, sleep
        self._client: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    @contextmanager
    def outcome(self, node: str = "") -> Iterator[None]:
        """Count what happens inside as one success or one failure, however often it is tried there.

        Params:
            node: name of the machine that has the sandbox, "" where that is not known.
        Raises:
            NotAsked: the service or the node is left alone at present.
        """
        name = self._name(node)
        self._breaker.check((self.url, name))
        try:
            yield
        except NotAsked:
            raise
        except NoAnswer as error:
            self._breaker.failed(self.url, error.message)
            raise
        except _SICK as error:
            self._breaker.failed(name, error.message)
            raise
        except errors.RockError:
            self._breaker.worked(name)
            raise
        self._breaker.worked(self.url)
        self._breaker.worked(name)

    def _name(self, node: str) -> str:
        """Return the name under which a node's failures are counted."""
        return f"{self.url} node {node}" if node else self.url

    async def call(
        self, path: str, body: Mapping[str, Any], *, node: str = "", tries: int = TRIES, wait: bool = False
    ) -> Any:
        """Return the result of a call, and count its outcome; otherwise as `attempt`."""
        with self.outcome(node):
            return await self.attempt(path, body, new_request_id(), node=node, tries=tries, wait=wait)

    async def attempt(
        self, path: str, body: Mapping[str, Any], request_id: str, *, node: str = "", tries: int, wait: bool
    ) -> Any:
        """Return the result of a call, sent again under the same id as long as no answer comes.

        Cancelled, a waited-for call is cancelled at the service too.

        Params:
            path: below the sandbox prefix.
            body: the request.
            request_id: makes it safe to send again.
            node: see `outcome`.
            tries: how often it is sent in a row without an answer.
            wait: the call may take long: ask for its end in portions.
        Raises:
            NoAnswer: none came. NotAsked: another call has meanwhile found out that asking is in vain.
            RockError: the service's own error.
        """
        extra: dict[str, Any] = {"request_id": request_id, **({"wait": POLL_SECONDS} if wait else {})}
        data = json.dumps({**body, **extra}).encode()

        async def exchange(poll: bool) -> Any:
            """Send the call, or ask how it stands."""
            if poll:
                return await self._once("GET", f"/results/{request_id}", params={"wait": f"{POLL_SECONDS:g}"})
            return await self._once("POST", path, data=data)

        try:
            return await self._repeated(exchange, node, tries)
        except asyncio.CancelledError as cancelled:
            if wait:
                await self._cancel(request_id, cancelled)
            raise

    async def result(self, request_id: str, wait: float) -> Any:
        """Return the result of a call that was made, or how it stands after `wait` seconds. Asked once, and not counted.

        Raises:
            RockError: the call's error, NotFound for one that the service does not know, or NoAnswer.
        """
        return await self._once("GET", f"/results/{request_id}", params={"wait": f"{wait:g}"})

    async def upload(self, file: Path, target: str, sandbox_id: str, *, node: str = "") -> None:
        """Send a local file to a path in the sandbox, streamed. Otherwise as `call`.

        Raises:
            OSError: the file cannot be read.
        """
        fields = {"sandbox_id": sandbox_id, "target_path": target, "request_id": new_request_id()}

        async def exchange(poll: bool) -> Any:
            """Send the file; the service answers when it is there."""
            form = aiohttp.FormData()
            for name, value in fields.items():
                form.add_field(name, value)
            # Each try reads it from its beginning; aiohttp closes it.
            form.add_field("file", file.open("rb"), filename=file.name, content_type="application/octet-stream")
            return await self._once("POST", "/upload", data=form, silence=UPLOAD_SILENCE_SECONDS)

        with self.outcome(node):
            await self._repeated(exchange, node, TRIES)

    async def _repeated(self, exchange: Callable[[bool], Awaitable[Any]], node: str, tries: int) -> Any:
        """Send until there is a final answer. Raises NoAnswer after that many tries in a row without any."""
        lost, running = 0, False
        while True:
            self._breaker.check((self.url, self._name(node)))
            try:
                result = await exchange(running)
            except NoAnswer:
                lost, running = lost + 1, False  # The call itself again: the service attaches it to the first.
                if lost >= tries:
                    raise
                await self._sleep(backoff(lost, 8.0))
                continue
            lost, running = 0, _is_unfinished(result)
            if not running:
                return result

    async def _once(
        self, method: str, path: str, *, data: bytes | aiohttp.FormData | None = None,
        params: Mapping[str, str] | None = None, silence: float | None = SILENCE_SECONDS,
    ) -> Any:  # fmt: skip
        """Send once and return the result. Raises the envelope's error, or NoAnswer."""
        if self._client is None:
            # Closed before the service would: a request must not meet a connection that is just being closed.
            self._client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15))
        headers = {**self._headers, **({"Content-Type": "application/json"} if isinstance(data, bytes) else {})}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=silence)
        url = self.url + PREFIX + path
        try:
            async with self._client.request(
                method, url, data=data, params=params, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                return _result(response.status, await response.read(), url)
        except aiohttp.InvalidURL as error:
            raise errors.BadRequest(f"base_url {self.url!r} is not a URL") from error
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise NoAnswer(f"{url} does not answer: {str(error) or type(error).__name__}") from error

    async def _cancel(self, request_id: str, cancelled: asyncio.CancelledError) -> None:
        """End a call at the service; what goes wrong is noted on the cancellation, which must go on."""
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._once("POST", f"/results/{request_id}/cancel", data=b"{}")
        except (errors.RockError, TimeoutError) as error:
            cancelled.add_note(f"the call {request_id} could not be cancelled at the service: {error}")


def _is_unfinished(result: Any) -> bool:
    """Return whether a Success result only says that the call goes on."""
    if not isinstance(result, dict) or "sandbox_id" in result:
        return False
    return "request_id" in result and result.get("state") in ("pending", "running")


def _result(status: int, raw: bytes, url: str) -> Any:
    """Return a Success envelope's result; raise the error of any other answer, NoAnswer if the service is away."""
    try:
        envelope = json.loads(raw)
    except ValueError:
        envelope = None
    kind = envelope.get("status") if isinstance(envelope, dict) else None
    if kind == "Success":
        return envelope.get("result")
    if kind == "Failed":
        error = errors.from_envelope(envelope)
    else:
        error = errors.Internal(f"{url} gave HTTP {status} without an envelope; is base_url that of a ROCK service?")
    if status in _AWAY:
        raise NoAnswer(f"{url} is down (HTTP {status}): {error.message}")
    raise error
