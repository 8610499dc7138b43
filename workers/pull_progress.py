"""How far a pull is, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class PullProgress:
    """A pull's progress in one line: layers that are there, megabytes that came."""

    def __init__(self, image: str) -> None:
        self._image = image
        self._layers: dict[str, tuple[int, int]] = {}
        self._complete: set[str] = set()

    def take(self, line: Mapping[str, Any]) -> None:
        """Take one progress object of the engine."""
        layer, status = line.get("id"), str(line.get("status", ""))
        if not layer or status.startswith("Pulling from"):
            return
        current, total = self._layers.get(layer, (0, 0))
        detail = line.get("progressDetail") or {}
        if status == "Downloading" and detail.get("total"):
            current, total = int(detail["current"]), int(detail["total"])
        elif status in ("Download complete", "Pull complete", "Already exists"):
            current = total
        if status in ("Pull complete", "Already exists"):
            self._complete.add(layer)
        self._layers[layer] = (current, total)

    def text(self) -> str:
        """Return the line."""
        if not self._layers:
            return f"pulling {self._image}"
        got, all_of_it = (sum(sizes) >> 20 for sizes in zip(*self._layers.values(), strict=True))
        return f"pulling {self._image}: {len(self._complete)} of {len(self._layers)} layers, {got} of {all_of_it} MB"
