"""Envelopes over HTTP."""

import json

from flask import Response

from app.faults import json_response
from rock import errors


def answer(text: str) -> Response:
    """Return an envelope, given as JSON text, as a response."""
    return json_response(text, 200)


def failure(error: errors.RockError) -> Response:
    """Return an error's envelope; HTTP 200 but for the few that the contract names."""
    return json_response(json.dumps(error.to_envelope()), error.http_status)


# Where a program's own answers have every status, a fault on the way to it must be one to any client.
_ON_THE_WAY = {
    errors.NotFound.kind: 404,
    errors.Forbidden.kind: 403,
    errors.NotRunning.kind: 409,
    errors.SandboxGone.kind: 410,
    errors.NodeLost.kind: 503,
    errors.PortClosed.kind: 502,
    errors.ProgramFault.kind: 502,
    errors.CommandTimeout.kind: 504,
}


def on_the_way(error: errors.RockError) -> Response:
    """Return the envelope of an error on the way into a sandbox, with an HTTP status and its kind in a header."""
    status = error.http_status
    if status == 200:
        status = _ON_THE_WAY.get(error.kind, 400 if isinstance(error, errors.CallerFault) else 500)
    response = json_response(json.dumps(error.to_envelope()), status)
    response.headers["X-ROCK-Error"] = error.kind
    return response
