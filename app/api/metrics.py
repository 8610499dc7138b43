"""The route for Prometheus, and the counting of requests. Without `metrics.enable` neither is there."""

import json
import re
import time

from flask import Flask, Response, g, request

from app.api.endpoint import Incoming
from app.metrics import CONTENT_TYPE
from app.services import Services
from app.tally import HTTP_REQUESTS, HTTP_SECONDS, Tally
from rock.errors import KINDS, RouteNotFound

# An envelope says so at one of its ends; what a command printed cannot pose as it, since its quotes are escaped.
_SUCCESS = re.compile(rb'"status": ?"Success"')
_NEAR = 40
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"})


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
        # So must a method: whatever it is called, it is passed on to a sandbox.
        method = (request.method if request.method in _METHODS else "other") if request.url_rule else "-"
        tally.count(HTTP_REQUESTS, method, route, outcome(response))
        if "began" in g:
            tally.observe(HTTP_SECONDS, time.monotonic() - g.began, method, route)
        return response

    app.before_request(begin)
    app.after_request(end)


def outcome(response: Response) -> str:
    """Return `ok`, the kind of a failure where the answer tells one, else `http_<status>`."""
    by_status = "ok" if response.status_code < 400 else f"http_{response.status_code}"
    # What streams is a command's output, or a sandbox's own answer, whose texts must not become labels.
    if response.is_streamed or response.mimetype != "application/json":
        return by_status
    data = response.get_data()
    if _SUCCESS.search(data[:_NEAR]) or _SUCCESS.search(data[-_NEAR:]):
        return by_status
    result = json.loads(data).get("result")
    kind = str(result.get("kind")) if isinstance(result, dict) else ""
    return kind if kind in KINDS else by_status
