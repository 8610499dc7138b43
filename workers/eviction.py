"""Makes room on a node's disk: removes images that nobody has used for a while, once the disk is full to a threshold."""

from __future__ import annotations

import logging

from app.config import Config
from app.database import DatabaseAway
from app.image_store import ImageStore
from app.references import full_name
from rock.errors import RockError
from workers.deployments.abstract import AbstractDeployment

log = logging.getLogger(__name__)


class Eviction:
    """The images of one node that starts and warmups have fetched or used; what else the engine has is not the service's to remove.

    Never goes: what a container was made from, running or stopped; what is being fetched or was just asked for; what
    `warmup.images` names, or the pool; a commit that no registry has.
    """

    def __init__(self, config: Config, images: ImageStore, deployment: AbstractDeployment) -> None:
        runtime = config.runtime
        self._node, self._images, self._deployment = config.node.id, images, deployment
        self._percent, self._after = runtime.image_evict_percent, runtime.image_evict_seconds
        pooled = [kind.image for kind in config.pool.sandboxes]
        self._kept = {full_name(image) for image in (*config.warmup.images, *pooled)}

    def run(self, now: float) -> int:
        """Remove what may go, what was used longest ago first, until the disk is below the threshold; return how many."""
        removed = 0
        if not self._is_full():
            return removed
        for image in self._images.unused(self._node, now - self._after):
            removed += self._guarded(image, now)
            if removed and not self._is_full():
                break
        return removed

    def _is_full(self) -> bool:
        if self._percent <= 0:
            return True
        used = self._deployment.images.disk_percent()
        return used is not None and used >= self._percent

    def _guarded(self, image: str, now: float) -> bool:
        try:
            return self._look_at(image, now)
        except DatabaseAway:
            raise  # it would be the same for each of them
        except (RockError, OSError) as error:
            log.warning("image could not be evicted: %s", error, extra={"image": image})
            return False

    def _look_at(self, image: str, now: float) -> bool:
        """Remove one image if nothing speaks against it; True if it went."""
        home = self._images.home(image, self._node)
        if image in self._kept or (home is not None and not home.pushed):
            return False
        if not self._deployment.images.has(image):
            self._images.forget_use(self._node, image)
            return False
        if not self._deployment.images.evict(image):
            self._images.note_use(self._node, image, now)  # in use: its time begins anew
            return False
        log.info("image evicted: the disk is full, and nobody has used it", extra={"image": image})
        self._images.forget_use(self._node, image)
        if home is not None:
            self._images.forget(image, home)
        return True
