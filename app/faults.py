"""Errors over HTTP, for every application: a fault of a request becomes one of our errors, is noted, and is answered in the shape of its routes."""

import logging
from collections.abc import Callable

from flask import Blueprint, Flask, Response, request
from werkzeug import exceptions

from rock import errors

log = logging.getLogger(__name__)

Shape = Callable[[errors.RockError], Response]
"""How some routes answer an error."""

RETRY_AFTER = "2"
"""Seconds after which a caller should come back when the service is away."""

DRAIN_LIMIT = 256 * 1024 * 1024
"""A refused body up to this size is read to its end, so that the sender gets to see the refusal."""


def json_response(text: str, status: int) -> Response:
    """Return a JSON text as a response, with the headers that its status asks for."""
    response = Response(text, status, mimetype="application/json")
    if status == 503:
        response.headers["Retry-After"] = RETRY_AFTER
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def register(routes: Flask | Blueprint, shape: Shape) -> None:
    """Have every error of an application, or of a blueprint's views, answered by `shape`."""

    def ours(error: errors.RockError) -> Response:
        level = logging.WARNING if isinstance(error, errors.ServiceFault) else logging.INFO
        about = {
            "request_id": error.details.get("request_id") or request.headers.get("X-Request-Id"),
            "sandbox_id": error.details.get("sandbox_id"),
        }
        # Not the message: it may quote what was sent.
        log.log(level, "%s %s: %s (%d)", request.method, request.path, error.kind, error.code, extra=about)
        return shape(error)

    def unknown(error: Exception) -> Response:
        # Its trace goes to the log, never to the caller.
        log.exception("%s %s failed", request.method, request.path, exc_info=error)
        return shape(errors.Internal("internal error; the service's log has the details"))

    def http(error: exceptions.HTTPException) -> Response:
        if (error.code or 500) >= 500:
            return unknown(error)
        response = ours(_translated(error))
        if isinstance(error, exceptions.MethodNotAllowed):
            response.headers["Allow"] = ", ".join(error.valid_methods or ())
        return response

    routes.register_error_handler(errors.RockError, ours)
    routes.register_error_handler(exceptions.HTTPException, http)
    routes.register_error_handler(Exception, unknown)


def _translated(error: exceptions.HTTPException) -> errors.RockError:
    """Return our error for one of the HTTP layer that the caller is to blame for."""
    if error.code == 404:
        return errors.RouteNotFound(f"no such route: {request.path[:200]}")
    if error.code == 405:
        return errors.MethodNotAllowed(f"{request.path[:200]} does not take {request.method}")
    if error.code == 413:
        _drain()
        return errors.TooLarge(
            f"the request's body is larger than {request.max_content_length} bytes, the limit of this route"
        )
    return errors.BadRequest(f"the request cannot be read: {error.description or error.name}")


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
