"""Routes of GEM: plain JSON, an error is an HTTP status with a text."""

from flask import Response, request

from app import plain
from app.api import sockets
from app.api.endpoint import Incoming
from app.api.sandboxes import identity_headers
from app.auth import KEY_HEADERS
from app.services import Services

PREFIX = "/apis/v1/envs/gem"


def make(services: Services, incoming: Incoming) -> Response:
    """Start an environment."""
    sent = {name: request.headers.get(name, "") for name in (*KEY_HEADERS, "Authorization")}
    keys = {name: value for name, value in sent.items() if value}
    # Under a request id it may be sent again, and attaches; without one, nobody else will ever hear of the sandbox.
    left = (lambda: False) if incoming.ask.request_id else sockets.caller_left
    made = services.environments.make(incoming.data.env_id, identity_headers(), keys, incoming.ask, left)
    return plain.answer({"sandbox_id": made})


def reset(services: Services, incoming: Incoming) -> Response:
    """Begin an episode."""
    data = incoming.data
    return plain.answer(services.environments.reset(data.sandbox_id, data.seed, incoming.ask))


def step(services: Services, incoming: Incoming) -> Response:
    """Take an action."""
    data = incoming.data
    return plain.answer(services.environments.step(data.sandbox_id, data.action, incoming.ask))


def close(services: Services, incoming: Incoming) -> Response:
    """End an environment."""
    services.environments.close(incoming.data.sandbox_id, incoming.ask)
    return plain.answer({"sandbox_id": incoming.data.sandbox_id})


def list_(services: Services, incoming: Incoming) -> Response:
    """Name the environments that a sandbox could make."""
    return plain.answer({"env_id": services.environments.list(incoming.data.sandbox_id, incoming.ask)})
