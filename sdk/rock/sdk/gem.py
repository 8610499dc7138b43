"""GEM environments that run in a sandbox: `reset`, `step`, `close`, as gymnasium has them.

environment = rock.make("game:Sokoban-v0-easy")
observation, info = environment.reset(seed=42)
observation, reward, terminated, truncated, info = environment.step(action)
environment.close()
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp

from rock import errors, settings
from rock.sdk import loop
from rock.sdk.pool import CONNECT_SECONDS, client
from rock.sdk.transport import new_request_id

PREFIX = "/apis/v1/envs/gem"

ANSWER_SECONDS = 600.0
"""How long one call may take: `make` pulls an image and installs the environment."""

_BY_STATUS: Mapping[int, type[errors.RockError]] = {
    400: errors.BadRequest,
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    413: errors.TooLarge,
    503: errors.Unavailable,
}


def make(
    env_id: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    extra_headers: Mapping[str, str] | None = None,
) -> Environment:
    """Start an environment in a sandbox of its own.

    Params:
        env_id: such as `game:Sokoban-v0-easy`.
        base_url, api_key: of the service; None: from ROCK_BASE_URL and ROCK_API_KEY.
        extra_headers: sent with every call.
    Raises:
        RockError: the environment is unknown, or no sandbox could be started for it.
    """
    key = api_key or settings.read("ROCK_API_KEY")
    headers = {**({"X-API-Key": key} if key else {}), **(extra_headers or {})}
    service = _Service(base_url or settings.read("ROCK_BASE_URL"), headers)
    made = service.call("make", {"env_id": env_id})
    return Environment(env_id, _field(made, "sandbox_id"), service)


class _Service:
    """The GEM routes of one service: plain JSON, an error is an HTTP status with a text."""

    def __init__(self, base_url: str, headers: Mapping[str, str]) -> None:
        self._url = base_url.rstrip("/") + PREFIX
        self._headers = dict(headers)

    def call(self, verb: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of one call, which is sent once: an environment's step must not happen twice."""
        return loop.run(self._call(verb, body))

    async def _call(self, verb: str, body: Mapping[str, Any]) -> dict[str, Any]:
        url = f"{self._url}/{verb}"
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS)
        headers = {**self._headers, "X-Request-Id": new_request_id()}
        session = await client()
        try:
            async with session.post(url, json=body, headers=headers, timeout=timeout) as response:
                return _answer(response.status, await response.read(), url)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise errors.Unavailable(f"{url} does not answer: {str(error) or type(error).__name__}") from error


def _answer(status: int, raw: bytes, url: str) -> dict[str, Any]:
    """Return the JSON object of a good answer; raise the error of any other."""
    try:
        answer = json.loads(raw)
    except ValueError:
        answer = None
    if status == 200 and isinstance(answer, dict):
        return answer
    text = answer.get("error") if isinstance(answer, dict) else None
    raise _BY_STATUS.get(status, errors.Internal)(str(text or f"{url} gave HTTP {status} and no reason"))


def _field(answer: Mapping[str, Any], name: str) -> Any:
    """Return a field that the answer must have."""
    if name not in answer:
        raise errors.Internal(f"the service's answer lacks {name!r}")
    return answer[name]


class Environment:
    """One environment; made by `make`.

    Params:
        env_id: its name.
        sandbox_id: where it runs.
        service: how to reach it.
    """

    def __init__(self, env_id: str, sandbox_id: str, service: _Service) -> None:
        self.env_id = env_id
        self.sandbox_id = sandbox_id
        self._service = service
        self._closed = False

    def reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a new episode; returns (observation, info).

        Params:
            seed: makes the episode repeatable.
        Raises:
            RockError: the environment is closed or failed.
        """
        answer = self._call("reset", {"seed": seed})
        return _field(answer, "observation"), _field(answer, "info")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one action; returns (observation, reward, terminated, truncated, info).

        Raises:
            RockError: the environment is closed or failed; the message has its reason.
        """
        answer = self._call("step", {"action": action})
        observation, reward, terminated, truncated, info = (
            _field(answer, name) for name in ("observation", "reward", "terminated", "truncated", "info")
        )
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """End the environment and its sandbox. Again: nothing happens."""
        if not self._closed:
            self._call("close", {})
            self._closed = True

    def _call(self, verb: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Call a verb of this environment."""
        if self._closed:
            raise errors.NotRunning(f"the environment {self.env_id} is closed", sandbox_id=self.sandbox_id)
        return self._service.call(verb, {"sandbox_id": self.sandbox_id, **body})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
