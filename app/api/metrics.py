"""The route for Prometheus, and the counting of requests. Without `metrics.enable` neither is there."""

import json
import re
import time

from flask import Flask, Response, g, request

from app.api.endpoint import Incoming
from app.metrics import CONTENT_TYPE
from app.services import Services
from app.tally import HTTP_REQUESTS, HTTP_SECONDS, Tally
from rock.errors import RouteNotFound

# An envelope says so at one of its ends; what a command printed cannot pose as it, since its quotes are escaped.
_SUCCESS = re.compile(rb'"status": ?"Success"')
_NEAR = 40


def page(services: Services, incoming: Incoming) -> Response:
    """Answer with everything that is measured."""
    if not services.metrics.tally.enabled:
        raise RouteNotFound("metrics are off: set ROCK_MONITOR_ENABLE=1 (metrics.enable) for the API and the nodes")
    services.keyring.check_scraper(request.headers)
    return Response(services.metrics.page(services.dispatch.clock()), content_type=CONTENT_TYPE)


def register(app: Flask, tally: Tally) -> None:
    """Have every request of an application counted and timed, if `tally` counts at all."""
    if not tally.enabled:
        return

    def begin() -> None:
        g.began = time.monotonic()

    def end(response: Response) -> Response:
        # A path that nobody knows is anybody's text: it must not become a label.
        route = request.url_rule.rule if request.url_rule else "unknown"
        method = request.method if request.url_rule else "-"
        tally.count(HTTP_REQUESTS, method, route, outcome(response))
        if "began" in g:
            tally.observe(HTTP_SECONDS, time.monotonic() - g.began, method, route)
        return response

    app.before_request(begin)
    app.after_request(end)


def outcome(response: Response) -> str:
    """Return `ok`, the kind of a failure where the answer tells one, else `http_<status>`."""
    if response.is_streamed:
        return "ok"  # an error would be an envelope
    data = response.get_data()
    if response.status_code < 400 and (
        response.mimetype != "application/json" or _SUCCESS.search(data[:_NEAR]) or _SUCCESS.search(data[-_NEAR:])
    ):
        return "ok"
    answer = json.loads(data) if response.mimetype == "application/json" else {}
    result = answer.get("result")
    kind = result.get("kind") if isinstance(result, dict) else None
    if answer.get("status") == "Failed" and kind:
        return str(kind)
    return "ok" if response.status_code < 400 else f"http_{response.status_code}"
