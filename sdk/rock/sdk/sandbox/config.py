"""What a user says about a sandbox before it starts."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import partial

from rock import settings
from rock.actions import StartRequest
from rock.sdk.transport import PATIENCE_SECONDS, Transport

_setting = partial(partial, settings.read)


@dataclass(kw_only=True)
class SandboxConfig(StartRequest):
    """A StartRequest with defaults for agents, and how to reach the service.

    Defaults that come from the environment are read when the object is made, not when this module is imported.
    """

    image: str = "python:3.11"
    startup_timeout: float | None = field(default_factory=_setting("ROCK_SANDBOX_STARTUP_TIMEOUT_SECONDS"))
    """Seconds over pull and start."""
    auto_clear_seconds: float | None = 14_400.0
    """The sandbox stops after that many seconds without a call."""
    base_url: str = field(default_factory=_setting("ROCK_BASE_URL"))
    cluster: str | None = field(default_factory=_setting("ROCK_DEFAULT_CLUSTER"))
    """Node label for placement."""
    user_id: str | None = None
    experiment_id: str | None = None
    namespace: str | None = None
    api_key: str | None = field(default_factory=_setting("ROCK_API_KEY"), repr=False)
    extra_headers: dict[str, str] = field(default_factory=dict, repr=False)
    patience: float = PATIENCE_SECONDS
    """Seconds for which a call is sent again while nobody answers; then it raises Unavailable."""

    def to_request(self) -> StartRequest:
        """Return what is sent to start the sandbox."""
        return StartRequest(**{item.name: getattr(self, item.name) for item in fields(StartRequest)})

    def headers(self) -> dict[str, str]:
        """Return the headers of every call: identity, placement and key; extra_headers win."""
        named = {
            "X-Cluster": self.cluster,
            "X-User-Id": self.user_id,
            "X-Experiment-Id": self.experiment_id,
            "X-Namespace": self.namespace,
            "X-API-Key": self.api_key,
        }
        return {**{name: value for name, value in named.items() if value}, **self.extra_headers}

    def transport(self) -> Transport:
        """Return a transport to the service."""
        return Transport(self.base_url, self.headers(), self.patience)


@dataclass(kw_only=True)
class SandboxGroupConfig(SandboxConfig):
    """Several sandboxes that are alike."""

    size: int = 2
    start_concurrency: int = 2
    """How many start at the same time."""
    start_retry_times: int = 3
    """How often each start is tried."""
