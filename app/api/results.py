"""Routes about calls made earlier."""

import json
from collections.abc import Iterator

from flask import Response, request

from app.api.endpoint import Incoming, path_id, query_seconds
from app.broker import NodeTask
from app.calls import call_id
from app.dispatch import envelope
from app.services import Services
from rock.errors import BadRequest, NotFound, RockError

# The longest a poll is held, in seconds: under the idle limits of the proxies that stand between.
LONGEST_POLL = 300.0
# Seconds a cancel waits to see its effect.
CANCEL_WAIT = 3.0


def get_result(services: Services, incoming: Incoming) -> str:
    """Fetch the answer of a call."""
    request_id = incoming.path["request_id"]
    wait = query_seconds("wait", 0.0, LONGEST_POLL)
    return services.dispatch.result(call_id(incoming.identity.owner, request_id), request_id, wait)


def last_command(services: Services, incoming: Incoming) -> str:
    """Name the call of the command that a session ran last, or runs."""
    sandbox_id, session = path_id(incoming), request.args.get("session") or None
    found = services.lifecycle.last_command(sandbox_id, session, incoming.ask)
    calls = [call for call in services.results.heads([found] if found else []) if call.owner == incoming.identity.owner]
    if not calls:
        where = f"session {session[:80]!r}" if session else "a session"
        raise NotFound(f"no command of {where} of sandbox {sandbox_id} is known; its sessions run none, or long ago")
    return services.dispatch.standing(calls[0].call_id, calls[0].request_id)


def cancel(services: Services, incoming: Incoming) -> str:
    """End a call; answers when it has ended, or after a few seconds how it stands."""
    request_id = incoming.path["request_id"]
    call = services.dispatch.find(call_id(incoming.identity.owner, request_id), request_id)
    if call.is_start and not call.done:
        services.lifecycle.cancel_start(call)
    elif not call.done:
        services.dispatch.nudge(NodeTask.CANCEL, call.call_id, call.node)
        services.results.wait(call.call_id, CANCEL_WAIT)
    return services.dispatch.standing(call.call_id, request_id)


def get_output(services: Services, incoming: Incoming) -> str | Response:
    """Answer what a command has printed from `offset` on; with `Accept: text/event-stream` go on until it is done."""
    request_id, stream = incoming.path["request_id"], request.args.get("stream", "stdout")
    if stream not in ("stdout", "stderr"):
        raise BadRequest(f"stream: must be stdout or stderr, is {stream[:40]!r}")
    where = call_id(incoming.identity.owner, request_id), request_id, _offset(), stream, incoming.ask
    if "text/event-stream" not in request.headers.get("Accept", ""):
        return envelope(services.output.read(*where).to_result())
    parts = services.output.follow(*where)
    first = next(parts)  # an error before the first byte is an ordinary answer
    events = _events(services, where[0], request_id, first, parts)
    return Response(events, mimetype="text/event-stream", headers={"Cache-Control": "no-cache"})


def _events(
    services: Services, id_: str, request_id: str, first: dict[str, object], parts: Iterator[dict[str, object]]
) -> Iterator[str]:
    """Yield the events of a stream: `output` for each part, then `done` with the answer, or with the error that ended it."""
    try:
        part: dict[str, object] | None = first
        while part is not None:
            if part["output"]:
                yield _event("output", json.dumps({"offset": part["offset"], "text": part["output"]}))
            part = next(parts, None)
        yield _event("done", services.dispatch.result(id_, request_id, LONGEST_POLL))
    except RockError as error:
        yield _event("done", json.dumps(error.to_envelope()))


def _event(name: str, data: str) -> str:
    """Return one server-sent event; JSON holds no line break."""
    return f"event: {name}\ndata: {data}\n\n"


def _offset() -> int:
    """Return the query's `offset`, in bytes. Raises BadRequest naming it."""
    text = request.args.get("offset", "0")
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise BadRequest(f"offset: must be a whole number of bytes, is {text[:40]!r}")
    return int(text)
