"""One sandbox's stream and the calls in its keeper's hands. Runs in the relay's thread only.

When the stream breaks, the sandbox is looked at: alive, and a new stream takes over; dead, and its calls are answered so.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from app.database import DatabaseAway
from app.results import ResultStore
from rock.errors import Internal, RockError, SandboxGone, Unavailable
from workers import keeper, protocol
from workers.deployments.abstract import AbstractDeployment, Stream
from workers.desk import Desk
from workers.jobs import Job
from workers.surroundings import Surroundings

log = logging.getLogger(__name__)

SYNC_TIMEOUT = 10.0
"""Seconds that a keeper has to answer a new stream."""
PATIENCE = 1.0
"""Seconds before a keeper that does not answer is sent what would complete a long frame."""
STORE_AGAIN = 0.5
"""Seconds between attempts to store an answer while Redis is away."""
REATTACH_DELAYS = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
"""Seconds before each attempt to reach a living sandbox again."""
SOUND_AFTER = 10.0
"""Seconds for which a stream must have stood for its successor to be tried at once: some sandbox may go on writing nonsense into each."""


class Mortician(Protocol):
    """Decides what a broken stream means."""

    def life(self, sandbox_id: str) -> str:
        """Return the start call of the sandbox's present life, "" when it is unknown. May block."""

    def examine(self, sandbox_id: str) -> RockError | None:
        """Return None if the sandbox runs, else the error that its callers get (the record is updated). May block."""


@dataclass(frozen=True)
class Station:
    """What all links of a node share."""

    deployment: AbstractDeployment
    results: ResultStore
    mortician: Mortician
    output_limit: int
    """Bytes of one stream that an answer may carry."""
    loop: asyncio.AbstractEventLoop
    pool: Executor
    """Runs engine calls, which block."""
    forget: Callable[[Link], None]
    """Called when the sandbox of a link is gone."""


