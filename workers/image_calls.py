"""What a node is asked to do with its images: fetch one ahead of time, remove one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from app.calls import Call
from app.database import DatabaseAway
from app.image_store import ImageStore
from app.results import ResultStore
from rock.errors import RockError, success
from workers.background import Background
from workers.deployments.abstract import AbstractDeployment

log = logging.getLogger(__name__)

AT_ONCE = 3
"""Images that are fetched ahead at the same time: starts share the line and the disk with them."""


class ImageCalls:
    """Carries out calls about images on one node."""

    def __init__(
        self, results: ResultStore, store: ImageStore, deployment: AbstractDeployment,
        without: Callable[[str], AbstractContextManager[None]],
    ) -> None:  # fmt: skip
        """`without`: a context in which the node's pool has nothing of an image."""
        self._results, self._store, self._deployment, self._without = results, store, deployment, without
        self._pulls = Background(results, AT_ONCE, self._warm)

    def warm(self, call_id: str) -> None:
        """NodeTask.WARM: fetch an image in the background, unless it is here."""
        self._pulls.begin(call_id)

    def warm_up(self, images: Iterable[str]) -> threading.Thread:
        """Fetch the images that the node's configuration names, one after the other, in a thread that is returned."""
        thread = threading.Thread(target=self._warm_all, args=(list(images),), name="warmup", daemon=True)
        thread.start()
        return thread

    def remove(self, call: Call) -> None:
        """NodeTask.REMOVE_IMAGE: remove an image by force, and answer. Errors: what the engine refuses."""
        image = str(call.body["image"])
        removed = self._remove_private(call, image)
        # Only what was noted before is forgotten, and only here, where the image was: one without an owner is anybody's.
        home = self._store.home(image, call.node)
        with self._without(image):
            removed = self._deployment.images.remove(image) or removed
        if home is not None:
            self._store.forget(image, home)
        self._store.forget_use(call.node, image)
        log.info("image removed", extra={"request_id": call.request_id, "image": image, "was_here": removed})
        self._results.complete(call.call_id, success({"removed": removed}), self._results.clock())

    def _remove_private(self, call: Call, image: str) -> bool:
        """Remove the commits of that name that are private: the caller's, or everybody's for an admin; True if there were any."""
        removed = False
        for home in self._store.homes(image):
            if home.node == call.node and home.name and (home.owner == call.owner or call.body.get("all_owners")):
                removed = self._deployment.images.remove(home.name) or removed
                self._store.forget(image, home)
        return removed

    def _warm(self, call: Call) -> None:
        image = str(call.body["image"])
        try:
            self._deployment.prepare_image(image, progress=lambda text: self._store.tell(call.call_id, text))
        except DatabaseAway:
            raise  # no failure of this pull's: it is done again
        except RockError as error:
            log.warning(
                "image could not be fetched ahead: %s", error, extra={"request_id": call.request_id, "image": image}
            )
            self._results.fail(call.call_id, error, self._results.clock())
        else:
            self._store.note_use(call.node, image, self._results.clock())
            self._results.complete(
                call.call_id, success({"message": f"image {image} is on the node"}), self._results.clock()
            )

    def _warm_all(self, images: list[str]) -> None:
        for image in images:
            try:
                self._deployment.prepare_image(image, progress=lambda text: log.info("warmup: %s", text))
                log.info("warmup: image %s is on the node", image)
            except RockError as error:
                log.warning("warmup: image %s could not be fetched: %s", image, error)
