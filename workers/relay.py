"""The streams from this node to its sandboxes' keepers: one thread, one event loop, no state worth keeping.

Every public method may be called from any thread; all else runs in the loop's thread. When a stream breaks, the sandbox is looked at: alive, and a new
stream takes over; dead, and its calls are answered so (workers/link.py).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from app.results import ResultStore
from rock.errors import RockError
from workers.deployments.abstract import AbstractDeployment
from workers.jobs import Job
from workers.link import Link, Mortician, Station, logged, restarted

log = logging.getLogger(__name__)


class Relay:
    """All links of one node."""

    def __init__(
        self,
        deployment: AbstractDeployment,
        results: ResultStore,
        mortician: Mortician,
        output_limit: int,
        threads: int = 8,
    ) -> None:
        """
        Params:
            output_limit: bytes of one stream that an answer may carry.
            threads: engine calls (attach, inspect) at once.
        """
        self.loop = asyncio.new_event_loop()
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="relay-engine")
        self._mortician = mortician
        self._station = Station(deployment, results, mortician, output_limit, self.loop, self.pool, self._forget)
        self._links: dict[str, Link] = {}
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread and the streams; sandboxes and what runs in them go on."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._close)
            self._thread.join(timeout=5)
        self.pool.shutdown(wait=False, cancel_futures=True)

    def submit(self, sandbox_id: str, job: Job, *, ask: bool) -> None:
        """Hand a job to the sandbox's keeper; `ask` when an earlier process may have done so."""
        self.loop.call_soon_threadsafe(lambda: self._link(sandbox_id).submit(job, ask))

    def cancel(self, sandbox_id: str, call_id: str) -> None:
        """End a running call, or withdraw a waiting one; unknown here: nothing happens."""
        self.loop.call_soon_threadsafe(self._cancel, sandbox_id, call_id)

    def open(self, sandbox_id: str, life: str, ready: Callable[[RockError | None], None]) -> None:
        """Open the first stream to a sandbox that has been started, or started again.

        Params:
            life: its start call. A stream of an earlier life, and the calls on it, end.
            ready: called (in a pool thread) with None once its keeper answers, or with the error.
        """
        self.loop.call_soon_threadsafe(self._open, sandbox_id, life, ready)

    def examine(self, sandbox_id: str) -> None:
        """The sandbox may have died: look, and answer its calls if so."""
        self.loop.call_soon_threadsafe(self._examine, sandbox_id)

    def _open(self, sandbox_id: str, life: str, ready: Callable[[RockError | None], None]) -> None:
        old = self._links.get(sandbox_id)
        if old is not None and old.life != life:
            old.end(restarted(sandbox_id))
        self._link(sandbox_id, life).when_ready(ready)

    def _forget(self, link: Link) -> None:
        if self._links.get(link.sandbox_id) is link:
            del self._links[link.sandbox_id]

    def holds(self, sandbox_id: str, call_id: str) -> bool:
        """Return whether that call is in hand; a snapshot, from any thread."""
        link = self._links.get(sandbox_id)
        return link is not None and link.desk.holds(call_id)

    def _examine(self, sandbox_id: str) -> None:
        if link := self._links.get(sandbox_id):
            link.lost("the engine reported its end")
        else:
            self.pool.submit(logged, self._mortician.examine, sandbox_id)

    def _cancel(self, sandbox_id: str, call_id: str) -> None:
        if link := self._links.get(sandbox_id):
            link.cancel(call_id)

    def _link(self, sandbox_id: str, life: str = "") -> Link:
        link = self._links.get(sandbox_id)
        if link is None:
            link = self._links[sandbox_id] = Link(self._station, sandbox_id, life)
        return link

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.set_exception_handler(_log_failure)
        self.loop.run_forever()
        self.loop.close()

    def _close(self) -> None:
        for link in self._links.values():
            link.detach()
        self.loop.stop()


def _log_failure(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    exception = context.get("exception")
    log.error("relay: %s", context.get("message"), exc_info=exception if isinstance(exception, BaseException) else None)
