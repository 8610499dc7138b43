"""What one route is, and the way every request goes: identify, parse, call the view, reply."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flask import Blueprint, Flask, Response, request

from app import body
from app.api import reply
from app.auth import Identity
from app.commands import Ask
from app.keys import check_name
from app.services import Services
from rock.errors import BadRequest

log = logging.getLogger(__name__)

PREFIX = "/apis/envs/sandbox/v1"

# Requests that take longer than this many seconds, or fail, are logged even when steps are not (DEBUG).
SLOW = 1.0


@dataclass(frozen=True)
class Incoming:
    """A parsed request, as views see it."""

    # The loaded request class; None for routes without a body.
    data: Any
    ask: Ask
    # Parts of the path (<request_id>).
    path: Mapping[str, str]

    @property
    def identity(self) -> Identity:
        """Who asks."""
        return self.ask.identity


# A view returns an envelope as JSON text, or a whole response.
View = Callable[[Services, Incoming], str | Response]


@dataclass(frozen=True)
class Endpoint:
    """One route of the table in app.api."""

    method: str
    path: str
    request: type | None
    response: type | None
    view: View
    summary: str
    query: tuple[str, ...] = ()
    multipart: bool = False
    prefix: str = PREFIX
    # Needs no API key.
    open: bool = False
    # Answers without an envelope, as app.plain has them.
    plain: bool = False

    def register(self, app: Flask | Blueprint, services: Services) -> None:
        """Add the route to the application."""

        def handle(**path: str) -> Response:
            return self.serve(services, path)

        app.add_url_rule(self.prefix + self.path, f"{self.method} {self.path}", handle, methods=[self.method])

    def serve(self, services: Services, path: Mapping[str, str]) -> Response:
        """Answer one request; errors go to the handlers in app.faults."""
        started = time.monotonic()
        identity = Identity() if self.open else services.keyring.identify(request.headers)
        # The limit is the route's own: a file may be far larger than any JSON.
        request.max_content_length = services.upload_limit if self.multipart else services.json_limit
        data = body.load_form(self.request) if self.multipart else body.load_json(self.request)
        ask = Ask(identity, _request_id(data), _wait(data))
        answer = self.view(services, Incoming(data, ask, path))
        response = answer if isinstance(answer, Response) else reply.answer(answer)
        _log(self, ask, data, path, time.monotonic() - started)
        return response


def _request_id(data: Any) -> str | None:
    """Return the caller's id of this call, from the body or else the header."""
    given = getattr(data, "request_id", None) or request.headers.get("X-Request-Id")
    if given is not None and not (0 < len(given) <= 200 and given.isprintable()):
        raise BadRequest("X-Request-Id: must be 1 to 200 printable characters")
    return given or None


def _wait(data: Any) -> float | None:
    """Return how many seconds the caller waits, from the body; None: until done."""
    wait: float | None = getattr(data, "wait", None)
    return wait


def query_text(name: str) -> str:
    """Return a query parameter that must be there. Raises BadRequest naming it."""
    value = request.args.get(name, "")
    if not value:
        raise BadRequest(f"{name}: is required, as a query parameter")
    return value


def query_whole(name: str, default: int, most: int) -> int:
    """Return a query parameter that is a whole number from 1 to `most`. Raises BadRequest naming it."""
    text = request.args.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise BadRequest(f"{name}: must be a whole number from 1 to {most}, is {text[:40]!r}")
    return int(text)


def path_id(incoming: Incoming) -> str:
    """Return the sandbox id in the path. Raises BadRequest when it cannot be one."""
    return check_name(incoming.path["sandbox_id"], "sandbox_id")


def query_flag(name: str) -> bool:
    """Return a query parameter that is true or false (default). Raises BadRequest naming it."""
    value = request.args.get(name, "false").lower()
    if value not in ("true", "false", "1", "0", ""):
        raise BadRequest(f"{name}: must be true or false, is {value[:40]!r}")
    return value in ("true", "1")


def query_seconds(name: str, default: float, most: float) -> float:
    """Return a query parameter that is a time in seconds, at most `most`. Raises BadRequest naming it."""
    text = request.args.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError as error:
        raise BadRequest(f"{name}: must be a number of seconds, is {text[:40]!r}") from error
    if math.isnan(value) or value < 0:
        raise BadRequest(f"{name}: must be at least 0, is {text[:40]!r}")
    return min(value, most)


def _log(endpoint: Endpoint, ask: Ask, data: Any, path: Mapping[str, str], seconds: float) -> None:
    """Write one line about a request that went well: ids and time, never contents."""
    level = logging.INFO if seconds > SLOW else logging.DEBUG
    if log.isEnabledFor(level):
        about = {
            "request_id": ask.request_id or path.get("request_id"),
            "sandbox_id": getattr(data, "sandbox_id", None) or path.get("sandbox_id") or request.args.get("sandbox_id"),
            "seconds": round(seconds, 4),
        }
        log.log(level, "%s %s", endpoint.method, endpoint.path, extra=about)