class Link:
    """The stream to one sandbox, and the calls in its keeper's hands. Loop thread only."""

    def __init__(self, station: Station, sandbox_id: str, life: str) -> None:
        """Begins to attach. `life`: start call of a life whose keeper nobody has written to yet; "": that which is on."""
        self._station, self.sandbox_id, self.life, self._fresh = station, sandbox_id, life, bool(life)
        around = Surroundings(self._send, self._finish, station.loop.call_later)
        self.desk = Desk(around, station.output_limit)
        self._stream: Stream | None = None
        self._ready = self._over = False
        self._out: deque[memoryview] = deque()
        self._waiting: list[Callable[[RockError | None], None]] = []
        self._pending: list[tuple[Job, bool]] = []
        self._attempt = 0
        self._since = 0.0
        """When the stream answered, by the loop's clock; 0: never."""
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
            self._finish(job, job.refused("withdrawn").to_envelope(), None)
        self.desk.cancel(call_id)

    def when_ready(self, callback: Callable[[RockError | None], None]) -> None:
        """Call back in a pool thread once the keeper answers or the sandbox is known to be gone."""
        if self._ready:
            self._station.pool.submit(logged, callback, None)
        else:
            self._waiting.append(callback)

    def detach(self) -> None:
        """Close the stream and stop listening."""
        if self._watchdog:
            self._watchdog.cancel()
        if self._stream is not None:
            self._station.loop.remove_reader(self._stream.fileno())
            self._station.loop.remove_writer(self._stream.writable_fileno())
            self._stream.close()
        self._stream, self._ready = None, False
        self._out.clear()

    def lost(self, why: str) -> None:
        """The stream broke: find out what became of the sandbox."""
        if self._over:
            return
        log.info("relay lost: %s", why, extra={"sandbox_id": self.sandbox_id})
        if self._since and self._station.loop.time() - self._since > SOUND_AFTER:
            self._attempt = 0
        self.detach()
        self._engine(self._station.mortician.examine, self._examined)

    def _examined(self, error: RockError | None) -> None:
        if error is not None:
            self.end(error)
            return
        delay = REATTACH_DELAYS[min(self._attempt, len(REATTACH_DELAYS) - 1)]
        self._attempt += 1
        self._station.loop.call_later(delay, self._attach)

    def _attach(self) -> None:
        if self._over:
            return
        self._engine(self._reach, self._attached)

    def _reach(self, sandbox_id: str) -> Stream:
        """Attach to this life of the sandbox, and to no later one: its calls must not run there. In a pool thread."""
        stream = self._station.deployment.attach(sandbox_id)
        if self._fresh:
            return stream  # it has just been started, for this life
        try:
            life = self._station.mortician.life(sandbox_id)
        except BaseException:
            stream.close()
            raise
        if self.life not in ("", life):
            stream.close()
            raise restarted(sandbox_id)
        self.life = life
        return stream

    def _attached(self, stream: Stream) -> None:
        if self._stream is not None or self._over:
            stream.close()
            return
        self._stream = stream
        token = secrets.token_hex(8)
        self._parser = protocol.Parser(token)
        self._station.loop.add_reader(stream.fileno(), self._readable)
        self._token = token
        self._watchdog = self._station.loop.call_later(PATIENCE, self._insist)
        self._send([protocol.boot(keeper.script(), token, fresh=self._fresh)])
        self._fresh = False

    def _insist(self) -> None:
        """No answer yet: an earlier process may have died in the middle of a long frame, so complete that, and wait once more."""
        self._watchdog = self._station.loop.call_later(SYNC_TIMEOUT, lambda: self.lost("its keeper does not answer"))
        long = protocol.boot(keeper.script(), self._token, fresh=False, padding=protocol.LONG_PADDING)
        self._send([long])

    def _engine(self, function: Callable[[str], object], then: Callable[..., None]) -> None:
        """Run an engine call on this sandbox in the pool, then go on in the loop."""

        def work() -> None:
            try:
                result = function(self.sandbox_id)
            except RockError as error:
                log.warning("relay: engine call failed: %s", error, extra={"sandbox_id": self.sandbox_id})
                self._station.loop.call_soon_threadsafe(self._failed, error)
            except Exception as error:
                log.exception("relay: engine call failed", extra={"sandbox_id": self.sandbox_id})
                text = f"the node failed to reach the sandbox ({type(error).__name__}); see its log"
                self._station.loop.call_soon_threadsafe(self._failed, Internal(text, sandbox_id=self.sandbox_id))
            else:
                self._station.loop.call_soon_threadsafe(then, result)

        self._station.pool.submit(logged, work)

    def _failed(self, error: RockError) -> None:
        if isinstance(error, Unavailable):
            self._examined(None)
        else:
            self._engine(self._station.mortician.examine, lambda found: self.end(found or error))

    def end(self, error: RockError) -> None:
        """The sandbox, or this life of it, is over: answer all that is in hand with `error`, once."""
        if self._over:
            return
        self._over = True
        self.detach()
        self._station.forget(self)
        for callback in self._waiting:
            self._station.pool.submit(logged, callback, error)
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
            for event in self._parser.feed(data) if data else ():
                if event.kind == "sync" and not event.id:
                    self._synced()
                else:
                    self.desk.handle(event)
        except (ValueError, IndexError):
            # Written by somebody else in the sandbox. A new stream asks again for all that is in hand.
            self.lost("the keeper's stream made no sense")

    def _synced(self) -> None:
        if self._watchdog:
            self._watchdog.cancel()
        self._ready, self._since = True, self._station.loop.time()
        self.desk.resubmit()
        for job, ask in self._pending:
            self.desk.submit(job, ask=ask)
        for callback in self._waiting:
            self._station.pool.submit(logged, callback, None)
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
                    self._station.loop.add_writer(self._stream.writable_fileno(), self._writable)
                    return
                self._out.popleft()
        except SandboxGone:
            self.lost("the stream does not take data")
            return
        self._station.loop.remove_writer(self._stream.writable_fileno())

    def _finish(self, job: Job, envelope: dict[str, object], output: bytes | None) -> None:
        try:
            self._station.results.complete(job.call.call_id, envelope, self._station.results.clock(), output=output)
        except Unavailable:
            self._station.loop.call_later(STORE_AGAIN, self._finish, job, envelope, output)
            return
        level = logging.DEBUG if envelope["status"] == "Success" else logging.INFO
        if log.isEnabledFor(level):
            log.log(level, "%s done", job.call.route, extra={**job.call.about, "status": envelope["status"]})
        self.desk.stored(job)


def restarted(sandbox_id: str) -> SandboxGone:
    """Return the error for calls of a life that is over, whose sandbox was started again meanwhile."""
    text = f"Sandbox {sandbox_id} was stopped, and started again since: what ran in it is gone"
    return SandboxGone(text, sandbox_id=sandbox_id)


def logged(function: Callable[..., object], *args: object) -> None:
    """Run `function`; a fault that nobody waits for must at least be seen."""
    try:
        function(*args)
    except DatabaseAway as error:
        # The call stays in flight, and `NodeAgent.recover` takes it up again.
        log.warning("%s put off: %s", getattr(function, "__qualname__", function), error)
    except Exception:
        log.exception("%s failed", getattr(function, "__qualname__", function))
