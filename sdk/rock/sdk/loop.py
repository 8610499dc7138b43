"""A private event loop in a thread, for callers that have none: `run(coroutine)` waits for its result."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")
STOP_SECONDS = 5.0
"""How long the interpreter's end waits for what the loop still holds."""


CLEAN_UP_SECONDS = 15.0
"""How long an interrupted caller waits for what was interrupted to clean up (withdraw a start, end a command)."""


class _Call(Generic[T]):
    """One coroutine on the loop, and the thread that waits for it.

    Params:
        coroutine: begun on the loop by `begin`.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        self._ended = threading.Event()

    def begin(self) -> None:
        """Start it. On the loop."""
        self._task = asyncio.get_running_loop().create_task(self._coroutine)
        self._task.add_done_callback(lambda _: self._ended.set())

    def end(self) -> None:
        """Cancel it; one that never began is dropped. On the loop."""
        if self._task is not None:
            self._task.cancel()
        else:
            self._coroutine.close()
            self._ended.set()

    def result(self, seconds: float | None = None) -> T:
        """Wait for it and return its result. Raises what it raises; TimeoutError after `seconds`."""
        if not self._ended.wait(seconds) or self._task is None:
            raise TimeoutError
        return self._task.result()


class _Loop:
    """A loop in a daemon thread, started on first use, shut down when the interpreter ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine and return its result; an interrupt of the caller (Ctrl-C) cancels it, and waits until it has cleaned up."""
        call, loop = _Call(coroutine), self._running()
        try:
            loop.call_soon_threadsafe(call.begin)
            return call.result()
        except BaseException:
            loop.call_soon_threadsafe(call.end)
            # What it was about to do, or how it ended, does not matter any more.
            with suppress(asyncio.CancelledError, Exception):
                call.result(CLEAN_UP_SECONDS)
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
