"""One Redis subscription per process, shared by everybody who waits for something to be announced.

A message is `<name>` or `<name> <text>`; the text is an answer, as JSON, which nobody here needs to parse. Waiters register before they look, so nothing is missed while the subscription
stands; when it was cut, every waiter looks once after it is back.
"""

import logging
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from types import TracebackType
from typing import Any

import redis

from app.database import Client

log = logging.getLogger(__name__)

Read = Callable[[str], str | None]

# Seconds without any message after which the connection is asked for a sign of life; as long again, and it is dead.
QUIET = 10.0
# Seconds between attempts to reach a Redis that is away.
RETRY = 0.5
# Seconds a new waiter gives the subscription to come up; registered it is in any case, and looks once when it is up.
SETTLE = 1.0


class Line(StrEnum):
    """How the subscription is: listening, not needed so far, or away and being made again."""

    UP = "up"
    IDLE = "idle"
    CUT = "cut"


class Waiter:
    """Someone waiting for one name. Use as a context: inside it, an announcement is not missed."""

    def __init__(self, inbox: "Inbox", name: str) -> None:
        self._inbox, self.name = inbox, name
        self._event = threading.Event()
        # The announced answer; stays empty if the message carried none, or is only a hint to look.
        self._text = ""

    def __enter__(self) -> "Waiter":
        """Register. Raises Unavailable when the subscription cannot be made."""
        self._inbox.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Unregister."""
        self._inbox.remove(self)

    def wake(self, text: str) -> None:
        """Let the waiter go on, with the answer if it came along."""
        self._text = text or self._text
        self._event.set()

    def wait(self, timeout: float | None) -> str | None:
        """Return the answer as JSON text, waiting up to `timeout` seconds (None: for ever).

        None when it did not come in time, or when all waiters were released.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while self._event.wait(None if end is None else max(0.0, end - time.monotonic())):
            self._event.clear()
            found = self._text or self._inbox.read(self.name)
            if found or self._inbox.released:
                return found
        return None


class Inbox:
    """The subscription and its waiters. Its thread starts with the first waiter, so that it survives a fork."""

    def __init__(self, client: Client, channel: str, read: Read) -> None:
        """
        Params:
            client: for a connection of its own.
            channel: what to subscribe to.
            read: looks up what a name's message did not carry; None when there is nothing yet.
        """
        self._client, self._channel, self.read = client, channel, read
        self._waiters: dict[str, set[Waiter]] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._subscribed = threading.Event()
        # True once the process is about to end: nobody waits any more.
        self.released = False
        self._connection: Any = None
        self._closed = False

    @property
    def line(self) -> Line:
        """How the subscription is."""
        if self._subscribed.is_set():
            return Line.UP
        return Line.IDLE if self._thread is None else Line.CUT

    def expect(self, name: str) -> Waiter:
        """Return a waiter for `name`, not yet registered."""
        return Waiter(self, name)

    def names(self) -> list[str]:
        """Return the names that are waited for."""
        with self._lock:
            return list(self._waiters)

    def add(self, waiter: Waiter) -> None:
        """Register a waiter; the first one starts the subscription and waits a moment until it stands.

        When Redis is away the waiter is registered all the same: it looks once after the subscription is back.
        """
        with self._lock:
            self._waiters.setdefault(waiter.name, set()).add(waiter)
            if self.released:
                waiter.wake("")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="inbox", daemon=True)
                self._thread.start()
        if not self._subscribed.is_set():
            self._subscribed.wait(SETTLE)

    def remove(self, waiter: Waiter) -> None:
        """Forget a waiter."""
        with self._lock:
            others = self._waiters.get(waiter.name, set())
            others.discard(waiter)
            if not others:
                self._waiters.pop(waiter.name, None)

    def release(self) -> None:
        """Let all waiters go, present and future, with what there is by now."""
        self.released = True
        self._wake(self.names())

    def close(self) -> None:
        """End the thread and its connection."""
        self._closed = True
        if self._connection is not None:
            self._connection.disconnect()
        if self._thread is not None:
            self._thread.join(2)

    def _run(self) -> None:
        """Subscribe, deliver, and after a cut subscribe again, until closed."""
        outage = False  # said once per outage
        while not self._closed:
            try:
                self._listen()
            except (redis.RedisError, OSError, ValueError) as error:
                if not self._closed and (self._subscribed.is_set() or not outage):
                    log.warning("the subscription to completed calls was cut (%s); subscribing again", error)
                self._subscribed.clear()
                outage = True
                if not self._closed:
                    time.sleep(RETRY)

    def _listen(self) -> None:
        """Deliver messages until the connection breaks. Raises redis.RedisError then, or when it is silent for too long.

        A connection of our own instead of redis-py's PubSub: that polls before each read, which costs more than the rest.
        """
        pool = self._client.connection_pool
        # Replies are plain lists in protocol 2; in 3 they would go to push handlers.
        options = {**pool.connection_kwargs, "socket_timeout": QUIET, "protocol": 2}
        # The pool's, of newer clients: it asks for protocol 3.
        options.pop("maint_notifications_config", None)
        self._connection = connection = pool.connection_class(**options)
        connection.connect()
        try:
            connection.send_command("SUBSCRIBE", self._channel)
            asked = False
            while not self._closed:
                try:
                    self._receive(connection.read_response(disconnect_on_error=False))
                    asked = False
                except redis.TimeoutError:
                    if asked:
                        raise
                    connection.send_command("PING")
                    asked = True
        finally:
            connection.disconnect()

    def _receive(self, reply: list[Any]) -> None:
        """Handle one reply of the subscription: its kind, the channel, and what was said."""
        if reply[0] == "subscribe":
            # Whatever was announced while nobody listened is found by looking.
            self._wake(self.names())
            self._subscribed.set()
        elif reply[0] == "message":
            name, _, text = reply[2].partition(" ")
            self._wake([name], text)

    def _wake(self, names: list[str], text: str = "") -> None:
        """Wake the waiters of `names`; `text` is the answer, if it came along."""
        for name in names:
            with self._lock:
                waiters = list(self._waiters.get(name, ()))
            for waiter in waiters:
                waiter.wake(text)
