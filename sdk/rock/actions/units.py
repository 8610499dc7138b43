"""Amounts of memory and disk, as people and engines write them. Pure."""

from __future__ import annotations

import re
from typing import Any

MIB = 1024 * 1024
SMALLEST = 16 * MIB
LARGEST = 2**50
"""The range of any amount in bytes: 16 MiB to 1 PiB."""

_SIZE = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{1,6})?)\s*(?:([kmgt])i?)?b?\s*", re.IGNORECASE | re.ASCII)
_POWERS = {None: 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(value: Any) -> int:
    """Return an amount in bytes.

    Params:
        value: text such as `512m`, `8g`, `8Gi`, `1.5GB` (always powers of 1024, as engines read them), or bytes.
    Raises:
        ValueError: it is not an amount, or outside 16 MiB … 1 PiB; the text says which.
    """
    rule = "an amount between 16m and 1024t, such as 512m, 8g, 8Gi or a number of bytes"
    if isinstance(value, int) and not isinstance(value, bool):
        amount = value
    elif isinstance(value, str):
        match = _SIZE.fullmatch(value)
        if match is None:
            raise ValueError(f"must be {rule}; {value[:40]!r} is none")
        amount = int(float(match[1]) * 1024 ** _POWERS[match[2] and match[2].lower()])
    else:
        raise ValueError(f"must be {rule}")
    if not SMALLEST <= amount <= LARGEST:
        raise ValueError(f"must be {rule}; {str(value)[:40]!r} is outside")
    return amount


def parse_memory(value: str | int) -> int:
    """Return a memory limit in bytes; as `parse_size`."""
    return parse_size(value)


def parse_disk(value: str | int | None) -> int | None:
    """Return a disk limit in bytes, None for no limit; otherwise as `parse_size`."""
    return None if value is None else parse_size(value)
