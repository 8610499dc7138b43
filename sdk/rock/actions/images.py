"""What the service answers about the images of its nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from marshmallow import fields

from rock.actions.fields import wire


@dataclass(kw_only=True)
class RemoveImageResponse:
    """On which nodes an image was removed, and where that failed."""

    removed: list[Any] = wire(fields.List(fields.Raw()), factory=list)
    failed: list[Any] = wire(fields.List(fields.Raw()), factory=list)
    """`{node, error}` each."""
    lost: list[str] = wire(fields.List(fields.String()), factory=list)
    """Nodes that do not answer: nobody knows whether they have it."""


@dataclass(kw_only=True)
class WarmupResponse:
    """How far a warmup is: pending, running, success or failed; each pull is `{image, node, state, message}`."""

    task_id: str = wire(fields.String())
    state: str = wire(fields.String())
    pulls: list[Any] = wire(fields.List(fields.Dict()), factory=list)
