"""Whether a node's disk is near full: what an engine says of it has words of registries and of callers in it."""

from __future__ import annotations

import logging
import time

from rock.errors import RockError
from workers.deployments.abstract import AbstractDeployment

log = logging.getLogger(__name__)

FULL_PERCENT = 90.0
"""A disk that is used to so much is near full."""
KEPT_SECONDS = 30.0
"""For so long it counts as near full after it was seen so: an engine soon removes what it could not fetch whole."""
LOOK_EVERY = 1.0
"""Seconds between looks while images are fetched: each asks the engine."""


class Fullness:
    """What was seen of the disk that a node's images are on. Its methods may be called from any thread."""

    def __init__(self, deployment: AbstractDeployment) -> None:
        self._deployment = deployment
        # Monotonic seconds when it was last seen near full.
        self._seen = float("-inf")

    def look(self) -> None:
        """Look at the disk, and keep in mind if it is near full. Errors: none; an engine that does not answer is logged."""
        try:
            used = self._deployment.images.disk_percent()
        except RockError as error:
            log.warning("nobody knows how full the disk of the images is: %s", error.message)
            return
        if used is not None and used >= FULL_PERCENT:
            self._seen = time.monotonic()

    def is_full(self) -> bool:
        """Return whether the disk is near full, or was seen so a moment ago; False where it cannot be seen."""
        self.look()
        return time.monotonic() - self._seen < KEPT_SECONDS
