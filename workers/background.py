"""Calls that take minutes, each in a thread of its own: the threads that start and stop sandboxes must stay free."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from app.calls import Call
from app.database import DatabaseAway
from app.results import ResultStore

log = logging.getLogger(__name__)


class Background:
    """Takes calls and carries them out, a few at the same time.

    Params:
        at_once: how many work at the same time; the others wait.
        work: carries out one call and answers it, whatever happens.
    """

    def __init__(self, results: ResultStore, at_once: int, work: Callable[[Call], None]) -> None:
        self._results, self._work = results, work
        self._room = threading.Semaphore(at_once)
        self._lock = threading.Lock()
        self._in_hand: set[str] = set()

    def begin(self, call_id: str) -> None:
        """Take a call. Again while it is in hand: nothing happens."""
        with self._lock:
            if call_id in self._in_hand:
                return
            self._in_hand.add(call_id)
        threading.Thread(target=self._run, args=(call_id,), name=f"call {call_id}", daemon=True).start()

    def _run(self, call_id: str) -> None:
        """Carry out one call; what goes wrong with Redis is tried again by the node's next look at what is in flight."""
        try:
            # Taken at once, though it may have to wait: a call that no node takes in time is failed.
            call = self._results.take(call_id, time.time())
            if call is not None:
                with self._room:
                    self._work(call)
        except DatabaseAway as error:
            log.warning("call put off in the background call=%s: %s", call_id, error)
        except Exception:
            log.exception("call failed in the background call=%s", call_id)
        finally:
            with self._lock:
                self._in_hand.discard(call_id)
