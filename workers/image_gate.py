"""Who needs the name of an image just now, and who wants nobody to: one who removes it, or lends it to another image for a push."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rock.errors import StartTimeout, Unavailable

_KEPT = 1000
"""Names of which it is known when they were asked for; above that, those of long ago are dropped."""


class ImageGate:
    """Many may use a name at the same time, or one may have it alone.

    Params:
        recent: seconds for which a name that was used counts as just asked for.
    """

    def __init__(self, recent: float) -> None:
        self._recent = recent
        self._changed = threading.Condition()
        self._users: Counter[str] = Counter()
        self._alone: set[str] = set()
        # When each name was used last (monotonic seconds).
        self._asked: dict[str, float] = {}

    @contextmanager
    def using(self, image: str, deadline: float | None = None) -> Iterator[None]:
        """Use a name, once nobody has it alone.

        Params:
            deadline: `time.monotonic()` reading to give up at, None for never.
        Errors: StartTimeout.
        """
        with self._changed:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._changed.wait_for(lambda: image not in self._alone, left):
                raise StartTimeout(f"image {image} was being pushed or removed until the time was over")
            self._enter(image)
        try:
            yield
        finally:
            self.leave(image)

    def enter(self, image: str) -> None:
        """Use a name in one's own time, from within a use; `leave` ends it."""
        with self._changed:
            self._enter(image)

    def leave(self, image: str) -> None:
        """End a use."""
        with self._changed:
            self._users[image] -= 1
            if not self._users[image]:
                del self._users[image]
            self._asked[image] = time.monotonic()
            self._changed.notify_all()

    @contextmanager
    def alone(self, image: str, seconds: float) -> Iterator[None]:
        """Have a name alone, as soon as nobody uses it. Errors: Unavailable after `seconds`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_free(image), seconds):
                raise Unavailable(
                    f"image {image} has been fetched or pushed by others for {seconds:g} s; try again later"
                )
            self._alone.add(image)
        try:
            yield
        finally:
            self._give_back(image)

    @contextmanager
    def alone_at_once(self, image: str, *, recent: bool) -> Iterator[bool]:
        """Have a name alone if nobody uses it, which is yielded; with `recent`, not if somebody has just asked for it, either."""
        with self._changed:
            fresh = time.monotonic() - self._asked.get(image, float("-inf")) < self._recent
            free = self._is_free(image) and not (recent and fresh)
            if free:
                self._alone.add(image)
        try:
            yield free
        finally:
            if free:
                self._give_back(image)

    def _enter(self, image: str) -> None:
        if len(self._asked) >= _KEPT:
            since = time.monotonic() - self._recent
            self._asked = {name: asked for name, asked in self._asked.items() if asked > since}
        self._users[image] += 1
        self._asked[image] = time.monotonic()

    def _is_free(self, image: str) -> bool:
        return image not in self._alone and not self._users[image]

    def _give_back(self, image: str) -> None:
        with self._changed:
            self._alone.discard(image)
            self._changed.notify_all()
