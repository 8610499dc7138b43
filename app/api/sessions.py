"""Routes about sessions and commands."""

from app.api.endpoint import Incoming
from app.calls import Route
from app.services import Services


def create_session(services: Services, incoming: Incoming) -> str:
    """Open a session."""
    data = incoming.data
    return services.commands.run(Route.CREATE_SESSION, data, incoming.ask, data.startup_timeout)


def run_in_session(services: Services, incoming: Incoming) -> str:
    """Run a command in a session."""
    return services.commands.run(Route.RUN_IN_SESSION, incoming.data, incoming.ask, incoming.data.timeout)


def close_session(services: Services, incoming: Incoming) -> str:
    """Close a session."""
    return services.commands.run(Route.CLOSE_SESSION, incoming.data, incoming.ask)


def execute(services: Services, incoming: Incoming) -> str:
    """Run one process outside of any session."""
    return services.commands.run(Route.EXECUTE, incoming.data, incoming.ask, incoming.data.timeout)
