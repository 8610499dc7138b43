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
