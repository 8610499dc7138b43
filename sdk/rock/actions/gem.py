"""What GEM answers: plain JSON, no envelope."""

from __future__ import annotations

from dataclasses import dataclass

from marshmallow import fields

from rock.actions.fields import wire


@dataclass(kw_only=True)
class EnvSandboxResponse:
    """Of GEM's make and close."""

    sandbox_id: str = wire(fields.String())


@dataclass(kw_only=True)
class EnvResetResponse:
    """Of GEM's reset; an observation is whatever the environment gives."""

    observation: object = wire(fields.Raw(), None)
    info: dict[str, object] = wire(fields.Dict(), factory=dict)


@dataclass(kw_only=True)
class EnvStepResponse(EnvResetResponse):
    """Of GEM's step."""

    reward: float = wire(fields.Float(), 0.0)
    terminated: bool = wire(fields.Boolean(), False)
    truncated: bool = wire(fields.Boolean(), False)


@dataclass(kw_only=True)
class EnvListResponse:
    """Of GEM's list."""

    env_id: list[str] = wire(fields.List(fields.String()), factory=list)
