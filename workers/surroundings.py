"""What the bookkeeping of a sandbox's calls needs of the world, each a function, so that a test needs no sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from workers.jobs import Job


class Timer(Protocol):
    """A call that was put off."""

    def cancel(self) -> None:
        """Do not make it."""


@dataclass
class Surroundings:
    """The three things that a desk does to the world."""

    send: Callable[[Iterable[bytes]], None]
    """Put frames on their way to the keeper."""
    finish: Callable[[Job, dict[str, object], bytes | None], None]
    """Store the envelope of a call and, when it is short, its output byte for byte; then call `stored`."""
    later: Callable[[float, Callable[[], None]], Timer]
    """Call a function after so many seconds."""
