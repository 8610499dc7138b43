"""A private event loop in a thread, for callers that have none: `run(coroutine)` waits for its result."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
STOP_SECONDS = 5.0
"""How long the interpreter's end waits for what the loop still holds."""


class _Loop:
    """A loop in a daemon thread, started on first use, shut down when the interpreter ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine and return its result; an interrupt of the caller (Ctrl-C) cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._running())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        """Return the loop; a forked child, which inherits no threads, gets one of its own."""
        with self._lock:
            if self._loop is None or self._thread is None or not self._thread.is_alive():
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._serve, args=(self._loop,), name="rock-sdk", daemon=True)
                self._thread.start()
                atexit.register(self._stop, self._loop, self._thread)
            return self._loop

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        """Run the loop until it is stopped, then close what it holds."""
        try:
            loop.run_forever()
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    @staticmethod
    def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        """Stop the loop and wait a little for its thread."""
        if thread.is_alive():
            loop.call_soon_threadsafe(loop.stop)
            thread.join(STOP_SECONDS)


_shared = _Loop()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine on the private loop and return its result.

    Raises:
        whatever the coroutine raises; an interrupt (Ctrl-C) cancels it and goes on.
    """
    return _shared.run(coroutine)
