"""Values of the configuration that have a notation of their own: API keys, time zones, database addresses."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from app.sections import build
from rock.actions import StartRequest, load
from rock.errors import BadRequest


@dataclass(frozen=True)
class ApiKey:
    """A key that callers send, who it stands for, and whether that owner sees everyone's sandboxes."""

    key: str = field(repr=False)
    owner: str = "default"
    admin: bool = False


@dataclass(frozen=True)
class Pooled:
    """A kind of sandbox that each node keeps started, and how many. Only a start that names the very same takes one."""

    image: str
    count: int = field(default=1, metadata={"least": 1})
    memory: str = "8g"
    cpus: float = 2.0
    limit_cpus: float | None = None
    disk: str | None = "50G"
    runtime: str | None = None
    docker_args: tuple[str, ...] = ()

    def request(self) -> StartRequest:
        """Return the start of one of them. Raises BadRequest naming the field that does not fit."""
        wishes = {**asdict(self), "docker_args": list(self.docker_args)}
        del wishes["count"]
        return load(StartRequest, wishes)


def parse_pool(value: Any) -> tuple[Pooled, ...]:
    """Return the kinds of pooled sandboxes from a list of `{image, count, memory, …}`, or from the same as JSON text."""
    if isinstance(value, str):
        value = json.loads(value or "[]")
    if not isinstance(value, list | tuple) or not all(
        isinstance(item, Mapping) and item.get("image") for item in value
    ):
        raise ValueError("expected a list of {image, count, memory, cpus, …}, each with an `image`")
    kinds = tuple(build(Pooled, item, "pool.sandboxes[]") for item in value)
    for kind in kinds:
        try:
            kind.request()
        except BadRequest as error:
            raise ValueError(error.message) from error
    return kinds


def parse_keys(value: Any) -> tuple[ApiKey, ...]:
    """Return keys from a list of `{key, owner, admin}`, or from `key1=alice,key2=bob:admin,key3`."""
    if isinstance(value, str):
        return tuple(_parse_key(part.strip()) for part in value.split(",") if part.strip())
    if not isinstance(value, list | tuple):
        raise ValueError("expected a list of {key, owner, admin}")
    keys = []
    for item in value:
        if not isinstance(item, Mapping) or not item.get("key"):
            raise ValueError("each entry needs a `key`, and may have `owner` and `admin`")
        keys.append(build(ApiKey, item, "auth.keys[]"))
    return tuple(keys)


def parse_zone(value: Any) -> str:
    """Return the name of a time zone that exists."""
    try:
        return ZoneInfo(str(value)).key
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"{value!r} is no time zone such as UTC or Asia/Shanghai") from error


def parse_database(value: Any) -> str:
    """Return the path of a SQLite file from a path or a `sqlite:///` URL; `~` is the home folder."""
    text = str(value).strip()
    if "://" in text and not text.startswith("sqlite:///"):
        raise ValueError(f"{text.partition('://')[0]}:// is not supported: a path or sqlite:///<path> is needed")
    path = text.removeprefix("sqlite:///")
    if not path or path == ":memory:":
        raise ValueError("a file is needed, since what is registered must outlive the process")
    return str(Path(path).expanduser().absolute())


def _parse_key(text: str) -> ApiKey:
    """Return the key written `key`, `key=owner` or `key=owner:admin`."""
    key, _, owner = text.partition("=")
    owner, _, role = owner.partition(":")
    if not key or role not in ("", "admin"):
        raise ValueError("expected key=owner or key=owner:admin, separated by commas")
    return ApiKey(key=key, owner=owner or "default", admin=role == "admin")
