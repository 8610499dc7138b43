"""Routes about what outlives a sandbox's processes: restart, delete, commit, fork, mounts."""

from app.api.endpoint import Incoming, path_id
from app.dispatch import envelope
from app.services import Services


def restart(services: Services, incoming: Incoming) -> str:
    """Start a stopped sandbox again."""
    return services.afterlife.restart(incoming.data.sandbox_id, incoming.ask)


def restart_named(services: Services, incoming: Incoming) -> str:
    """Start the stopped sandbox that the path names."""
    return services.afterlife.restart(path_id(incoming), incoming.ask)


def delete(services: Services, incoming: Incoming) -> str:
    """Delete a stopped sandbox."""
    return services.afterlife.delete(incoming.data.sandbox_id, incoming.ask)


def mounts(services: Services, incoming: Incoming) -> str:
    """Tell what a sandbox has mounted."""
    return envelope(services.afterlife.mounts(path_id(incoming), incoming.ask))


def commit(services: Services, incoming: Incoming) -> str:
    """Begin to make an image of a sandbox."""
    return services.commits.commit(incoming.data, incoming.ask)


def fork(services: Services, incoming: Incoming) -> str:
    """Make sandboxes with the files of the one that the path names."""
    return services.afterlife.fork(path_id(incoming), incoming.data, incoming.ask)


def commit_status(services: Services, incoming: Incoming) -> str:
    """Tell how a sandbox's last commit stands."""
    return envelope(services.commits.status(path_id(incoming), incoming.ask))
