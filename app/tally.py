"""What is counted for `/metrics`, and how it gets there: each process counts in memory and adds it to one hash in Redis every second.

So any API process can tell the numbers of the whole fleet, nodes on other machines included, and a process that is killed takes
a second of counting with it at most. Nothing on the way of a call waits for Redis because of it. Without metrics nothing is counted.
"""

import json
import logging
import threading
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from app.database import Client, redis_faults
from app.keys import Keys
from rock.errors import RockError

log = logging.getLogger(__name__)

EVERY = 1.0
"""Seconds between two additions to Redis."""
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Upper bounds of the buckets of every histogram."""
SUM = -1
"""In the place of a bucket's number: the sum of all that was observed."""


@dataclass(frozen=True)
class Meter:
    """One family of numbers: a counter, or a histogram of seconds."""

    name: str
    help: str
    labels: tuple[str, ...]
    histogram: bool = False


HTTP_REQUESTS = Meter("rock_http_requests", "HTTP requests answered.", ("method", "route", "outcome"))
HTTP_SECONDS = Meter("rock_http_request_seconds", "From a request to its answer.", ("method", "route"), histogram=True)
CALLS = Meter(
    "rock_calls", "Calls answered, by what was asked for and `ok` or the kind of failure.", ("route", "outcome")
)
CALL_SECONDS = Meter(
    "rock_call_seconds", "From a call to its answer; of run_in_session: steps.", ("route",), histogram=True
)
CALL_WAITS = Meter("rock_call_wait_seconds", "From a call until its node took it.", ("route",), histogram=True)
PHASE_SECONDS = Meter("rock_start_phase_seconds", "Phases of starts that ended.", ("phase", "status"), histogram=True)
MOVES = Meter(
    "rock_sandbox_events", "Sandboxes that changed state, by why; lease_expired are the reaped ones.", ("event",)
)
METERS = (HTTP_REQUESTS, HTTP_SECONDS, CALLS, CALL_SECONDS, CALL_WAITS, PHASE_SECONDS, MOVES)
"""Everything that is counted."""


class Tally:
    """The counts of one process that are not in Redis yet. Its thread starts with the first of them, and so survives a fork."""

    def __init__(self, redis: Client, keys: Keys, *, enable: bool = True) -> None:
        """`enable`: False makes every method do nothing."""
        self.enabled = enable
        self._redis, self._key = redis, keys.metrics()
        self._counts: dict[tuple[str | int, ...], float] = {}
        self._lock, self._flushing = threading.Lock(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def count(self, meter: Meter, *labels: str) -> None:
        """Add one to a counter; the values of its labels in their order."""
        if self.enabled:
            self._add({(meter.name, *labels): 1.0})

    def observe(self, meter: Meter, seconds: float, *labels: str) -> None:
        """Add a time to a histogram. Below nothing is nothing: clocks are not that exact."""
        if self.enabled:
            seconds = max(0.0, seconds)
            self._add({(meter.name, *labels, bisect_left(SECONDS, seconds)): 1.0, (meter.name, *labels, SUM): seconds})

    def _add(self, counts: Mapping[tuple[str | int, ...], float]) -> None:
        with self._lock:
            for field, number in counts.items():
                self._counts[field] = self._counts.get(field, 0.0) + number
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
                self._thread.start()

    def flush(self) -> None:
        """Add what was counted to Redis; while that is away it is kept for the next time. Raises DatabaseAway.

        When it returns, what another thread had begun to add is there, too.
        """
        with self._flushing:
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            counts, self._counts = self._counts, {}
        if not counts:
            return
        try:
            with redis_faults():
                pipe = self._redis.pipeline()
                for field, number in counts.items():
                    pipe.hincrbyfloat(self._key, json.dumps(field), number)
                pipe.execute()
        except RockError:
            # Where only the answer was lost they are added twice: a second of one process, once per outage.
            self._add(counts)
            raise

    def close(self) -> None:
        """Add what is left, and end the thread."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(2)
        try:
            self.flush()
        except RockError as error:
            log.info("the last second of metrics is lost: %s", error.message)

    def _run(self) -> None:
        while not self._closed.wait(EVERY):
            try:
                self.flush()
            except RockError as error:
                log.warning("metrics are kept until Redis is back: %s", error.message)
