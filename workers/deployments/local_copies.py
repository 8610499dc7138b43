"""What a node without an engine has for images: copies of sandboxes' folders, from which others are made (fork)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from app.references import full_name
from rock.errors import BadRequest, Internal
from workers.deployments.abstract import Credentials

_PART = ".part"
"""End of the name of a copy that is not whole yet; no image's name has it in front of nothing."""


class Copies:
    """The copies of one node. Any other image is the machine's own files.

    Params:
        folder: where they are kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> Sequence[str]:
        """Return the names of the copies."""
        found = self._folder.iterdir() if self._folder.is_dir() else ()
        return sorted(unquote(path.name) for path in found if not path.name.endswith(_PART))

    def has(self, image: str) -> bool:
        """Return whether there is a copy of that name."""
        return self._path(image).is_dir()

    def push(
        self, image: str, credentials: Credentials, *, private: str = "", pushed: Callable[[], None] = lambda: None
    ) -> None:
        """Refuse. Errors: BadRequest."""
        raise BadRequest("the local deployment has no images; this needs a node with a container engine")

    def take_back(self, repository: str) -> None:
        """Do nothing: nothing is pushed from here."""

    def reclaim(self) -> None:
        """Do nothing: nothing is pushed from here."""

    def remove(self, image: str) -> bool:
        """Remove a copy; True if it was here."""
        had = self.has(image)
        for path in (self._path(image), self._part(image)):
            shutil.rmtree(path, onerror=make_writable)
        return had

    def evict(self, image: str, *, asked_for: bool = False) -> bool:
        """Remove a copy, which nobody uses once others were made from it; True if it was here."""
        return self.remove(image)

    def disk_percent(self) -> float | None:
        """Return None: nothing here fills a disk for long."""
        return None

    def keep(self, image: str, source: Path) -> None:
        """Copy a folder under that name, in place of an earlier copy."""
        self.remove(image)
        part = self._part(image)
        part.mkdir(parents=True, mode=0o700)
        copy(source, part)
        part.rename(self._path(image))

    def lay_out(self, image: str, target: Path) -> None:
        """Copy what is kept under that name, if anything is, into a new sandbox's folder."""
        if self.has(image):
            copy(self._path(image), target)

    def _path(self, image: str) -> Path:
        # A reference has no part that is only dots; its slashes and colons are quoted.
        return self._folder / quote(full_name(image), safe="")

    def _part(self, image: str) -> Path:
        path = self._path(image)
        return path.with_name(path.name + _PART)


def copy(source: Path, target: Path) -> None:
    """Copy a folder's contents with modes, times, links and special files. Errors: Internal in the words of `cp`."""
    ran = subprocess.run(["cp", "-a", "--", f"{source}/.", str(target)], capture_output=True, text=True)
    if ran.returncode:
        raise Internal(f"a sandbox's folder cannot be copied: {ran.stderr.strip()[:500]}")


def make_writable(function: Callable[[str], None], path: str, error: Any) -> None:
    """Help a removal past folders without write permission; what is gone already is as wanted."""
    if issubclass(error[0], FileNotFoundError):
        return
    os.chmod(os.path.dirname(path), 0o700)
    os.chmod(path, 0o700)
    function(path)
