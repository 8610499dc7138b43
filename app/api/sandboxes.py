"""Routes about a sandbox as a whole."""

from flask import request

from app.api.endpoint import Incoming, query_flag, query_text
from app.calls import Route
from app.dispatch import envelope
from app.services import Services
from rock.actions import SandboxRequest, load

# Header → field of the record; kept with the sandbox and shown by status.
_HEADERS = {
    "X-User-Id": "user_id",
    "X-Experiment-Id": "experiment_id",
    "X-Namespace": "namespace",
    "X-Cluster": "cluster",
}


def start(services: Services, incoming: Incoming) -> str:
    """Start a sandbox and wait until it is alive."""
    return services.lifecycle.start(incoming.data, identity_headers(), incoming.ask)


def start_async(services: Services, incoming: Incoming) -> str:
    """Start a sandbox and answer once it is placed."""
    return services.lifecycle.start(incoming.data, identity_headers(), incoming.ask, at_once=True)


def is_alive(services: Services, incoming: Incoming) -> str:
    """Tell whether a sandbox runs."""
    return envelope(services.lifecycle.is_alive(query_text("sandbox_id"), incoming.ask))


def get_status(services: Services, incoming: Incoming) -> str:
    """Tell all about a sandbox."""
    everything = query_flag("include_all_states")
    return envelope(services.lifecycle.get_status(query_text("sandbox_id"), everything, incoming.ask))


def statistics(services: Services, incoming: Incoming) -> str:
    """Measure a sandbox."""
    wanted = load(SandboxRequest, {"sandbox_id": query_text("sandbox_id")})
    return services.commands.run(Route.STATISTICS, wanted, incoming.ask)


def stop(services: Services, incoming: Incoming) -> str:
    """Stop a sandbox."""
    return services.lifecycle.stop(incoming.data.sandbox_id, incoming.ask)


def identity_headers() -> dict[str, str]:
    """Return who and what the caller says it is, each at most 256 characters."""
    found = {field: request.headers.get(header, "")[:256] for header, field in _HEADERS.items()}
    return {field: value for field, value in found.items() if value}
