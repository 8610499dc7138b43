"""Names of images that are lent to private ones for a push: an engine pushes an image by its name, so it has to have it meanwhile."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from app.references import canonical, full_name, is_own, split_reference
from rock.errors import RockError
from workers.deployments.engine import Engine
from workers.deployments.snapshot import drop_nameless
from workers.image_gate import ImageGate

log = logging.getLogger(__name__)

PUSH_WAITS = 600.0
"""Seconds for which a push waits for those who fetch an image of the same name."""


class ImageLending:
    """Lends names of one engine, and has them back whatever happens: who starts such a name must never get the private image.

    Params:
        gate: who uses a name; everybody who does calls `reclaim` first.
    """

    def __init__(self, engine: Engine, gate: ImageGate) -> None:
        self._engine, self._gate = engine, gate
        self._lock = threading.Lock()
        # By their one spelling, names that could not be taken back when their push failed: as they were lent, and the id of
        # what had them before, "" for nothing.
        self._owed: dict[str, tuple[str, str]] = {}

    def push(self, image: str, private: str, push: Callable[[], None], pushed: Callable[[], None]) -> None:
        """Push an image under another name than its own, which it has from then on instead. If that fails, both are as before.

        Nobody else can start it: starts under that name wait, and those that have begun have the id of what it was.

        Params:
            pushed: called when the registry has it, while it still has both names.
        Errors: those of `push` and `pushed`; Unavailable when the name is in use for too long.
        """
        with self._gate.alone(canonical(image), PUSH_WAITS):
            self.reclaim(image)
            before = str((self._engine.image(image) or {}).get("Id") or "")
            try:
                self._engine.tag(private, *split_reference(image))
                push()
            except BaseException:
                self._owe(image, before)
                raise
            pushed()
            self._drop(private, before)

    def reclaim(self, image: str) -> None:
        """Take a name back if a failed push still has it. Errors: Unavailable while the engine is away, so that nobody uses it till then."""
        with self._lock:
            lent, before = self._owed.get(canonical(image), ("", ""))
            if not lent:
                return
            # What lost its last name may have been pruned meanwhile.
            if before and self._engine.image(before) is not None:
                self._engine.tag(before, *split_reference(lent))
            else:
                self._engine.remove_image(lent)
            del self._owed[canonical(image)]

    def reclaim_all(self) -> None:
        """Take back all names that failed pushes still have. Errors: Unavailable; those that are left stay known."""
        for image in tuple(self._owed):
            self.reclaim(image)

    def take_back(self, repository: str) -> None:
        """Take the names away that private images of a repository have been lent by a process that was killed; no push may be under way."""
        for private in [name for name in self._engine.images() if name.startswith(f"{repository}:")]:
            lent = [name for name in (self._engine.image(private) or {}).get("RepoTags") or () if not is_own(name)]
            for name in lent:
                self._engine.remove_image(full_name(name), force=False)

    def _owe(self, image: str, before: str) -> None:
        """Take a name back, or have it done later: an engine that broke a push off may be away."""
        with self._lock:
            self._owed[canonical(image)] = (image, before)
        try:
            self.reclaim(image)
        except RockError as error:
            log.warning("the name %s stays with a private image, and nobody can start it, until: %s", image, error)

    def _drop(self, private: str, before: str) -> None:
        """Remove a name that is not needed any more, and what has lost its own. The push has succeeded, so a failure is none of its."""
        try:
            self._engine.remove_image(private)
            if before:
                drop_nameless(self._engine, before)
        except RockError as error:
            log.warning("what a push has left could not be removed: %s", error, extra={"image": private})
