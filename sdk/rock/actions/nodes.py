"""What the service answers about its nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from marshmallow import fields

from rock.actions.codec import schema_of
from rock.actions.fields import wire


@dataclass(kw_only=True)
class NodeResponse:
    """A machine that runs sandboxes. CPUs and bytes: what it has to give, and what of it is taken."""

    node_id: str = wire(fields.String())
    state: str = wire(fields.String(), "")
    """active, draining, full (its disk was, just now: it takes nothing new for a minute), or lost: no sign of life for too long."""
    draining: bool = wire(fields.Boolean(), False)
    """Whether it was told to take nothing new; of a lost node too."""
    cpus: float = wire(fields.Float(), 0.0)
    used_cpus: float = wire(fields.Float(), 0.0)
    memory: int = wire(fields.Integer(), 0)
    used_memory: int = wire(fields.Integer(), 0)
    sandboxes: int = wire(fields.Integer(), 0)
    pooled: int = wire(fields.Integer(), 0)
    """Sandboxes of its warm pool, started ahead and nobody's yet; they take nothing of its room."""
    labels: dict[str, str] = wire(fields.Dict(), factory=dict)
    runtime: str | None = wire(fields.String(), None)
    host_name: str | None = wire(fields.String(), None)
    host_ip: str | None = wire(fields.String(), None)
    last_seen: str | None = wire(fields.String(), None)
    """ISO 8601 with zone; None when it has signed off."""


@dataclass(kw_only=True)
class NodeListResponse:
    """All nodes, and the number of starts that wait for room on one."""

    nodes: list[NodeResponse] = wire(fields.List(fields.Nested(lambda: schema_of(NodeResponse))), factory=list)
    waiting: int = wire(fields.Integer(), 0)

    def __post_init__(self) -> None:
        """Turn loaded objects into NodeResponses."""
        found: list[Any] = list(self.nodes)
        self.nodes = [NodeResponse(**item) if isinstance(item, dict) else item for item in found]
