"""Fails fast what has failed again and again, so that a rollout does not wait for a dead machine a thousand times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rock.errors import Unavailable


class NotAsked(Unavailable):
    """The service or node failed too often and is left alone for a while; asking again at once cannot help."""

    retryable = False


@dataclass
class _Trouble:
    """What is known of one name: failures in a row, the last one's reason, and until when nobody asks."""

    failures: int = 0
    reason: str = ""
    until: float = 0.0


class Breaker:
    """Counts failed calls by name (a service, a node); safe for one event loop.

    Params:
        limit: failures in a row that open it.
        seconds: how long it stays open. After that calls go through, and the next failure opens it again at once.
        clock: seconds that only go forward.
    """

    def __init__(self, limit: int = 5, seconds: float = 300.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._seconds, self._clock = limit, seconds, clock
        self._known: dict[str, _Trouble] = {}

    def check(self, names: Iterable[str]) -> None:
        """Return if all of the names may be asked.

        Raises:
            NotAsked: one of them is left alone at present; the message says which, why and for how long.
        """
        now = self._clock()
        for name in names:
            known = self._known.get(name)
            if known is not None and now < known.until:
                raise NotAsked(
                    f"{name} failed {known.failures} times in a row and is not asked for another "
                    f"{known.until - now:.0f} s; the last failure: {known.reason}"
                )

    def worked(self, name: str) -> None:
        """Note that a call went through; its failures are forgotten."""
        self._known.pop(name, None)

    def failed(self, name: str, reason: str) -> None:
        """Note that a call failed for a reason that is the service's or the node's own."""
        known = self._known.setdefault(name, _Trouble())
        known.failures += 1
        known.reason = reason
        if known.failures >= self._limit:
            known.until = self._clock() + self._seconds


BREAKER = Breaker()
"""The process's own: what one rollout learns about a node, the others need not learn again."""
