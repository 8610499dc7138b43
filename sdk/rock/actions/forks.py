"""Making more sandboxes of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from marshmallow import fields

from rock.actions.codec import schema_of
from rock.actions.fields import Texts, Variables, Whole, seconds, wire
from rock.actions.requests import WaitingCall
from rock.actions.responses import StartResponse


@dataclass(kw_only=True)
class ForkRequest(WaitingCall):
    """POST /sandboxes/{sandbox_id}/fork. What the service does not keep of the source's start has to be said again."""

    count: int = wire(Whole(low=1, high=64), 1)
    """How many; all of them, or none."""
    env: dict[str, str] = wire(Variables(), factory=dict)
    docker_args: list[str] = wire(Texts(most=1000), factory=list)
    startup_timeout: float | None = wire(seconds(), None)
    """Seconds for the starts, the wait for room included; None: the server's own."""


@dataclass(kw_only=True)
class ForkResponse:
    """The sandboxes that were made of one."""

    sandboxes: list[StartResponse] = wire(fields.List(fields.Nested(lambda: schema_of(StartResponse))), factory=list)

    def __post_init__(self) -> None:
        """Turn loaded objects into StartResponses."""
        found: list[Any] = list(self.sandboxes)
        self.sandboxes = [StartResponse(**item) if isinstance(item, dict) else item for item in found]
