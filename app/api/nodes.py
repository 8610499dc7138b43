"""Routes about nodes, for those who run the service: with API keys, an admin's is needed."""

from app.api.endpoint import Incoming
from app.dispatch import envelope
from app.records import NodeState
from app.services import Services
from rock.actions import dump


def list_nodes(services: Services, incoming: Incoming) -> str:
    """List all nodes."""
    services.keyring.check_admin(incoming.identity)
    return envelope(dump(services.fleet.list()))


def drain(services: Services, incoming: Incoming) -> str:
    """Give a node nothing new."""
    services.keyring.check_admin(incoming.identity)
    return envelope(dump(services.fleet.admit(incoming.path["node_id"], NodeState.DRAINING)))


def resume(services: Services, incoming: Incoming) -> str:
    """Let a node take new sandboxes again."""
    services.keyring.check_admin(incoming.identity)
    return envelope(dump(services.fleet.admit(incoming.path["node_id"], NodeState.ACTIVE)))
