"""What travels between EnvHub and its clients: entries, and the requests about them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marshmallow import ValidationError, fields

from rock.actions.fields import (
    Choice,
    Number,
    Size,
    Text,
    Texts,
    clean_text,
    image_name,
    label,
    path_text,
    seconds,
    wire,
)

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


class Document(fields.Dict):
    """A JSON object of any shape, kept as it is; at most `longest` characters as JSON."""

    def __init__(self, longest: int = 65_536, **options: Any) -> None:
        super().__init__(**options)
        self.longest = longest

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValidationError("must be an object")
        try:
            text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        except (ValueError, RecursionError) as error:
            raise ValidationError("must hold finite numbers only, and not be nested too deeply") from error
        if len(clean_text(text)) > self.longest:
            raise ValidationError(f"must have at most {self.longest} characters as JSON, has {len(text)}")
        return dict(value)


@dataclass(kw_only=True)
class RegisterEnvRequest:
    """POST /env/register; an entry of that name is replaced."""

    env_name: str = wire(label())
    image: str = wire(image_name())
    owner: str = wire(Text(longest=256), "")
    description: str = wire(Text(longest=10_000), "")
    tags: list[str] = wire(Texts(label(), most=100), factory=list)
    extra_spec: dict[str, object] | None = wire(Document(), None)
    """Free-form; what GEM reads of it is in GemSpec."""


@dataclass(kw_only=True)
class GemSpec:
    """What GEM reads from an entry's extra_spec."""

    python: str | None = wire(path_text(), None)
    """The interpreter that has gem-llm, a name or a path; None: the first of python3 and python."""
    modules: list[str] = wire(Texts(Text(pattern=_MODULE, says="must be a module's name"), most=100), factory=list)
    """Imported first: they register environments of their own with gem."""
    # As a start has them; what is None is the service's (`gem.cpus`, …).
    cpus: float | None = wire(Number(low=0.01, high=4096), None)
    limit_cpus: float | None = wire(Number(low=0.01, high=4096), None)
    """None: `gem.limit_cpus`, or the `cpus` if those are more."""
    memory: str | None = wire(Size(), None)
    disk: str | None = wire(Size(), None)
    pull: str = wire(Choice("missing", "never", "always"), "missing")
    docker_args: list[str] = wire(Texts(most=1000), factory=list)
    auto_clear_seconds: float | None = wire(seconds(), None)


@dataclass(kw_only=True)
class EnvNameRequest:
    """POST /env/get and /env/delete."""

    env_name: str = wire(label())


@dataclass(kw_only=True)
class ListEnvsRequest:
    """POST /env/list: entries of that owner that have one of those tags; what is not given does not matter."""

    owner: str | None = wire(Text(longest=256), None)
    tags: list[str] | None = wire(Texts(label(), most=100), None)


@dataclass(kw_only=True)
class EnvEntry:
    """One registered environment."""

    env_name: str = wire(fields.String())
    image: str = wire(fields.String())
    owner: str = wire(fields.String(), "")
    description: str = wire(fields.String(), "")
    tags: list[str] = wire(fields.List(fields.String()), factory=list)
    extra_spec: dict[str, object] | None = wire(fields.Dict(), None)
    create_at: str = wire(fields.String(), "")
    """ISO 8601 with zone, as update_at."""
    update_at: str = wire(fields.String(), "")
