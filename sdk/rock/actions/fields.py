"""The kinds of value that the wire knows, and how a dataclass declares them.

Strict: a number in quotes is not a number and `true` is not 1. `null` in an optional field means "not given".
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from marshmallow import ValidationError, fields

from rock.actions.units import parse_size

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_BLANK = re.compile(r"[\x00-\x20\x7f\s]")
_SANDBOX_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")

YEAR = 31_536_000.0
"""The longest time that any field takes, in seconds."""


def wire(
    kind: fields.Field,
    default: Any = dataclasses.MISSING,
    factory: Any = dataclasses.MISSING,
    null_is_value: bool = False,
    secret: bool = False,
) -> Any:
    """Declare a dataclass field and its wire form at once.

    Params:
        kind: the marshmallow field; made with `required=True`, the wire must carry it even if Python has a default.
        default, factory: as for `dataclasses.field`; neither means that the wire must carry it.
        null_is_value: the wire's null is a value of its own ("no timeout"), not "use the default".
        secret: the value is kept out of `repr`, and so out of logs.
    """
    if default is dataclasses.MISSING and factory is dataclasses.MISSING:
        kind.required = True
    if not kind.required:
        kind.allow_none = True
        if default is not dataclasses.MISSING:
            kind.dump_default = default
    metadata = {"wire": kind, "null_is_value": null_is_value}
    if factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=factory, metadata=metadata, repr=not secret)
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


def clean_text(value: Any, *, allow_nul: bool = False) -> str:
    """Return value if it is text that UTF-8 can carry.

    Params:
        value: anything JSON can hold.
        allow_nul: whether NUL characters may be in it.
    Raises:
        ValidationError: not text, a lone surrogate, or a NUL.
    """
    if not isinstance(value, str):
        raise ValidationError(f"must be text, not {_name(value)}")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValidationError(
                f"has a lone surrogate at position {error.start}, which UTF-8 cannot carry"
            ) from error
    if not allow_nul and "\0" in value:
        raise ValidationError("must not hold a NUL character")
    return value


def _name(value: Any) -> str:
    """Return the JSON word for value's type."""
    if value is None:
        return "null"
    words = {bool: "true/false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return words.get(type(value), type(value).__name__)


_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Text(fields.String):
    """Text; `pattern` must match all of it, `forbidden` nowhere, `says` explains both to a human."""

    def __init__(
        self,
        *,
        longest: int | None = None,
        shortest: int = 0,
        pattern: re.Pattern[str] | None = None,
        forbidden: re.Pattern[str] | None = None,
        says: str = "",
        allow_nul: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.longest, self.shortest, self.pattern, self.forbidden = longest, shortest, pattern, forbidden
        self.says, self.allow_nul = says, allow_nul

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        text = clean_text(value, allow_nul=self.allow_nul)
        if len(text) < self.shortest:
            raise ValidationError(self.says or "must not be empty")
        if self.longest is not None and len(text) > self.longest:
            raise ValidationError(f"must have at most {self.longest} characters, has {len(text)}")
        if self.pattern and not self.pattern.fullmatch(text):
            raise ValidationError(self.says)
        if self.forbidden and self.forbidden.search(text):
            raise ValidationError(self.says)
        return text


def sandbox_name(**options: Any) -> Text:
    """Return the field of a sandbox id."""
    says = "must be 1 to 128 letters, digits, '_', '.' or '-', and start with a letter or digit"
    return Text(pattern=_SANDBOX_ID, says=says, **options)


def label(longest: int = 256, **options: Any) -> Text:
    """Return a field for a non-empty name without control characters (sessions, request ids, users)."""
    says = f"must be 1 to {longest} characters without control characters"
    return Text(shortest=1, longest=longest, forbidden=_CONTROL, says=says, **options)


def image_name(**options: Any) -> Text:
    """Return the field of an image name."""
    return Text(
        shortest=1, longest=512, forbidden=_BLANK, says="must be an image name of 1 to 512 characters, without spaces",
        **options,
    )  # fmt: skip


def path_text(**options: Any) -> Text:
    """Return the field of a path inside a sandbox."""
    return Text(shortest=1, longest=4096, says="must be a path of 1 to 4096 characters", **options)


class Number(fields.Float):
    """A finite number within [low, high]; with `above`, the lower end is excluded."""

    def __init__(
        self, *, low: float = 0, high: float = YEAR, above: bool = False, unit: str = "", **options: Any
    ) -> None:
        super().__init__(**options)
        self.low, self.high, self.above, self.unit = low, high, above, unit

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValidationError(f"must be a number, not {_name(value)}")
        inside = self.low < value <= self.high if self.above else self.low <= value <= self.high
        if not inside:  # NaN is never inside
            lower = f"above {self.low:.12g}" if self.above else f"at least {self.low:g}"
            raise ValidationError(f"must be {lower} and at most {self.high:.12g}{self.unit}, is {_short(value)}")
        return value


class Whole(fields.Integer):
    """A whole number within [low, high]."""

    def __init__(self, *, low: int = 0, high: int = 2**53, unit: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.low, self.high, self.unit = low, high, unit

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValidationError(f"must be a whole number, not {_name(value)}")
        if isinstance(value, float) and (not math.isfinite(value) or not value.is_integer()):
            raise ValidationError(f"must be a whole number, is {value}")
        if not self.low <= value <= self.high:
            raise ValidationError(f"must be between {self.low} and {self.high}{self.unit}, is {_short(value)}")
        return int(value)


def _short(value: int | float) -> str:
    """Return a number's text, shortened: it may have thousands of digits."""
    if isinstance(value, int) and abs(value) > 10**20:
        return "far outside"
    return str(value)


def seconds(*, above: bool = True, **options: Any) -> Number:
    """Return the field of a duration in seconds, up to one year."""
    return Number(above=above, unit=" seconds", **options)


class Flag(fields.Boolean):
    """true or false, nothing that looks like it."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> bool:
        if not isinstance(value, bool):
            raise ValidationError(f"must be true or false, not {_name(value)}")
        return value


class Choice(fields.String):
    """One of a closed list of words."""

    def __init__(self, *words: str, **options: Any) -> None:
        super().__init__(metadata={"enum": list(words)}, **options)
        self.words = words

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise ValidationError("must be one of " + ", ".join(self.words))
        return value


class Size(fields.String):
    """An amount of memory or disk: text such as `512m`, or a number of bytes; kept as text."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if isinstance(value, str):
            clean_text(value)
        try:
            parse_size(value)
        except ValueError as error:
            raise ValidationError(str(error)) from error
        return value if isinstance(value, str) else str(value)


class Texts(fields.List):
    """A list of texts, each a `Text`."""

    def __init__(self, item: Text | None = None, *, most: int = 10_000, **options: Any) -> None:
        super().__init__(item or Text(), **options)
        self.most = most

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValidationError(f"must be a list of texts, not {_name(value)}")
        if len(value) > self.most:
            raise ValidationError(f"must have at most {self.most} items, has {len(value)}")
        return super()._deserialize(value, attr, data, **kwargs)


class TextOrTexts(fields.Field):
    """A command line (text) or an argument vector (a list of texts, not empty)."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str | list[str]:
        if isinstance(value, str):
            return clean_text(value)
        if not isinstance(value, list):
            raise ValidationError(f"must be text or a list of texts, not {_name(value)}")
        if not value or value[0] == "":
            raise ValidationError("must name a program: the list, or its first item, is empty")
        return [_nested(index, item, clean_text) for index, item in enumerate(value)]


class Variables(fields.Dict):
    """Environment variables: name → text. `shell`: a shell sets them, so their names are identifiers."""

    def __init__(self, shell: bool = False) -> None:
        super().__init__()
        self._shell = shell

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, str]:
        if not isinstance(value, Mapping):
            raise ValidationError(f"must be an object of texts, not {_name(value)}")
        for name, text in value.items():
            if name == "" or "=" in clean_text(name):
                raise ValidationError(f"{name!r} is not a variable's name: it must be non-empty and without '='")
            if self._shell and not _IDENTIFIER.fullmatch(name):
                raise ValidationError(f"{name!r} is not a shell variable's name (letters, digits and _)")
            _nested(name, text, clean_text)
        return dict(value)


class Labels(fields.Dict):
    """Free-form metadata: name → text, number, true/false or null."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValidationError(f"must be an object, not {_name(value)}")
        for name, item in value.items():
            clean_text(name)
            if isinstance(item, float) and not math.isfinite(item):
                raise ValidationError(f"{name}: must be a finite number")
            if item is not None and not isinstance(item, bool | int | float):
                _nested(name, item, clean_text)
        return dict(value)


def _nested(where: str | int, value: Any, check: Callable[[Any], Any]) -> Any:
    """Return check(value); an error names where in the field it is."""
    try:
        return check(value)
    except ValidationError as error:
        raise ValidationError(f"{where}: {'; '.join(map(str, error.messages))}") from error


__all__ = [
    "YEAR", "Choice", "Flag", "Labels", "Number", "Size", "Text", "TextOrTexts", "Texts", "Variables", "Whole",
    "clean_text", "image_name", "label", "path_text", "sandbox_name", "seconds", "wire",
]  # fmt: skip
