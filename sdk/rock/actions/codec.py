"""JSON objects → dataclasses and back, by the schemas that the dataclasses declare."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

from marshmallow import EXCLUDE, Schema, ValidationError

from rock.errors import BadRequest, Internal

T = TypeVar("T")


_schemas: dict[type, Schema] = {}
_optional: dict[type, frozenset[str]] = {}


def schema_of(cls: type) -> Schema:
    """Return the marshmallow schema of a wire dataclass (kept: building one costs more than a load).

    Params:
        cls: a dataclass whose fields were declared with `wire`.
    """
    known = _schemas.get(cls)
    if known is None:
        declared = {field.name: field.metadata["wire"] for field in dataclasses.fields(cls) if "wire" in field.metadata}
        known = _schemas[cls] = Schema.from_dict(declared, name=cls.__name__)(unknown=EXCLUDE)
    return known


def _optional_fields(cls: type) -> frozenset[str]:
    """Return the names of the fields for which the wire's null means "not given"."""
    known = _optional.get(cls)
    if known is None:
        own = {field.name for field in dataclasses.fields(cls) if field.metadata.get("null_is_value")}
        names = (name for name, field in schema_of(cls).fields.items() if not field.required)
        known = _optional[cls] = frozenset(names) - own
    return known


def load(cls: type[T], data: Any) -> T:
    """Return a request built from a JSON object.

    Params:
        cls: the request's dataclass.
        data: the parsed body; unknown fields are ignored, null in an optional field means its default.
    Raises:
        BadRequest: fields are missing, of a wrong type or out of range; the message names each.
    """
    if not isinstance(data, Mapping):
        raise BadRequest("the request's body must be a JSON object")
    optional = _optional_fields(cls)
    present = {name: value for name, value in data.items() if value is not None or name not in optional}
    try:
        values = schema_of(cls).load(present)
        return cls(**values)
    except ValidationError as error:
        raise BadRequest(_in_words(error.normalized_messages())) from error


def revive(cls: type[T], data: Mapping[str, Any]) -> T:
    """Return a request from what `dump` made of one: checked when it came, and not again.

    Params:
        cls: a request whose fields are plain JSON values.
        data: `dump`'s result, by this or another version: unknown fields are ignored, absent ones take defaults.
    Raises:
        BadRequest: a field without default is absent.
    """
    names = schema_of(cls).fields
    try:
        return cls(**{name: value for name, value in data.items() if name in names})
    except TypeError as error:
        raise BadRequest(f"the request was stored by another version: {error}") from error


def _in_words(messages: Mapping[str, Any]) -> str:
    """Return one sentence that names every bad field."""
    return "; ".join(f"{name} {_first(text)}" for name, text in messages.items())


def _first(messages: Any) -> str:
    """Return the first text of marshmallow's nested messages, as a clause."""
    while isinstance(messages, Mapping | list):
        if isinstance(messages, Mapping):
            key, inner = next(iter(messages.items()))
            return f"item {key}: {_first(inner)}"
        messages = messages[0]
    fixed = {"Missing data for required field.": "is required", "Field may not be null.": "must not be null"}
    return fixed.get(str(messages), str(messages))


def parse(cls: type[T], result: Any) -> T:
    """Return a response built from an envelope's `result`; unknown fields are ignored, absent ones take defaults.

    Raises:
        Internal: the answer does not have the response's shape.
    """
    try:
        if not isinstance(result, Mapping):
            raise ValidationError("not an object")
        present = {name: value for name, value in result.items() if value is not None}
        return cls(**schema_of(cls).load(present))
    except ValidationError as error:
        raise Internal(f"the service's answer is not a {cls.__name__}: {error}") from error


def dump(instance: Any) -> dict[str, Any]:
    """Return a wire dataclass as a JSON object."""
    return {field.name: _plain(getattr(instance, field.name)) for field in dataclasses.fields(instance)}


def _plain(value: Any) -> Any:
    """Return value with enums as their values and dataclasses as objects."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dump(value)
    return value
