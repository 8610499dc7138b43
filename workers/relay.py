"""The streams from this node to its sandboxes' keepers: one thread, one event loop, no state worth keeping.

Every public method may be called from any thread; all else runs in the loop's thread. When a stream breaks, the sandbox is looked at: alive, and a new
stream takes over; dead, and its calls are answered so.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from app.results import ResultStore
from rock.errors import Internal, RockError, SandboxGone, Unavailable
from workers import keeper, protocol
from workers.deployments.abstract import AbstractDeployment, Stream
from workers.desk import Desk, Surroundings
from workers.jobs import Job

log = logging.getLogger(__name__)

SYNC_TIMEOUT = 10.0
"""Seconds that a keeper has to answer a new stream."""
STORE_AGAIN = 0.5
"""Seconds between attempts to store an answer while Redis is away."""
REATTACH_DELAYS = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
"""Seconds before each attempt to reach a living sandbox again."""


class Mortician(Protocol):
    """Decides what a broken stream means."""

    def examine(self, sandbox_id: str) -> RockError | None:
        """Return None if the sandbox runs, else the error that its callers get (the record is updated). May block."""


class Relay:
    """All links of one node."""

    def __init__(
        self, deployment: AbstractDeployment, results: ResultStore, mortician: Mortician, output_limit: int, threads: int = 8
    ) -> None:
        """
        Params:
            output_limit: bytes of one stream that an answer may carry.
            threads: engine calls (attach, inspect) at once.
        """
        self.deployment, self.results, self.mortician, self.output_limit = deployment, results, mortician, output_limit
        self.loop = asyncio.new_event_loop()
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="relay-engine")
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

    def open(self, sandbox_id: str, ready: Callable[[RockError | None], None]) -> None:
        """Open the first stream to a new sandbox; `ready` is called (in a pool thread) with None once its keeper answers, or with the error."""
        self.loop.call_soon_threadsafe(lambda: self._link(sandbox_id, fresh=True).when_ready(ready))

    def examine(self, sandbox_id: str) -> None:
        """The sandbox may have died: look, and answer its calls if so."""
        self.loop.call_soon_threadsafe(self._examine, sandbox_id)

    def forget(self, link: Link) -> None:
        """Drop a link whose sandbox is gone (loop thread)."""
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
            self.pool.submit(_logged, self.mortician.examine, sandbox_id)

    def _cancel(self, sandbox_id: str, call_id: str) -> None:
        if link := self._links.get(sandbox_id):
            link.cancel(call_id)

    def _link(self, sandbox_id: str, fresh: bool = False) -> Link:
        link = self._links.get(sandbox_id)
        if link is None:
            link = self._links[sandbox_id] = Link(self, sandbox_id, fresh)
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


class Link:
    """The stream to one sandbox, and the calls in its keeper's hands. Loop thread only."""

    def __init__(self, relay: Relay, sandbox_id: str, fresh: bool) -> None:
        """`fresh`: nobody has written to this keeper yet. Begins to attach."""
        self.relay, self.sandbox_id, self._fresh = relay, sandbox_id, fresh
        around = Surroundings(self._send, self._finish, relay.loop.call_later, self._note_running)
        self.desk = Desk(around, relay.output_limit)
        self._stream: Stream | None = None
        self._ready = False
        self._out: deque[memoryview] = deque()
        self._waiting: list[Callable[[RockError | None], None]] = []
        self._pending: list[tuple[Job, bool]] = []
        self._attempt = 0
        self._watchdog: asyncio.TimerHandle | None = None
        self._attach()

    def submit(self, job: Job, ask: bool) -> None:
        """Submit now, or as soon as the keeper answers."""
        if self._ready:
            self.desk.submit(job, ask=ask)
        else:
            self._pending.append((job, ask))

    def cancel(self, call_id: str) -> None:
        """End a running call, or withdraw one that waits with the keeper or for the stream."""
        for job, _ in [pair for pair in self._pending if pair[0].call.call_id == call_id]:
            self._pending = [pair for pair in self._pending if pair[0] is not job]
            self._finish(job, job.refused("withdrawn").to_envelope())
        self.desk.cancel(call_id)

    def when_ready(self, callback: Callable[[RockError | None], None]) -> None:
        """Call back in a pool thread once the keeper answers or the sandbox is known to be gone."""
        if self._ready:
            self.relay.pool.submit(_logged, callback, None)
        else:
            self._waiting.append(callback)

    def detach(self) -> None:
        """Close the stream and stop listening."""
        if self._watchdog:
            self._watchdog.cancel()
        if self._stream is not None:
            self.relay.loop.remove_reader(self._stream.fileno())
            self.relay.loop.remove_writer(self._stream.writable_fileno())
            self._stream.close()
        self._stream, self._ready = None, False
        self._out.clear()

    def lost(self, why: str) -> None:
        """The stream broke: find out what became of the sandbox."""
        log.info("relay lost sandbox_id=%s reason=%s", self.sandbox_id, why)
        self.detach()
        self._engine(self.relay.mortician.examine, self._examined)

    def _examined(self, error: RockError | None) -> None:
        if error is not None:
            self._end(error)
            return
        delay = REATTACH_DELAYS[min(self._attempt, len(REATTACH_DELAYS) - 1)]
        self._attempt += 1
        self.relay.loop.call_later(delay, self._attach)

    def _attach(self) -> None:
        self._engine(self.relay.deployment.attach, self._attached)

    def _attached(self, stream: Stream) -> None:
        if self._stream is not None:
            stream.close()
            return
        self._stream = stream
        token = secrets.token_hex(8)
        self._parser = protocol.Parser(token)
        self.relay.loop.add_reader(stream.fileno(), self._readable)
        self._watchdog = self.relay.loop.call_later(SYNC_TIMEOUT, lambda: self.lost("its keeper does not answer"))
        self._send([protocol.boot(keeper.script(), token, fresh=self._fresh)])
        self._fresh = False

    def _engine(self, function: Callable[[str], object], then: Callable[..., None]) -> None:
        """Run an engine call on this sandbox in the pool, then go on in the loop."""

        def work() -> None:
            try:
                result = function(self.sandbox_id)
            except RockError as error:
                log.warning("relay engine call failed sandbox_id=%s error=%s", self.sandbox_id, error)
                self.relay.loop.call_soon_threadsafe(self._failed, error)
            else:
                self.relay.loop.call_soon_threadsafe(then, result)

        self.relay.pool.submit(_logged, work)

    def _failed(self, error: RockError) -> None:
        if isinstance(error, Unavailable):
            self._examined(None)
        else:
            self._engine(self.relay.mortician.examine, lambda found: self._end(found or error))

    def _end(self, error: RockError) -> None:
        self.detach()
        self.relay.forget(self)
        for callback in self._waiting:
            self.relay.pool.submit(_logged, callback, error)
        for job, ask in self._pending:
            self.desk.submit(job, ask=ask)
        self._pending, self._waiting = [], []
        self.desk.fail_all(lambda job: error)

    def _readable(self) -> None:
        if self._stream is None:
            return
        data = self._stream.receive()
        if data is None:
            self.lost("the stream ended")
            return
        try:
            events = self._parser.feed(data) if data else []
        except ValueError:
            self.lost("the keeper's stream made no sense")
            return
        for event in events:
            if event.kind == "sync" and not event.id:
                self._synced()
            else:
                self.desk.handle(event)

    def _synced(self) -> None:
        if self._watchdog:
            self._watchdog.cancel()
        self._ready, self._attempt = True, 0
        self.desk.resubmit()
        for job, ask in self._pending:
            self.desk.submit(job, ask=ask)
        for callback in self._waiting:
            self.relay.pool.submit(_logged, callback, None)
        self._pending, self._waiting = [], []

    def _send(self, frames: Iterable[bytes]) -> None:
        if self._stream is None:
            return  # what is in hand is asked for again when a stream is back
        idle = not self._out
        self._out.extend(memoryview(frame) for frame in frames)
        if idle:
            self._writable()

    def _writable(self) -> None:
        if self._stream is None:
            return
        try:
            while self._out:
                sent = self._stream.send(self._out[0])
                if sent < len(self._out[0]):
                    self._out[0] = self._out[0][sent:]
                    self.relay.loop.add_writer(self._stream.writable_fileno(), self._writable)
                    return
                self._out.popleft()
        except SandboxGone:
            self.lost("the stream does not take data")
            return
        self.relay.loop.remove_writer(self._stream.writable_fileno())

    def _finish(self, job: Job, envelope: dict[str, object]) -> None:
        try:
            self.relay.results.complete(job.call.call_id, envelope, time.time())
        except Unavailable:
            self.relay.loop.call_later(STORE_AGAIN, self._finish, job, envelope)
            return
        log.info("%s done request_id=%s sandbox_id=%s status=%s", job.call.route, job.call.request_id, self.sandbox_id, envelope["status"])
        self.desk.stored(job)

    def _note_running(self, job: Job) -> None:
        try:
            self.relay.results.mark_running(job.call.call_id, time.time())
        except Unavailable as error:
            log.warning("call not noted as running request_id=%s error=%s", job.call.request_id, error)


def _logged(function: Callable[..., object], *args: object) -> None:
    """Run `function`; a fault that nobody waits for must at least be seen."""
    try:
        function(*args)
    except Exception:
        log.exception("%s failed", getattr(function, "__qualname__", function))


def _log_failure(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    exception = context.get("exception")
    log.error("relay: %s", context.get("message"), exc_info=exception if isinstance(exception, BaseException) else None)


def unexpected(error: Exception) -> RockError:
    """Return what a caller is told of a fault of ours; its text is for the log only."""
    return Internal(f"the node failed to handle the call ({type(error).__name__}); see its log")
