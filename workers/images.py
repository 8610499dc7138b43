"""Having an image on the node: look, load from the cache folder, or pull, once for all who wait for the same."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from app.references import canonical, full_name, split_reference
from rock.errors import ImageNotFound, Internal, RockError, StartTimeout, Unavailable
from workers.deployments.abstract import Credentials, Pull
from workers.deployments.engine import Engine
from workers.deployments.faults import is_transient
from workers.deployments.main_process import END_SEEN
from workers.image_gate import ImageGate
from workers.image_lending import ImageLending
from workers.pull_progress import PullProgress

_PAUSES = (0.5, 2.0)
"""Seconds before the second and the third try of a pull that the network disturbed."""
_TELL_EVERY = 0.5
JUST_ASKED = 600.0
"""Seconds for which an image that was asked for is not evicted: its container may not be there yet."""
_FACTS_KEPT = 1000
_LOOK_AGAIN = 0.1


@dataclass(frozen=True)
class ImageFacts:
    """What a start needs to know of an image: its id, the names of the variables it sets, its architecture."""

    id: str
    env: tuple[str, ...] = ()
    architecture: str = ""


@dataclass
class _Fetch:
    """A fetch under way, and its end. Whoever waits reads `text` for progress."""

    text: str = ""
    done: threading.Event = field(default_factory=threading.Event)
    error: RockError | None = None


class Images:
    """The images of one engine, which is given the full spelling of what callers name, and nothing else.

    Params:
        engine: the engine.
        cache_dir: folder of `<image>.tar` (with `/` and `:` as they are or as `_`), loaded before any pull; None: none.
        recent: seconds for which an image counts as just asked for.
    """

    def __init__(self, engine: Engine, cache_dir: Path | None = None, recent: float = JUST_ASKED) -> None:
        self._engine, self._cache_dir = engine, cache_dir
        self.node_architecture = engine.architecture
        self._lock, self._gate = threading.Lock(), ImageGate(recent)
        self._lending = ImageLending(engine, self._gate)
        self._fetches: dict[tuple[object, ...], _Fetch] = {}
        self._facts: dict[str, ImageFacts] = {}

    def facts(self, image: str) -> ImageFacts:
        """Return what is known of an image: from its last `prepare`, else by asking. Errors: ImageNotFound."""
        image = full_name(image)
        known = self._facts.get(image)
        if known is None:
            with self._gate.using(canonical(image)):
                self._lending.reclaim(image)
                known = self._look(image)
        if known is None:
            raise ImageNotFound(f"image {image} is not on this node")
        return known

    def prepare(
        self,
        image: str,
        *,
        pull: Pull = Pull.MISSING,
        credentials: Credentials | None = None,
        deadline: float | None = None,
        progress: Callable[[str], None] = lambda text: None,
    ) -> str:
        """Have the image on the node; return its id.

        A fetch goes on when the one who asked gives up: the next try finds more of it, or all.
        Params:
            pull: `missing`: fetch what is not here; `never`: only what is here; `always`: ask the registry first.
            credentials: login for the registry; sent with this pull and kept nowhere.
            deadline: `time.monotonic()` reading to give up at, None for never.
            progress: told what is going on.
        Errors: BadRequest (bad reference), ImageNotFound, ImageAccess, PullFailed, StartTimeout.
        """
        image = full_name(image)
        with self._gate.using(canonical(image), deadline):
            self._lending.reclaim(image)
            return self._prepared(image, pull, credentials, deadline, progress)

    def _prepared(
        self,
        image: str,
        pull: Pull,
        credentials: Credentials | None,
        deadline: float | None,
        progress: Callable[[str], None],
    ) -> str:
        if pull is not Pull.ALWAYS:
            found = self._look(image)
            if found is not None:
                progress(f"image {image} is on the node")
                return found.id
        if pull is Pull.NEVER:
            raise ImageNotFound(f"image {image} is not on this node, and pull=never forbids to fetch it")
        fetch = self._join(image, credentials, always=pull is Pull.ALWAYS)
        self._wait(fetch, image, deadline, progress)
        found = self._look(image)
        if found is None:
            raise ImageNotFound(f"image {image} was fetched, but the engine does not have it under that name")
        return found.id

    def has(self, image: str) -> bool:
        """Return whether the node has an image of that name."""
        return self._engine.image(full_name(image)) is not None

    def names(self) -> list[str]:
        """Return the names of all images that are here."""
        return self._engine.images()

    def push(
        self, image: str, credentials: Credentials, *, private: str = "", pushed: Callable[[], None] = lambda: None
    ) -> None:
        """Push an image to the registry that its name begins with; see `NodeImages.push`. Errors: ImageAccess, PullFailed (network, disk)."""
        login = {"username": credentials.username, "password": credentials.password}

        def push() -> None:
            for _ in self._engine.push(*split_reference(image), login, lambda: True):
                continue  # progress; an error in it is raised

        if private:
            image = full_name(image)
            self._lending.push(image, private, push, pushed)
            self._facts.pop(image, None)
        else:
            push()
            pushed()

    def take_back(self, repository: str) -> None:
        """Take the names away that private images of a repository have been lent for a push, when its process was killed."""
        self._lending.take_back(repository)

    def reclaim(self) -> None:
        """Take back the names that failed pushes of this process still have."""
        self._lending.reclaim_all()

    def remove(self, image: str) -> bool:
        """Remove an image, though stopped containers may use it; True if the node had it.

        Errors: Unavailable while sandboxes run from it: without its last name it would stay on the disk, and nobody could find it.
        """
        image = full_name(image)
        found = self._engine.image(image)
        if found is not None and len(found.get("RepoTags") or ()) <= 1 and (users := self._users(found["Id"])):
            raise Unavailable(f"image {image} is in use by {users} running sandboxes; remove it when they have stopped")
        self._facts.pop(image, None)
        return self._engine.remove_image(image)

    def _users(self, image_id: str) -> int:
        """Return how many containers run from an image. A stop is answered before the engine has seen the container's end."""
        give_up = time.monotonic() + END_SEEN
        while (users := self._engine.runs(image_id)) and time.monotonic() < give_up:
            time.sleep(_LOOK_AGAIN)
        return users

    def evict(self, image: str, *, asked_for: bool = False) -> bool:
        """Remove an image unless any container was made from it, or somebody fetches it or (without `asked_for`) has just asked for it; True if it went."""
        image = full_name(image)
        with self._gate.alone_at_once(canonical(image), recent=not asked_for) as free:
            if not free:
                return False
            self._facts.pop(image, None)
            return self._engine.remove_image(image, force=False)

    def disk_percent(self) -> float | None:
        """Return how full the disk of the engine's images is; None where it is another host's, or not ours to look at."""
        if not self._engine.endpoint.is_local:
            return None
        try:
            disk = os.statvfs(str(self._engine.info().get("DockerRootDir") or ""))
        except OSError:
            return None
        used = disk.f_blocks - disk.f_bfree
        return 100 * used / max(1, used + disk.f_bavail)

    def _look(self, image: str) -> ImageFacts | None:
        raw = self._engine.image(image)
        if raw is None:
            self._facts.pop(image, None)
            return None
        env = tuple(entry.partition("=")[0] for entry in (raw.get("Config") or {}).get("Env") or ())
        if len(self._facts) >= _FACTS_KEPT:
            self._facts.clear()  # asked again when needed
        self._facts[image] = ImageFacts(raw["Id"], env, raw.get("Architecture") or "")
        return self._facts[image]

    def _join(self, image: str, credentials: Credentials | None, *, always: bool) -> _Fetch:
        """Return the fetch of this image under this login that is under way, or begin it."""
        key = (image, credentials and (credentials.username, credentials.password), always)
        with self._lock:
            fetch = self._fetches.get(key)
            if fetch is None:
                fetch = self._fetches[key] = _Fetch()
                self._gate.enter(canonical(image))  # it goes on when those who ask give up
                work = threading.Thread(
                    target=self._run, args=(key, fetch, image, credentials), name=f"pull {image}", daemon=True
                )
                work.start()
        return fetch

    def _run(self, key: tuple[object, ...], fetch: _Fetch, image: str, credentials: Credentials | None) -> None:
        """Carry out a fetch; its outcome, whatever it is, reaches everyone who waits."""
        try:
            if key[-1] or not self._load(fetch, image):
                self._pull(fetch, *split_reference(image), credentials)
        except RockError as error:
            fetch.error = error
        except Exception as error:  # noqa: BLE001 - a thread has no caller; the waiters get it
            fetch.error = Internal(f"cannot fetch image {image}: {error!r}")
        finally:
            with self._lock:
                del self._fetches[key]
            self._gate.leave(canonical(image))
            fetch.done.set()

    def _wait(self, fetch: _Fetch, image: str, deadline: float | None, progress: Callable[[str], None]) -> None:
        told = ""
        while not fetch.done.wait(_TELL_EVERY):
            if fetch.text != told:
                told = fetch.text
                progress(told)
            if deadline is not None and time.monotonic() >= deadline:
                raise StartTimeout(
                    f"image {image} was not there in time ({told or 'the fetch had just begun'}); it goes on"
                )
        if fetch.error is not None:
            raise type(fetch.error)(fetch.error.message, **fetch.error.details) from fetch.error

    def _load(self, fetch: _Fetch, image: str) -> bool:
        """Load the image from the cache folder, if a file for it is there."""
        file = self._cached(image)
        if file is None:
            return False
        fetch.text = f"loading image {image} from {file.name}, {file.stat().st_size >> 20} MB"
        loaded = ""
        for line in self._engine.load(file, lambda: True):
            match = re.search(r"Loaded image(?: ID)?: (\S+)", str(line.get("stream", "")))
            loaded = match[1] if match else loaded
        if self._engine.image(image) is None and loaded:
            self._engine.tag(loaded, *split_reference(image))  # the file's name says what its content is called here
        return self._engine.image(image) is not None

    def _cached(self, image: str) -> Path | None:
        if self._cache_dir is None:
            return None
        spellings = (image, image.removesuffix(":latest"))
        names = [name for one in spellings for name in (one, one.replace("/", "_"), re.sub(r"[/:]", "_", one))]
        return next((file for name in names if (file := self._cache_dir / f"{name}.tar").is_file()), None)

    def _pull(self, fetch: _Fetch, repository: str, tag: str, credentials: Credentials | None) -> None:
        login = {"username": credentials.username, "password": credentials.password} if credentials else None
        for pause in (*_PAUSES, None):
            try:
                layers = PullProgress(f"{repository}:{tag}")
                fetch.text = layers.text()
                for line in self._engine.pull(repository, tag, login, lambda: True):
                    layers.take(line)
                    fetch.text = layers.text()
                return
            except RockError as error:
                if pause is None or not is_transient(error):
                    raise
                fetch.text = f"{error.message}; trying again"
                time.sleep(pause)
