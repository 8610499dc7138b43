"""A closed loop over many connections in one thread: each sends its request again as soon as it has its answer."""

import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.wire import RECEIVE, Address, BenchError, MessageReader

DRAIN = 30.0
"""Seconds for the last answers to come in after the end."""

Check = Callable[[int, bytes], None]
"""Takes status code and body; raises BenchError when the answer is wrong."""


@dataclass
class Outcome:
    """What a closed loop gave."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    """Seconds of each right answer within the time."""
    failures: list[str] = field(default_factory=list)
    cpu: float = 0.0
    """Share of one core that this process used meanwhile: near 1, it measured itself."""

    @property
    def rate(self) -> float:
        """Right answers per second."""
        return len(self.latencies) / self.seconds if self.seconds else 0.0


@dataclass
class _Caller:
    """One connection and the request that it repeats."""

    socket: socket.socket
    request: bytes
    reader: MessageReader = field(default_factory=MessageReader)
    sent: float = 0.0

    def send(self) -> None:
        self.reader, self.sent = MessageReader(), time.perf_counter()
        # Small and one at a time, so that the socket's buffer always has room for it.
        self.socket.sendall(self.request)


def run(address: Address, requests: Sequence[bytes], check: Check, seconds: float) -> Outcome:
    """Repeat every request on a connection of its own for so many seconds.

    Raises BenchError when a connection cannot be made. One that breaks is a failure, and left out from then on.
    """
    outcome = Outcome()
    with selectors.DefaultSelector() as selector:
        try:
            for request in requests:
                caller = _Caller(address.connect(), request)
                selector.register(caller.socket, selectors.EVENT_READ, caller)
            _repeat(selector, check, seconds, outcome)
        finally:
            for key in list(selector.get_map().values()):
                key.data.socket.close()
    return outcome


def _repeat(selector: selectors.BaseSelector, check: Check, seconds: float, outcome: Outcome) -> None:
    cpu, begin = time.process_time(), time.perf_counter()
    end = begin + seconds
    for key in list(selector.get_map().values()):
        key.data.send()
    while selector.get_map() and (now := time.perf_counter()) < end:
        for key, _ in selector.select(end - now):
            _receive(selector, key.data, check, end, outcome)
    outcome.seconds = time.perf_counter() - begin
    outcome.cpu = (time.process_time() - cpu) / outcome.seconds
    _drain(selector, check, outcome)


def _drain(selector: selectors.BaseSelector, check: Check, outcome: Outcome) -> None:
    """Take the answers that are under way, without counting them: the next measure must find the server idle."""
    limit = time.perf_counter() + DRAIN
    while selector.get_map() and (now := time.perf_counter()) < limit:
        for key, _ in selector.select(limit - now):
            _receive(selector, key.data, check, 0.0, outcome)
    for key in list(selector.get_map().values()):
        outcome.failures.append(f"no answer within {DRAIN:g} s after the end")
        _drop(selector, key.data)


def _receive(selector: selectors.BaseSelector, caller: _Caller, check: Check, end: float, outcome: Outcome) -> None:
    """Take what has arrived; a whole answer is checked and counted, and before `end` followed by the next request."""
    try:
        piece = caller.socket.recv(RECEIVE)
        if not piece:
            raise BenchError("the server closed the connection")
        body = caller.reader.feed(piece)
        if body is None:
            return
        now = time.perf_counter()
        check(caller.reader.status, body)
    except (OSError, ValueError, BenchError) as error:
        outcome.failures.append(str(error))
        _drop(selector, caller)
        return
    if now <= end:
        outcome.latencies.append(now - caller.sent)
        caller.send()
    else:
        _drop(selector, caller)


def _drop(selector: selectors.BaseSelector, caller: _Caller) -> None:
    selector.unregister(caller.socket)
    caller.socket.close()
