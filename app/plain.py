"""Answers without an envelope, for GEM, EnvHub and health: a JSON value, or an HTTP status with `{"error", "kind", …, "info"}`."""

import json
from typing import Any

from flask import Response

from app.faults import json_response
from rock import errors

_STATUS = {errors.NotFound.kind: 404, errors.NotRunning.kind: 404, errors.Forbidden.kind: 403}


def answer(value: Any) -> Response:
    """Return a JSON value as a response."""
    return json_response(json.dumps(value), 200)


def failure(error: errors.RockError) -> Response:
    """Return an error: 404 for what is not there, 400 for the caller's other faults, 500 or 503 for ours."""
    status = error.http_status
    if status == 200:
        status = _STATUS.get(error.kind, 400 if isinstance(error, errors.CallerFault) else 500)
    # Once more as `info`: a loop that keeps the info of each step keeps there what ended it.
    fault = error.to_result()
    return json_response(json.dumps({**fault, "error": error.message, "info": fault}), status)
