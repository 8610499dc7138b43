"""How far a transfer is."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

OnProgress = Callable[[int, int | None], None]
"""Called with bytes done and bytes in all, None where nobody knows."""

BUFFER_BYTES = 1024 * 1024


class _Counted(io.FileIO):
    """A file that tells how much of it has been read."""

    def __init__(self, path: Path, tell: OnProgress) -> None:
        super().__init__(path, "r")
        self._tell, self._size, self._read = tell, path.stat().st_size, 0

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        self._read += count or 0
        self._tell(self._read, self._size)
        return count


def opened(path: Path, tell: OnProgress | None) -> io.BufferedReader:
    """Open a local file for reading; `tell` hears how far that is. Raises OSError."""
    if tell is None:
        return path.open("rb")
    return io.BufferedReader(_Counted(path, tell), BUFFER_BYTES)
