"""`rock admin reload`: has the API and EnvHub of a running service read their configuration anew, if they can use it."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass

from app import processes, running
from app.config import Config, load
from app.running import Running


class CannotReload(Exception):
    """Nothing was told to read its configuration anew; the message says why and what to do."""


@dataclass(frozen=True)
class Reloaded:
    """Which processes were told, by name (none: nothing runs), and what they will not take from their file all the same."""

    told: tuple[str, ...] = ()
    doubt: str = ""


def reload(config: Config) -> Reloaded:
    """Have the API and EnvHub of this data folder read their configuration anew, as keys that were added or taken away.

    Open requests are finished, or told to ask again. Nodes and Redis go on as they are.

    Params:
        config: of the command: where the service is, and which environment is meant.
    Raises:
        ConfigError: what they would read cannot be used, or with it they may not listen where they do.
        CannotReload: the service is starting or ending, has another environment, or has no file to read.
    """
    there = running.read(config.server.data_dir)
    if there is None or not there.supervisor.is_alive():
        return Reloaded()
    _check_state(there, config)
    told = [one for one in there.processes if one.name in (processes.API, processes.ENVHUB) and one.is_alive()]
    if not told:
        return Reloaded()
    # gunicorn ends altogether when a new worker cannot load, so what is checked is what they will load: the file that they
    # were started with, under their own variables. Those of this command may be others.
    variables = running.environment(told[0])
    if not variables.get("ROCK_CONFIG"):
        raise CannotReload(
            "the service was started without a configuration file, so there is nothing to read anew: what comes from "
            "variables, as ROCK_API_KEYS, is changed by a restart (rock admin stop, rock admin start)"
        )
    processes.check_listen(load(environ=variables))
    for process in told:
        running.tell(process, signal.SIGHUP)  # gunicorn replaces its workers, which load the configuration
    return Reloaded(tuple(process.name for process in told), _doubt(variables))


def _check_state(there: Running, config: Config) -> None:
    """Refuse a service that is not up: before gunicorn has its handlers, the signal would end it. And one that was not meant."""
    if there.phase != "running":
        raise CannotReload(
            f"the service at {there.url} is {there.phase}; try again when `rock admin status` shows it up"
        )
    if there.env != config.env:
        raise CannotReload(
            f"the service at {there.url} was started with environment {there.env}, not {config.env}: use --env {there.env}"
        )


def _doubt(variables: Mapping[str, str]) -> str:
    """Say that the file's keys count for nothing, where variables of the service name others; "" if they count."""
    name = next((one for one in ("ROCK_AUTH__KEYS", "ROCK_API_KEYS") if variables.get(one, "").strip()), "")
    if not name:
        return ""
    return (
        f"warning: the service's keys come from {name}, which it was started with, and not from its file: "
        "they are as before. To change them, set the variable anew and restart (rock admin stop, rock admin start)"
    )
