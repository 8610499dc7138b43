"""Routes about images on the nodes."""

from app.api.endpoint import Incoming
from app.dispatch import envelope
from app.services import Services


def remove(services: Services, incoming: Incoming) -> str:
    """Remove an image."""
    return envelope(services.images.remove(incoming.data, incoming.ask))


def warm(services: Services, incoming: Incoming) -> str:
    """Begin to fetch images."""
    return envelope(services.images.warm(incoming.data, incoming.ask))


def progress(services: Services, incoming: Incoming) -> str:
    """Tell how far a warmup is."""
    return envelope(services.images.progress(incoming.path["task_id"], incoming.ask))
