"""GEM's verbs. No process of ours holds an environment: each call is a command in a session of its sandbox."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from app.calls import Route, call_id
from app.commands import Ask, Commands
from app.config import Gem
from app.gem import shell
from app.gem.recipes import Recipe, Recipes
from app.lifecycle import Lifecycle
from rock.actions import BashAction, CreateBashSessionRequest, StartRequest, load
from rock.errors import (
    KINDS,
    BadRequest,
    Cancelled,
    CommandFault,
    Internal,
    NotFound,
    OutOfMemory,
    RockError,
    StartFailed,
    from_envelope,
)

log = logging.getLogger(__name__)

ACTION_LIMIT = 8 * 1024 * 1024
"""Characters of an action as JSON."""

_MARGIN = 5.0
"""Seconds that a command gets on top of the environment's own limit, which ends it more gently."""

# What an environment's process may answer with. A sandbox is hostile: it does not choose among all our errors.
_FROM_INSIDE = ("bad_request", "not_found", "command_failed", "command_timeout", "start_failed")


class Environments:
    """Makes, resets, steps and closes environments."""

    def __init__(
        self, lifecycle: Lifecycle, commands: Commands, recipes: Recipes, config: Gem, output_limit: int
    ) -> None:
        """`output_limit`: bytes that a command's answer may carry."""
        self._lifecycle, self._commands, self._recipes, self._config = lifecycle, commands, recipes, config
        # Half: an answer is JSON in ASCII, and travels in JSON.
        self._answer_limit = output_limit // 2

    def make(
        self, env_id: str, identity: Mapping[str, str], keys: Mapping[str, str], ask: Ask, left: Callable[[], bool]
    ) -> str:
        """Start a sandbox with the environment in it and return the sandbox's id.

        Params:
            identity: who asks and where it is to run, kept with the sandbox.
            keys: headers that identify the caller to EnvHub.
            left: whether the caller has gone, so that nobody will hear of the sandbox.
        Raises:
            NotFound: no such environment. StartFailed: the image lacks what it needs. Cancelled: the caller has left.
            Others: as Lifecycle.start.
        """
        recipe, ask = self._recipes.find(env_id, keys), _named(ask)
        started = _result(self._lifecycle.start(self._start_request(env_id, recipe), identity, ask))
        sandbox_id = str(started["sandbox_id"])
        try:
            if not left():
                self._begin(sandbox_id, env_id, recipe, ask)
            if left():
                raise Cancelled("the caller left before the environment was made", sandbox_id=sandbox_id)
        except RockError as error:
            self._free(sandbox_id, ask, error)
            raise
        return sandbox_id

    def reset(self, sandbox_id: str, seed: int | None, ask: Ask) -> dict[str, Any]:
        """Begin an episode; returns observation and info. One that fails ends the environment and its sandbox.

        Raises what the environment answers, and NotFound.
        """
        try:
            return self._call(sandbox_id, {"verb": "reset", "seed": seed}, ask)
        except (CommandFault, Internal) as error:
            # Nobody plays an episode that could not begin, and few close its environment: it must not last until its lease ends.
            self._free(sandbox_id, ask, error)
            text = f"{error.message}; the environment and its sandbox are closed: make another one"
            raise type(error)(text, exit_code=error.exit_code, **error.details) from error

    def step(self, sandbox_id: str, action: Any, ask: Ask) -> dict[str, Any]:
        """Take an action; returns observation, reward, terminated, truncated, info. Raises as `reset`."""
        return self._call(sandbox_id, {"verb": "step", "action": action}, ask)

    def close(self, sandbox_id: str, ask: Ask) -> None:
        """End the environment and its sandbox, whatever it is doing. Again: nothing happens. Raises NotFound."""
        _result(self._lifecycle.stop(sandbox_id, replace(ask, wait=None)))

    def list(self, sandbox_id: str, ask: Ask) -> list[str]:
        """Return the names of all environments that the sandbox could make. Raises NotFound, Internal."""
        seen = self._run(sandbox_id, shell.LIST, _named(ask), self._config.make_seconds)
        try:
            return [str(name) for name in json.loads(seen["output"])]
        except (ValueError, TypeError) as error:
            raise Internal("the sandbox did not list its environments", sandbox_id=sandbox_id) from error

    def _free(self, sandbox_id: str, ask: Ask, error: RockError) -> None:
        """Stop a sandbox whose environment is of no use to anybody."""
        log.warning("an environment did not come up: %s", error.kind, extra={"sandbox_id": sandbox_id})
        self._lifecycle.stop(sandbox_id, Ask(ask.identity))

    def _start_request(self, env_id: str, recipe: Recipe) -> StartRequest:
        """Return what starts the sandbox."""
        spec, config = recipe.spec, self._config
        cpus = spec.cpus or config.cpus
        return load(StartRequest, {
            "image": recipe.image, "memory": spec.memory or str(config.memory), "cpus": cpus,
            "limit_cpus": spec.limit_cpus or max(cpus, config.limit_cpus), "pull": spec.pull,
            "docker_args": spec.docker_args, "auto_clear_seconds": spec.auto_clear_seconds, "startup_timeout": config.make_seconds, "metadata": {"gem_env": env_id},
            **({"disk": spec.disk} if spec.disk else {}),
        })  # fmt: skip

    def _begin(self, sandbox_id: str, env_id: str, recipe: Recipe, ask: Ask) -> None:
        """Open the session, start the environment's process in it, and have it make the environment."""
        opened = CreateBashSessionRequest(sandbox_id=sandbox_id, session=shell.SESSION)
        _result(self._commands.run(Route.CREATE_SESSION, opened, _derived(ask, "session")))
        plan = {
            "env_id": env_id, "modules": recipe.spec.modules, "step_seconds": self._config.step_seconds,
            "make_seconds": self._config.make_seconds, "answer_limit": self._answer_limit,
        }  # fmt: skip
        pythons = [recipe.spec.python] if recipe.spec.python else ["python3", "python"]
        ask = _derived(ask, "make")
        command = shell.start(plan, pythons, _token(ask))
        _answer(self._run(sandbox_id, command, ask, self._config.make_seconds + _MARGIN), sandbox_id)

    def _call(self, sandbox_id: str, request: dict[str, Any], ask: Ask) -> dict[str, Any]:
        """Have the environment's process do something."""
        ask = _named(ask)
        command = shell.call(request, _token(ask))
        if len(command) > ACTION_LIMIT:
            raise BadRequest(f"action: must have at most {ACTION_LIMIT} characters as JSON", sandbox_id=sandbox_id)
        return _answer(self._run(sandbox_id, command, ask, self._config.step_seconds + _MARGIN), sandbox_id)

    def _run(self, sandbox_id: str, command: str, ask: Ask, seconds: float) -> dict[str, Any]:
        """Run a command in the environment's session and return what came of it."""
        action = BashAction(
            sandbox_id=sandbox_id, session=shell.SESSION, command=command, timeout=seconds, check="silent"
        )
        try:
            return _result(self._commands.run(Route.RUN_IN_SESSION, action, ask, seconds))
        except NotFound as error:
            if shell.SESSION in error.message:
                raise NotFound(f"Sandbox {sandbox_id} holds no environment", sandbox_id=sandbox_id) from error
            raise


