"""The one clock of the service: Redis' own. Leases, heartbeats and deadlines are written by one machine and read by another,
whose clocks may differ by hours; so nobody asks its own.
"""

import logging
import threading
import time
from collections.abc import Callable

from app.database import Client, DatabaseAway, redis_faults

log = logging.getLogger(__name__)

AGAIN = 20.0
"""Seconds after which Redis is asked anew; meanwhile the machine's own seconds are trusted, which differ by a thousandth at most."""
SLOW = 0.5
"""An answer that took longer (seconds) does not tell the time well, and is used only where there is none."""

Clock = Callable[[], float]
"""Tells the time in epoch seconds."""


def elapsed() -> float:
    """Return seconds since the machine's start, the time that it slept included: nobody sets them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class RedisClock:
    """Tells Redis' time without asking each time: from the last answer on it counts by itself."""

    def __init__(self, redis: Client, elapsed: Callable[[], float] = elapsed) -> None:
        """`elapsed`: seconds that pass on this machine, from any beginning."""
        self._redis, self._elapsed = redis, elapsed
        self._lock = threading.Lock()
        # When Redis was asked last, by `elapsed`; and its time less that, None before the first answer.
        self._asked = 0.0
        self._ahead: float | None = None

    def __call__(self) -> float:
        """Return the time in epoch seconds. Raises DatabaseAway where Redis has never answered."""
        known = self._ahead
        if known is None or self._elapsed() - self._asked > AGAIN:
            known = self._ask(known)
        return self._elapsed() + known

    def _ask(self, known: float | None) -> float:
        """Return Redis' time less ours; `known` while somebody else is asking, or Redis is away."""
        if known is not None and not self._lock.acquire(blocking=False):
            return known
        if known is None:
            self._lock.acquire()
        try:
            self._asked = before = self._elapsed()
            with redis_faults():
                seconds, micros = self._redis.time()
            after = self._elapsed()
            if self._ahead is None or after - before < SLOW:
                self._ahead = seconds + micros / 1e6 - (before + after) / 2
            return self._ahead
        except DatabaseAway:
            if self._ahead is None:
                raise
            return self._ahead
        finally:
            self._lock.release()
