"""Builds frozen configuration sections from plain mappings, and refuses what does not fit.

A section is a dataclass; each field's type says how text is read, and its metadata narrows it:
`size` (bytes, written `64MB` or `8Gi`), `choices` (a closed list), `least` (a lower bound),
`parse` (a field's own reader), `derived` (computed by the loader, never written by a person).
Pure: no file, no environment, no machine.
"""

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

_UNITS = {None: 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])i?)?b?", re.IGNORECASE | re.ASCII)
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
Section = TypeVar("Section")


class ConfigError(ValueError):
    """The configuration cannot be used; the message names the key, where it stands and what is allowed."""


def parse_size(text: str | int) -> int:
    """Return a number of bytes from `512m`, `8g`, `8Gi`, `64MB` or a plain number (units are powers of 1024)."""
    match = _SIZE.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 512m, 8g or 8Gi")
    return int(float(match[1]) * _UNITS[match[2] and match[2].lower()])


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the known name nearest to word, or the list of names."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else f" (known: {', '.join(names)})"


def keys_of(section: type) -> dict[str, "dataclasses.Field[Any]"]:
    """Return the fields of a section that a person may write, by name."""
    return {field.name: field for field in dataclasses.fields(section) if not field.metadata.get("derived")}


def build(section: type[Section], values: Mapping[str, Any], where: str) -> Section:
    """Return the section made from `values`; what is absent keeps its default.

    Params:
        where: the section's name, for messages.
    Raises:
        ConfigError: an unknown key or a value of the wrong type.
    """
    known = keys_of(section)
    hints = typing.get_type_hints(section)
    made: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"unknown key {where}.{key}{nearest(str(key), known)}")
        made[key] = _read(known[key], hints[key], value, f"{where}.{key}")
    return section(**made)


def _read(field: "dataclasses.Field[Any]", hint: Any, value: Any, where: str) -> Any:
    """Return `value` in the field's type, or raise ConfigError that names `where`."""
    try:
        parse: Callable[[Any], Any] | None = field.metadata.get("parse")
        if field.metadata.get("size"):
            parse = parse_size
        made = parse(value) if parse else _coerce(hint, value)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where}: {error}") from error
    choices = field.metadata.get("choices")
    if choices and made not in choices:
        raise ConfigError(f"{where}: {made!r} is not one of {', '.join(choices)}{nearest(str(made), choices)}")
    least = field.metadata.get("least")
    if least is not None and made is not None and not made >= least:
        raise ConfigError(f"{where}: {made} is less than {least}")
    return made


def _coerce(hint: Any, value: Any) -> Any:
    """Return `value` (from YAML, or text from the environment) as the type `hint`."""
    if isinstance(hint, types.UnionType):
        if value is None or value == "":
            return None
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    origin = typing.get_origin(hint)
    if origin is tuple:
        return _texts(value)
    if origin is dict:
        return _pairs(value)
    if hint is bool:
        return _boolean(value)
    if hint in (int, float):
        return _number(hint, value)
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise ValueError(f"{value!r} is not text")
    return str(value)


def _boolean(value: Any) -> bool:
    """Return a truth value from a bool or one of the usual words."""
    word = str(value).strip().lower()
    if word not in _WORDS:
        raise ValueError(f"{value!r} is neither true nor false")
    return _WORDS[word]


def _number(kind: type, value: Any) -> int | float:
    """Return `value` as an int or a float; a bool is not a number here."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{value!r} is not a number")
    number: int | float = kind(value)
    if kind is int and isinstance(value, float) and value != number:
        raise ValueError(f"{value!r} is not a whole number")
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError(f"{value!r} is not a finite number")
    return number


def _texts(value: Any) -> tuple[str, ...]:
    """Return a tuple of texts from a list, or from comma-separated text."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if not isinstance(value, list | tuple) or not all(isinstance(part, str) for part in value):
        raise ValueError(f"{value!r} is not a list of texts")
    return tuple(value)


def _pairs(value: Any) -> dict[str, str]:
    """Return a dict of texts from a mapping, or from `a=1,b=2`."""
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
        if not all("=" in part for part in parts):
            raise ValueError(f"{value!r} is not a list of name=value")
        return dict(part.split("=", 1) for part in parts)
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is not a mapping")
    return {str(key): str(item) for key, item in value.items()}
