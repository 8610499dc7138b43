"""`EnvHubClient`: register, get, list and delete environments; every verb a coroutine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rock import errors, settings
from rock.actions import EnvEntry, EnvNameRequest, ListEnvsRequest, RegisterEnvRequest, dump, parse
from rock.sdk.plain import PlainService

ANSWER_SECONDS = 30.0

RockEnvInfo = EnvEntry
"""The name under which existing trainers know an entry."""


@dataclass
class EnvHubClientConfig:
    """Where EnvHub is, and the key to send; read from the environment when the object is made."""

    base_url: str = field(default_factory=partial(settings.read, "ROCK_ENVHUB_BASE_URL"))
    api_key: str | None = field(default_factory=partial(settings.read, "ROCK_API_KEY"), repr=False)
    patience: float | None = None
    """Seconds for which a call is sent again while nobody answers; None: as long as the SDK's other calls."""


class EnvHubClient:
    """A client of one EnvHub.

    Params:
        config: where it is; None means all defaults.
    """

    def __init__(self, config: EnvHubClientConfig | None = None) -> None:
        self.config = config or EnvHubClientConfig()
        key = self.config.api_key
        self._service = PlainService(
            self.config.base_url, {"X-API-Key": key} if key else {}, ANSWER_SECONDS, self.config.patience
        )

    async def register(
        self,
        env_name: str,
        image: str,
        owner: str = "",
        description: str = "",
        tags: list[str] | None = None,
        extra_spec: Mapping[str, Any] | None = None,
    ) -> EnvEntry:
        """Register an environment, or replace its entry, and return the entry.

        Params:
            env_name: what `rock.make` will be given.
            image: where it runs.
            owner, description, tags: for people, and to filter by.
            extra_spec: free-form; GEM reads `python`, `modules`, `cpus` and `memory`.
        Raises:
            BadRequest: a field does not fit. Forbidden: another key's entry. Unavailable: nobody answers.
        """
        request = RegisterEnvRequest(
            env_name=env_name, image=image, owner=owner, description=description, tags=list(tags or []),
            extra_spec=None if extra_spec is None else dict(extra_spec),
        )  # fmt: skip
        return parse(EnvEntry, await self._service.send("env/register", dump(request)))

    async def get_env(self, env_name: str) -> EnvEntry:
        """Return an entry. Raises NotFound, Unavailable."""
        return parse(EnvEntry, await self._service.send("env/get", dump(EnvNameRequest(env_name=env_name))))

    async def list_envs(self, owner: str | None = None, tags: list[str] | None = None) -> list[EnvEntry]:
        """Return the entries, those of `owner` if given, with any of `tags` if given. Raises Unavailable."""
        answer = await self._service.send("env/list", dump(ListEnvsRequest(owner=owner, tags=tags)))
        return [parse(EnvEntry, entry) for entry in answer["envs"]]

    async def delete_env(self, env_name: str) -> bool:
        """Delete an entry; False if there was none. Raises Forbidden, Unavailable."""
        try:
            await self._service.send("env/delete", dump(EnvNameRequest(env_name=env_name)))
        except errors.NotFound:
            return False
        return True

    async def health_check(self) -> dict[str, str]:
        """Return what EnvHub says of itself. Raises Unavailable."""
        answer: dict[str, str] = await self._service.send("health")
        return answer
