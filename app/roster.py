"""Many sandboxes at once: lists and batches. They read only: no lease is renewed, and no node is asked."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any

from app import status
from app.auth import Identity
from app.clock import Clock
from app.records import SandboxRecord, State
from app.stores import Stores

# What a list may be narrowed to, and where a record has it.
FILTERS = ("user_id", "experiment_id", "namespace", "image", "state")


@dataclass(frozen=True)
class Page:
    """Which part of a list: the first page is 1."""

    number: int = 1
    size: int = 500
    # Name of FILTERS → the value it must have.
    filters: Mapping[str, str] = field(default_factory=dict)


class Roster:
    """Shows callers their sandboxes."""

    def __init__(self, stores: Stores, clock: Clock, zone: tzinfo) -> None:
        self._sandboxes, self._nodes, self._clock, self._zone = stores.sandboxes, stores.nodes, clock, zone

    def page(self, page: Page, identity: Identity) -> dict[str, Any]:
        """Return `{items, total, has_more}`: the caller's sandboxes, newest first. Raises Unavailable.

        Ended ones are among them for as long as they can be asked for; deleted ones only when `state` names them.
        """
        found = [record for record in self._sandboxes.list() if identity.sees(record.owner) and _fits(record, page)]
        end = page.number * page.size
        shown = found[end - page.size : end]
        return {"items": self._show(shown), "total": len(found), "has_more": end < len(found)}

    def batch(self, sandbox_ids: Iterable[str], identity: Identity) -> dict[str, Any]:
        """Return `{statuses}` of those of the sandboxes that the caller may see, each once, in the order asked for."""
        records = self._sandboxes.many(dict.fromkeys(sandbox_ids))
        return {"statuses": self._show([record for record in records if identity.sees(record.owner)])}

    def _show(self, records: list[SandboxRecord]) -> list[dict[str, Any]]:
        """Return the statuses of records; a node that is down costs nothing, its rows say so."""
        beats = self._nodes.heartbeats(sorted({record.node for record in records}))
        oldest = self._clock() - self._nodes.lost_after
        return [status.to_status(record, beats[record.node] >= oldest, self._zone) for record in records]


def _fits(record: SandboxRecord, page: Page) -> bool:
    """Return whether a record is among those that a list is narrowed to."""
    wanted = page.filters
    if record.state is State.DELETED and wanted.get("state") != State.DELETED.value:
        return False
    has = {**record.identity, "state": record.state.value, "image": str(record.spec.get("image", ""))}
    return all(has.get(name, "") == value for name, value in wanted.items())
