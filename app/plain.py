"""Answers without an envelope, for GEM and EnvHub: a JSON value, or an HTTP status with `{"error", "kind", …}`."""

import json
import logging
from typing import Any

from flask import Blueprint, Flask, Response, request
from werkzeug import exceptions

from rock import errors

log = logging.getLogger(__name__)

RETRY_AFTER = "2"
"""Seconds after which a caller should come back when the service is away."""

_STATUS = {errors.NotFound.kind: 404, errors.NotRunning.kind: 404, errors.Forbidden.kind: 403}


def answer(value: Any, status: int = 200) -> Response:
    """Return a JSON value as a response."""
    return Response(json.dumps(value), status, mimetype="application/json")


def failure(error: errors.RockError) -> Response:
    """Return an error: 404 for what is not there, 400 for the caller's other faults, 500 or 503 for ours."""
    status = error.http_status
    if status == 200:
        status = _STATUS.get(error.kind, 400 if isinstance(error, errors.CallerFault) else 500)
    response = answer({**error.to_result(), "error": error.message}, status)
    if status == 503:
        response.headers["Retry-After"] = RETRY_AFTER
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def register(routes: Flask | Blueprint) -> None:
    """Make every error of an application, or of a blueprint's views, such an answer."""
    routes.register_error_handler(errors.RockError, _ours)
    routes.register_error_handler(exceptions.HTTPException, _http)
    routes.register_error_handler(Exception, _unknown)


def _ours(error: errors.RockError) -> Response:
    """Answer one of our errors, and note it; not its message, which may quote what was sent."""
    level = logging.WARNING if isinstance(error, errors.ServiceFault) else logging.INFO
    about = error.details.get("sandbox_id", "-"), request.headers.get("X-Request-Id", "-")
    log.log(level, "%s %s: %s (%d) sandbox=%s request=%s", request.method, request.path, error.kind, error.code, *about)
    return failure(error)


def _http(error: exceptions.HTTPException) -> Response:
    """Answer an error of the HTTP layer."""
    status = error.code or 500
    if status == 404:
        return _ours(errors.RouteNotFound(f"no such route: {request.path[:200]}"))
    if status == 405:
        return _ours(errors.MethodNotAllowed(f"{request.path[:200]} does not take {request.method}"))
    if status == 413:
        return _ours(errors.TooLarge(f"the request's body is larger than {request.max_content_length} bytes"))
    if status < 500:
        return _ours(errors.BadRequest(f"the request cannot be read: {error.description or error.name}"))
    return _unknown(error)


def _unknown(error: Exception) -> Response:
    """Answer a fault nobody foresaw: its trace goes to the log, never to the caller."""
    log.exception("%s %s failed", request.method, request.path, exc_info=error)
    return failure(errors.Internal("internal error; the service's log has the details"))
