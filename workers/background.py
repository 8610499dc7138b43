"""Calls that take minutes, in threads of their own: the threads that start and stop sandboxes must stay free."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from app.calls import Call
from app.database import DatabaseAway
from app.results import ResultStore

log = logging.getLogger(__name__)


class Background:
    """Takes calls and carries them out, a few at the same time; as many threads, and only while there is work.

    They are daemons, which those of a ThreadPoolExecutor are not: a node that stops does not wait for them.
    Params:
        at_once: how many work at the same time; the others wait, first come, first served.
        work: carries out one call and answers it, whatever happens.
    """

    def __init__(self, results: ResultStore, at_once: int, work: Callable[[Call], None]) -> None:
        self._results, self._at_once, self._work = results, at_once, work
        self._lock = threading.Lock()
        self._in_hand: set[str] = set()
        self._waiting: deque[Call] = deque()
        self._threads = 0

    def begin(self, call_id: str) -> None:
        """Take a call. Again while it is in hand: nothing happens.

        What goes wrong with Redis is tried again by the node's next look at what is in flight.
        """
        with self._lock:
            if call_id in self._in_hand:
                return
            self._in_hand.add(call_id)
        try:
            # Taken at once, though it may have to wait: a call that no node takes in time is failed.
            call = self._results.take(call_id, self._results.clock())
            if call is not None:
                self._put(call)
                return
        except DatabaseAway as error:
            log.warning("call put off in the background: %s", error, extra={"call_id": call_id})
        except BaseException:
            self._let_go(call_id)
            raise
        self._let_go(call_id)

    @property
    def is_busy(self) -> bool:
        """True while any call is in hand."""
        return bool(self._in_hand)

    def holds(self, call_id: str) -> bool:
        """Return whether a call is in hand: carried out, or waiting for that."""
        with self._lock:
            return call_id in self._in_hand

    def _put(self, call: Call) -> None:
        """Have a thread carry out a call. Errors: RuntimeError when the machine has no thread to give; then nobody has the call."""
        with self._lock:
            if self._threads < self._at_once:
                threading.Thread(target=self._run, name=f"calls from {call.call_id}", daemon=True).start()
                self._threads += 1
            self._waiting.append(call)

    def _run(self) -> None:
        """Carry out calls until none waits."""
        while (call := self._next()) is not None:
            try:
                self._work(call)
            except DatabaseAway as error:
                log.warning("%s put off in the background: %s", call.route, error, extra=call.about)
            except Exception:
                log.exception("%s failed in the background", call.route, extra=call.about)
            finally:
                self._let_go(call.call_id)

    def _next(self) -> Call | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            return None

    def _let_go(self, call_id: str) -> None:
        with self._lock:
            self._in_hand.discard(call_id)
