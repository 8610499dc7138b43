"""What an interactive program shows, as plain text, and the texts that a caller waits for in it. Pure.

Patterns come from callers and are searched in what a sandbox prints, in the thread that serves all sandboxes of a node: RE2 needs time
in proportion to the text, whatever both are.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

import re2

from rock.errors import BadRequest

MOST = 50
"""How many patterns one call may wait for."""
LONGEST = 2000
"""Characters of one pattern."""
PATTERN_MEMORY = 1 << 20
"""Bytes that a compiled pattern may take."""

# What a terminal obeys instead of showing: control sequences (colours, cursor), strings for it (titles), other escapes, bells, returns before a line's end.
_CONTROL = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]+[0-~]|[0-OQ-WYZ\\`-~])|\x07|\r+(?=\n)"
)


@dataclass(frozen=True)
class Found:
    """A pattern that showed: which one, and where in the text it begins and ends."""

    pattern: str
    start: int
    end: int


class Expected:
    """The patterns of one call: regular expressions as of pexpect, each of them also found as the plain text that it is (`(gdb) `)."""

    def __init__(self, patterns: list[str]) -> None:
        """Raises BadRequest for a pattern that cannot be searched for."""
        if len(patterns) > MOST:
            raise BadRequest(f"expect: at most {MOST} patterns, there are {len(patterns)}", field="expect")
        self._patterns = [(text, _plain(text).encode(), _compile(text)) for text in patterns if text]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def search(self, text: bytes, start: int) -> Found | None:
        """Return what shows first in `text` from `start` on; of several at one place the first of the list."""
        best: Found | None = None
        for name, plain, compiled in self._patterns:
            for begin, end in _places(text, start, plain, compiled):
                if best is None or begin < best.start:
                    best = Found(name, begin, end)
        return best


def _places(text: bytes, start: int, plain: bytes, compiled: re2._Regexp | None) -> list[tuple[int, int]]:
    """Return where a pattern shows first, as a text and as an expression."""
    places = []
    at = text.find(plain, start)
    if at >= 0:
        places.append((at, at + len(plain)))
    if compiled is not None and (match := compiled.search(text, start)):
        places.append(match.span())
    return places


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")


def _compile(text: str) -> re2._Regexp | None:
    """Return the compiled pattern, None when it can only be meant as a text."""
    if len(text) > LONGEST:
        raise BadRequest(f"expect: a pattern may have {LONGEST} characters, this one has {len(text)}", field="expect")
    options = re2.Options()
    options.log_errors, options.dot_nl, options.max_mem = False, True, PATTERN_MEMORY
    # What is searched has lines that end as a program wrote them, not as its terminal showed them.
    pattern = _plain(text).replace(r"\r\n", r"\n")
    try:
        return re2.compile(pattern.encode(), options)
    except re2.error as error:
        found = error.args[0] if error.args else b""
        reason = found.decode(errors="replace") if isinstance(found, bytes) else str(found)
        if (
            "perl operator" in reason
            or "escape sequence" in reason
            or "too large" in reason
            or "repetition size" in reason
        ):
            raise BadRequest(
                f"expect: {text[:80]!r} cannot be searched for ({reason[:100]})", field="expect"
            ) from error
        return None


@dataclass(frozen=True)
class Shown:
    """A stretch of a program's output as plain text, and where each part of it stood."""

    text: bytes
    _kept: list[int]
    _origin: list[int]

    def offset(self, position: int) -> int:
        """Return where in the output the text's byte `position` stood (the end: where the last byte ended)."""
        at = bisect_right(self._kept, position) - 1
        return self._origin[at] + position - self._kept[at]


def shown(raw: bytes) -> Shown:
    """Return `raw` without what only steers a terminal, lines ending as a program writes them."""
    parts, kept, origin = [], [0], [0]
    length = position = 0
    for match in _CONTROL.finditer(raw):
        parts.append(raw[position : match.start()])
        length += match.start() - position
        position = match.end()
        kept.append(length)
        origin.append(position)
    parts.append(raw[position:])
    return Shown(b"".join(parts), kept, origin)
