"""What an environment runs in: asked of EnvHub by its name, else the default image."""

from __future__ import annotations

import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from app.config import EnvHub
from rock.actions import EnvEntry, GemSpec, load, parse
from rock.errors import BadRequest, RockError, Unavailable

log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
PATIENCE_SECONDS = 5.0
"""How long an EnvHub that nobody answers for is tried again: it may be starting."""
_PAUSE = 0.2


@dataclass(frozen=True)
class Recipe:
    """An image, and how the environment is to be run in it."""

    image: str
    spec: GemSpec


class Recipes:
    """Looks environments up in EnvHub."""

    def __init__(self, hub: EnvHub) -> None:
        self._hub = hub

    def find(self, env_id: str, headers: Mapping[str, str]) -> Recipe:
        """Return the recipe of an environment; of one that is not registered, the default image.

        Params:
            headers: the caller's API key, which EnvHub checks as we do.
        Raises:
            Unavailable: EnvHub does not answer.
            BadRequest: the entry's extra_spec does not fit.
        """
        entry = self._entry(env_id, headers) if self._hub.enable else None
        if entry is None:
            return Recipe(self._hub.default_docker_image, GemSpec())
        try:
            return Recipe(entry.image, load(GemSpec, entry.extra_spec or {}))
        except BadRequest as error:
            raise BadRequest(f"EnvHub's entry {env_id!r}: extra_spec.{error.message}") from error

    def _entry(self, env_id: str, headers: Mapping[str, str]) -> EnvEntry | None:
        """Return EnvHub's entry, None if there is none."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return self._ask(env_id, headers)
            except Unavailable:
                if time.monotonic() > end:
                    raise
            time.sleep(_PAUSE)

    def _ask(self, env_id: str, headers: Mapping[str, str]) -> EnvEntry | None:
        """Ask once."""
        url = f"{self._hub.base_url}/env/get"
        body = json.dumps({"env_name": env_id}).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers}, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
                return parse(EnvEntry, json.load(answer))
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    return None
                reason = f"HTTP {error.code}"
        except (OSError, ValueError, RockError) as error:
            reason = str(error) or type(error).__name__
        raise Unavailable(
            f"EnvHub at {self._hub.base_url} does not tell the image of {env_id!r} ({reason}): start it with `rock envhub start`, "
            "name another one in ROCK_ENVHUB_BASE_URL, or set envhub.enable to false to use the default image"
        )