def _named(ask: Ask) -> Ask:
    """Return the ask with a request id, which names what the environment is asked, and without a wait: GEM has none."""
    return Ask(ask.identity, ask.request_id or uuid.uuid4().hex)


def _derived(ask: Ask, part: str) -> Ask:
    """Return the ask of a part of the request: sent again, each part attaches to what it has done."""
    return replace(ask, request_id=f"{ask.request_id}/{part}")


def _token(ask: Ask) -> str:
    """Return the name of a call inside the sandbox: the same when it is sent again."""
    return call_id(ask.identity.owner, ask.request_id or "")


def _result(answer: str) -> dict[str, Any]:
    """Return the result of an envelope given as JSON text. Raises the error of a Failed one."""
    envelope = json.loads(answer)
    if envelope.get("status") != "Success":
        raise from_envelope(envelope)
    result = envelope.get("result")
    return result if isinstance(result, dict) else {}


def _answer(seen: Mapping[str, Any], sandbox_id: str) -> dict[str, Any]:
    """Return what the environment's process answered. Raises its error, or says that it is gone."""
    output, code = str(seen.get("output") or ""), seen.get("exit_code")
    if code == shell.NO_PYTHON:
        raise StartFailed(
            "the environment's image has no Python: register another one in EnvHub", sandbox_id=sandbox_id
        )
    if code == shell.NO_FOLDER:
        raise StartFailed(
            f"the sandbox has no place for the environment's files: {output[-500:]}", sandbox_id=sandbox_id
        )
    if code:
        last = f"; its last words: {output[-500:]}" if output else ""
        if seen.get("failure_reason"):
            raise OutOfMemory(f"the environment's process ended: {seen['failure_reason']}{last}", sandbox_id=sandbox_id)
        raise Internal(
            f"the environment's process ended; close the environment and make a new one{last}", sandbox_id=sandbox_id
        )
    try:
        answer = json.loads(output)
        if "error" not in answer:
            return dict(answer["result"])
        kind, message = str(answer["error"]["kind"]), str(answer["error"]["message"])
    except (ValueError, TypeError, KeyError) as error:
        raise Internal("the environment's process gave no proper answer", sandbox_id=sandbox_id) from error
    raise KINDS[kind if kind in _FROM_INSIDE else Internal.kind](message, sandbox_id=sandbox_id)
