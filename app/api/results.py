"""Routes about calls made earlier."""

from app.api.endpoint import Incoming, query_seconds
from app.broker import NodeTask
from app.calls import Route, call_id
from app.dispatch import unfinished
from app.services import Services

# The longest a poll is held, in seconds: under the idle limits of the proxies that stand between.
LONGEST_POLL = 300.0
# Seconds a cancel waits to see its effect.
CANCEL_WAIT = 3.0


def get_result(services: Services, incoming: Incoming) -> str:
    """Fetch the answer of a call."""
    request_id = incoming.path["request_id"]
    wait = query_seconds("wait", 0.0, LONGEST_POLL)
    return services.dispatch.result(call_id(incoming.identity.owner, request_id), request_id, wait)


def cancel(services: Services, incoming: Incoming) -> str:
    """End a call; answers when it has ended, or after a few seconds how it stands."""
    request_id = incoming.path["request_id"]
    call = services.dispatch.find(call_id(incoming.identity.owner, request_id), request_id)
    if call.route == Route.START and not call.done:
        services.lifecycle.cancel_start(call)
    elif not call.done:
        services.dispatch.nudge(NodeTask.CANCEL, call.call_id, call.node)
        services.results.wait(call.call_id, CANCEL_WAIT)
    return unfinished(request_id, services.dispatch.find(call.call_id, request_id).state)
