"""One thread at a time per sandbox: for engine work that must not mix, such as a restart and a removal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Locks by sandbox id, kept only while somebody has or awaits them."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextmanager
    def of(self, sandbox_id: str, *, wait: bool = True) -> Iterator[bool]:
        """Hold the sandbox's turn while the context lasts. Not to be entered twice by one thread.

        Params:
            wait: until it is free; otherwise the context goes without it while another has it.
        Returns:
            Whether it is held.
        """
        with self._guard:
            lock, users = self._locks.get(sandbox_id, (threading.Lock(), 0))
            self._locks[sandbox_id] = (lock, users + 1)
        held = False
        try:
            held = lock.acquire(blocking=wait)
            yield held
        finally:
            if held:
                lock.release()
            with self._guard:
                users = self._locks[sandbox_id][1] - 1
                if users:
                    self._locks[sandbox_id] = (lock, users)
                else:
                    del self._locks[sandbox_id]
