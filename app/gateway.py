"""The gunicorn worker of the API: gevent's, which also lets go of idle connections when it is told to end.

gunicorn's own waits for every open connection, and a client that keeps one open for its next request (the SDK does)
would hold the end up for the whole graceful period, though nothing is going on.
"""

from types import TracebackType
from typing import Any

import gevent
from gunicorn.workers.ggevent import GeventWorker

DRAIN_BEFORE = 3.0
"""Seconds before the end of the graceful period at which waiting callers are let go."""


class _Idle:
    """The time that a connection spends without a request; over when one comes, at the limit, or when we are to end."""

    def __init__(self, idle: "set[_Idle]", seconds: float) -> None:
        self._idle = idle
        self._limit = gevent.Timeout(seconds)
        self._greenlet = gevent.getcurrent()

    def __enter__(self) -> None:
        self._limit.start()
        self._idle.add(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._idle.discard(self)
        self._limit.close()
        # Swallowed, gunicorn finds no request and closes the connection in good order.
        return error is self._limit

    def end(self) -> None:
        """End the wait now, as its limit would."""
        self._greenlet.kill(self._limit, block=False)


class ApiWorker(GeventWorker):
    """Serves the API; see the module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._idle: set[_Idle] = set()

    def run(self) -> None:
        """Serve until told to end; what was counted last is kept."""
        super().run()
        self.wsgi.extensions["rock"].metrics.tally.close()

    def timeout_ctx(self) -> _Idle:
        """Return the context in which gunicorn waits for a connection's next request."""
        # One that was accepted while we end has a moment to say what it wants.
        return _Idle(self._idle, self.cfg.keepalive if self.alive else 0.1)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Begin to end: requests that are in work are finished, idle connections closed."""
        super().handle_exit(sig, frame)
        # Not here: a signal handler may have interrupted the very code that keeps the set.
        gevent.spawn(self._close_idle)
        gevent.spawn(self._close_sockets)
        # Whoever still waits then is told to ask again, with the request id, before the process is cut off.
        gevent.spawn_later(max(0.0, self.cfg.graceful_timeout - DRAIN_BEFORE), self._drain)

    def _drain(self) -> None:
        self.wsgi.extensions["rock"].drain()

    def _close_sockets(self) -> None:
        self.wsgi.extensions["rock"].close_sockets()

    def _close_idle(self) -> None:
        for connection in list(self._idle):
            connection.end()
