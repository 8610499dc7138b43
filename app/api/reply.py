"""Envelopes over HTTP, and the only place that turns an error into one."""

import json
import logging
from typing import Any

from flask import Flask, Response, request
from werkzeug import exceptions

from rock import errors

log = logging.getLogger(__name__)

# Seconds after which a caller should come back when the service is away.
RETRY_AFTER = "2"

# A refused body up to this size is read to its end, so that the sender gets to see the refusal.
DRAIN_LIMIT = 256 * 1024 * 1024


def answer(text: str, status: int = 200) -> Response:
    """Return an envelope, given as JSON text, as a response."""
    return Response(text, status, mimetype="application/json")


def plain(value: Any, status: int = 200) -> Response:
    """Return a JSON value that is no envelope (health)."""
    return answer(json.dumps(value), status)


def failure(error: errors.RockError) -> Response:
    """Return an error's envelope; HTTP 200 but for the few that the contract names."""
    response = answer(json.dumps(error.to_envelope()), error.http_status)
    if error.http_status == 503:
        response.headers["Retry-After"] = RETRY_AFTER
    if error.http_status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def register(app: Flask) -> None:
    """Make every error of the application an envelope."""
    app.register_error_handler(errors.RockError, _ours)
    app.register_error_handler(exceptions.HTTPException, _http)
    app.register_error_handler(Exception, _unknown)


def _ours(error: errors.RockError) -> Response:
    """Answer one of our errors, and note it."""
    level = logging.WARNING if isinstance(error, errors.ServiceFault) else logging.INFO
    about = error.details.get("sandbox_id", "-"), request.headers.get("X-Request-Id", "-")
    # Not the message: it may quote what was sent.
    log.log(level, "%s %s: %s (%d) sandbox=%s request=%s", request.method, request.path, error.kind, error.code, *about)
    return failure(error)


def _http(error: exceptions.HTTPException) -> Response:
    """Answer an error of the HTTP layer."""
    status = error.code or 500
    if status == 404:
        return _ours(errors.RouteNotFound(f"no such route: {request.path[:200]}"))
    if status == 405:
        response = _ours(errors.MethodNotAllowed(f"{request.path[:200]} does not take {request.method}"))
        response.headers["Allow"] = ", ".join(getattr(error, "valid_methods", None) or ())
        return response
    if status == 413:
        _drain()
        limit = request.max_content_length
        return _ours(errors.TooLarge(f"the request's body is larger than {limit} bytes, the limit of this route"))
    if status < 500:
        return _ours(errors.BadRequest(f"the request cannot be read: {error.description or error.name}"))
    return _unknown(error)


def _unknown(error: Exception) -> Response:
    """Answer a fault nobody foresaw: its trace goes to the log, never to the caller."""
    log.exception("%s %s failed", request.method, request.path, exc_info=error)
    return failure(errors.Internal("internal error; the service's log has the details"))


def _drain() -> None:
    """Read the rest of a refused body, within reason: a sender who is cut off sees a broken connection, not the reason."""
    stream, left = request.environ["wsgi.input"], min(request.content_length or 0, DRAIN_LIMIT)
    try:
        while left > 0:
            chunk = stream.read(min(left, 1024 * 1024))
            if not chunk:
                return
            left -= len(chunk)
    except OSError as error:
        log.info("the sender of a refused body went away: %s", error)
