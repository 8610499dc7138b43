"""Looks after calls that this process waits for: when their node falls silent, they are answered `node_lost`.

One thread per process and one Redis round trip per tick, however many calls wait.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from app.calls import Call
from app.records import Event
from app.starts import fail_start
from app.stores import Stores
from rock.errors import NodeLost, RockError

log = logging.getLogger(__name__)

# Seconds between looks at the heartbeats of the nodes that are waited for.
TICK = 2.0


class Watch:
    """The calls waited for, by node. Its thread starts with the first call and so survives a fork."""

    def __init__(self, stores: Stores, tick: float = TICK) -> None:
        """`tick`: seconds between looks."""
        self._results, self._nodes, self._sandboxes = stores.results, stores.nodes, stores.sandboxes
        self._tick = tick
        self._calls: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    @contextmanager
    def over(self, call: Call, node: str) -> Iterator[None]:
        """Watch a call's node on behalf of its caller while the context lasts.

        Params:
            node: the one that the claim found. Of a start it may be another at each look: it waits for one, or is put back in line.
        """
        entry = ("" if call.is_start else node, call.call_id)
        with self._lock:
            self._calls[entry] = self._calls.get(entry, 0) + 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._calls[entry] -= 1
                if not self._calls[entry]:
                    del self._calls[entry]

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(2)

    def tick(self, now: float) -> list[str]:
        """Answer the watched calls of every node that is silent at `now` (epoch seconds); return their ids."""
        with self._lock:
            entries = list(self._calls)
        if not entries:
            return []
        entries = self._with_nodes(entries)
        beats = self._nodes.heartbeats(sorted({node for node, _ in entries}))
        lost = {node for node, beat in beats.items() if beat < now - self._nodes.lost_after}
        gone = {call_id: node for node, call_id in entries if node in lost}
        for call in self._results.heads(list(gone)):
            if call.is_start and call.node != gone[call.call_id]:
                continue  # put back in line since it was looked at
            error = node_lost(gone[call.call_id])
            if call.is_start:
                # Its room with it: the node may be back before the sweep sees that it was away, and has no such call then.
                fail_start(self._sandboxes, self._results, call, error, now, Event.NODE_LOST)
            else:
                self._results.fail(call.call_id, error, now)
        return list(gone)

    def _with_nodes(self, entries: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the entries with the nodes that starts have now, without those that wait for one."""
        starts = [call_id for node, call_id in entries if not node]
        if not starts:
            return entries
        placed = [(call.node, call.call_id) for call in self._results.heads(starts) if call.node]
        return [entry for entry in entries if entry[0]] + placed

    def _run(self) -> None:
        """Tick until closed."""
        while not self._closed.wait(self._tick):
            try:
                self.tick(self._results.clock())
            except RockError as error:
                # Redis is away: nobody can tell whether nodes live; the next tick looks again.
                log.warning("heartbeats cannot be read: %s", error.message)


def node_lost(node: str) -> NodeLost:
    """Return the error for a call whose node fell silent."""
    return NodeLost(f"node {node} was lost while the call was under way: its heartbeat has stopped", node=node)
