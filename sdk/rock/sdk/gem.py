"""GEM environments that run in a sandbox: `reset`, `step`, `close`, as gymnasium has them.

environment = rock.make("game:Sokoban-v0-easy")
observation, info = environment.reset(seed=42)
observation, reward, terminated, truncated, info = environment.step(action)
environment.close()
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rock import errors, settings
from rock.sdk import loop
from rock.sdk.plain import PlainService
from rock.sdk.transport import Transport, new_request_id

PREFIX = "/apis/v1/envs/gem"

ANSWER_SECONDS = 600.0
"""How long one request is held open for a call's answer; then it is sent again, and attaches."""

LONGEST_SECONDS = 2 * 3600.0
"""How long a call may take in all. The service ends it long before: `gem.step_seconds`, `gem.make_seconds`."""


def make(
    env_id: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    extra_headers: Mapping[str, str] | None = None,
    patience: float | None = None,
) -> Environment:
    """Start an environment in a sandbox of its own.

    Params:
        env_id: such as `game:Sokoban-v0-easy`.
        base_url, api_key: of the service; None: from ROCK_BASE_URL and ROCK_API_KEY.
        extra_headers: sent with every call.
        patience: seconds for which a call is sent again while nobody answers; None: as SandboxConfig has it.
    Raises:
        NotFound: no such environment. StartFailed: its image lacks gem-llm, and it cannot be installed.
        NoCapacity, ImageNotFound, …: why there is no sandbox.
    """
    key = api_key or settings.read("ROCK_API_KEY")
    headers = {**({"X-API-Key": key} if key else {}), **(extra_headers or {})}
    url = (base_url or settings.read("ROCK_BASE_URL")).rstrip("/")
    service = PlainService(url + PREFIX, headers, ANSWER_SECONDS, patience, LONGEST_SECONDS)
    made = loop.run(_make(service, Transport(url, headers), env_id))
    return Environment(env_id, _field(made, "sandbox_id"), service)


async def _make(service: PlainService, transport: Transport, env_id: str) -> dict[str, Any]:
    """Return the answer of `make`; when it is cancelled, nothing of it is left."""
    request_id = new_request_id()
    try:
        return await _send(service, "make", {"env_id": env_id}, request_id)
    except asyncio.CancelledError as cancelled:
        # The sandbox is the answer to the call of that id.
        await transport.cancel(request_id, cancelled)
        await transport.withdraw(request_id, cancelled)
        raise


def _call(service: PlainService, verb: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of one call. Under one request id it may be sent again: nothing happens twice."""
    return loop.run(_send(service, verb, body, new_request_id()))


async def _send(service: PlainService, verb: str, body: Mapping[str, Any], request_id: str) -> dict[str, Any]:
    """Send a call until its answer comes, and return it."""
    answer = await service.send(verb, body, {"X-Request-Id": request_id})
    if not isinstance(answer, dict):
        raise errors.Internal(f"{service.url}/{verb} gave no JSON object; is it that of a ROCK service?")
    return answer


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

    def __init__(self, env_id: str, sandbox_id: str, service: PlainService) -> None:
        self.env_id = env_id
        self.sandbox_id = sandbox_id
        self._service = service
        self._closed = False

    def reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a new episode; returns (observation, info).

        Params:
            seed: makes the episode repeatable.
        Raises:
            CommandFailed, CommandTimeout: what the environment raised, or that it took too long.
            NotFound, NotRunning, ServiceFault: it is closed, or its sandbox failed.
        """
        answer = self._call("reset", {"seed": seed})
        return _field(answer, "observation"), _field(answer, "info")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one action; returns (observation, reward, terminated, truncated, info).

        Raises:
            BadRequest: it has not been reset. Otherwise as `reset`.
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
        return _call(self._service, verb, {"sandbox_id": self.sandbox_id, **body})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
