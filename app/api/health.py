"""Routes for launch scripts, probes and people. They need no key and tell no secret."""

from typing import Any

from flask import Response

from app import plain
from app.api import reply
from app.api.endpoint import Incoming
from app.inbox import Line
from app.openapi import PAGE
from app.services import Services
from rock import __version__
from rock.errors import Unavailable


def root(services: Services, incoming: Incoming) -> Response:
    """Say that the service is here, and how it is; always 200."""
    return plain.answer(_state(services))


def healthz(services: Services, incoming: Incoming) -> Response:
    """As the root, but 503 when Redis does not answer."""
    state = _state(services)
    if state["redis"]:
        return plain.answer(state)
    return reply.failure(Unavailable("the database (Redis) does not answer; try again shortly", **state))


def openapi(services: Services, incoming: Incoming) -> Response:
    """The description of the API."""
    return reply.answer(services.openapi)


def docs(services: Services, incoming: Incoming) -> Response:
    """The description as a page that loads nothing from elsewhere."""
    return Response(PAGE, mimetype="text/html")


def _state(services: Services) -> dict[str, Any]:
    """Return how the service is: version, Redis, this process's subscription to completed calls, nodes, and how they run sandboxes."""
    line = services.results.inbox.line
    state: dict[str, Any] = {"service": "rock", "version": __version__, "subscription": line.value}
    try:
        nodes, now = services.nodes.list(), services.dispatch.clock()
    except Unavailable:
        return {**state, "status": "degraded", "redis": False, "nodes": {"alive": 0, "total": 0}, "runtime": []}
    alive = [node for node in nodes if services.nodes.is_alive(node, now)]
    runtimes = sorted({node.deployment for node in alive if node.deployment})
    # Without it callers wait for answers that nobody announces to them, until it is back.
    status = "no node is alive" if not alive else "degraded" if line is Line.CUT else "ok"
    return {
        **state,
        "status": status,
        "redis": True,
        "nodes": {"alive": len(alive), "total": len(nodes)},
        "runtime": runtimes,
    }
