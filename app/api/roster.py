"""Routes about many sandboxes at once."""

from flask import request

from app.api.endpoint import Incoming, query_whole
from app.dispatch import envelope
from app.records import State
from app.roster import FILTERS, Page
from app.services import Services
from rock.errors import BadRequest

# Rows of a page at most, and by default.
LARGEST_PAGE = 500


def page(services: Services, incoming: Incoming) -> str:
    """List sandboxes, a page at a time."""
    filters = {name: value for name in FILTERS if (value := request.args.get(name))}
    if filters.get("state", State.RUNNING) not in list(State):
        known = ", ".join(state.value for state in State)
        raise BadRequest(f"state: must be one of {known}, is {filters['state'][:40]!r}")
    number, size = query_whole("page", 1, 10**6), query_whole("page_size", LARGEST_PAGE, LARGEST_PAGE)
    return envelope(services.roster.page(Page(number, size, filters), incoming.identity))


def batch(services: Services, incoming: Incoming) -> str:
    """Tell all about several sandboxes."""
    return envelope(services.roster.batch(incoming.data.sandbox_ids, incoming.identity))
