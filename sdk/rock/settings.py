"""The one registry of environment variables: name, type, default, meaning.

Nothing is read at import. This is the only module of the project that touches the process environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["text", "int", "float", "bool", "path"]

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


class SettingError(ValueError):
    """An environment variable has a value that its type does not allow; the message names it."""


@dataclass(frozen=True)
class Setting:
    """One variable: `default` is used when it is unset or empty; `secret` values are never shown."""

    name: str
    type: Kind
    default: Any
    meaning: str
    secret: bool = False


_ALL = (
    Setting("ROCK_BASE_URL", "text", "http://localhost:8080", "where clients find the service"),
    Setting("ROCK_API_KEY", "text", None, "the key that clients send", secret=True),
    Setting("ROCK_DEFAULT_CLUSTER", "text", "zb", "node label that clients ask for (X-Cluster)"),
    Setting("ROCK_SANDBOX_STARTUP_TIMEOUT_SECONDS", "float", 180.0, "seconds a client gives to pull and start"),
    Setting("ROCK_DEFAULT_AUTO_CLEAR_TIME_MINUTES", "float", 360.0, "idle lease in minutes when a start names none"),
    Setting("ROCK_HOST", "text", "127.0.0.1", "address the API listens on"),
    Setting("ROCK_PORT", "int", 8080, "port the API listens on"),
    Setting("ROCK_API_KEYS", "text", None, "accepted keys: key=owner or key=owner:admin, comma separated", secret=True),
    Setting("ROCK_CONFIG", "path", None, "configuration file, instead of conf/rock-<env>.yml"),
    Setting("ROCK_ADMIN_ENV", "text", "local", "which conf/rock-<env>.yml is read"),
    Setting("ROCK_ADMIN_ROLE", "text", "admin", "role of an API process: admin or proxy"),
    Setting("ROCK_WORKER_ROLE", "text", "session", "role of a node's process: session or lifecycle"),
    Setting("ROCK_REDIS_URL", "text", None, "Redis to use; unset: an embedded one is started", secret=True),
    Setting("ROCK_DATA_DIR", "path", "~/.rock", "where data, logs and process files are kept"),
    Setting("ROCK_NODE_ID", "text", None, "this machine's node id; unset: its host name"),
    Setting("ROCK_RUNTIME", "text", "auto", "deployment: auto, docker, podman, local or remote"),
    Setting("ROCK_ENVHUB_BASE_URL", "text", "http://localhost:8081", "where clients find EnvHub"),
    Setting("ROCK_ENVHUB_DB_URL", "path", "~/.rock/rock_envs.db", "EnvHub's SQLite file: a path or sqlite:/// URL"),
    Setting("ROCK_ENVHUB_DEFAULT_DOCKER_IMAGE", "text", "python:3.11", "image of environments that EnvHub lacks"),
    Setting("ROCK_MONITOR_ENABLE", "bool", False, "serve metrics"),
    Setting("ROCK_LOGGING_PATH", "path", None, "folder of log files; unset: standard error"),
    Setting("ROCK_LOGGING_LEVEL", "text", "INFO", "DEBUG, INFO, WARNING or ERROR"),
    Setting("ROCK_TIME_ZONE", "text", "UTC", "zone of the times in answers and logs"),
    Setting("DOCKER_IMAGE_CACHE_DIR", "path", None, "folder of <image>.tar, loaded before any registry pull"),
    Setting("DOCKER_HOST", "text", None, "the engine's address; unset: the usual sockets are tried"),
    Setting(
        "DOCKER_CERT_PATH", "path", None, "folder with ca.pem, cert.pem and key.pem, for an engine that speaks TLS"
    ),
    Setting("STACX_SANDBOX_STARTUP_TIMEOUT", "float", 300.0, "rollout: seconds given to pull and start"),
    Setting("STACX_KEEP_IMAGES", "bool", False, "rollout: keep images after a task"),
    Setting("SWE_ENTRYPOINT_LOCAL", "path", None, "rollout: host path of swe_execute_sandbox.py"),
)

SETTINGS = {setting.name: setting for setting in _ALL}
"""Every known variable by name."""


def read(name: str) -> Any:
    """Return the value of a registered variable, in its type.

    Params:
        name: one of SETTINGS; paths come back with `~` expanded, as text.
    Raises:
        KeyError: the name is not registered.
        SettingError: the value does not fit the type.
    """
    setting = SETTINGS[name]
    text = os.environ.get(name, "")
    if text.strip() == "":
        default = setting.default
        return os.path.expanduser(default) if setting.type == "path" and default else default
    return _parse(setting, text)


def _parse(setting: Setting, text: str) -> Any:
    """Return text in the setting's type, or raise SettingError."""
    if setting.type == "text":
        return text
    if setting.type == "path":
        return os.path.expanduser(text)
    if setting.type == "bool":
        word = text.strip().lower()
        if word in _TRUE or word in _FALSE:
            return word in _TRUE
        raise SettingError(f"{setting.name}={text!r} is not yes or no")
    try:
        number = int(text) if setting.type == "int" else float(text)
    except ValueError as error:
        raise SettingError(f"{setting.name}={text!r} is not a number") from error
    if not number > 0 or number == float("inf"):
        raise SettingError(f"{setting.name}={text!r} must be a number above 0")
    return number


def is_set(name: str) -> bool:
    """Return whether the registered variable has a value of its own in the environment."""
    return os.environ.get(SETTINGS[name].name, "").strip() != ""


def with_prefix(prefix: str) -> dict[str, str]:
    """Return every environment variable whose name starts with prefix, as raw text."""
    return {name: text for name, text in os.environ.items() if name.startswith(prefix)}


def inherited(names: Iterable[str]) -> dict[str, str]:
    """Return those of the named variables that are set (PATH, HOME, …), to hand on to a child process."""
    return {name: os.environ[name] for name in names if name in os.environ}


def effective() -> dict[str, Any]:
    """Return every setting's present value by name; secrets as `***`.

    Raises:
        SettingError: a value does not fit its type.
    """
    values = {name: read(name) for name in SETTINGS}
    return {name: "***" if SETTINGS[name].secret and value else value for name, value in values.items()}
