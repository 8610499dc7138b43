"""The surroundings of a desk as values: what it sent, what it answered, and a clock that the test moves."""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from app.calls import Call, Route
from workers import protocol
from workers.desk import Desk
from workers.file_jobs import make_job
from workers.jobs import Job
from workers.protocol import Event
from workers.surroundings import Surroundings


@dataclass
class Timer:
    """A call that was put off."""

    cancelled: bool = False

    def cancel(self) -> None:
        """Do not make it."""
        self.cancelled = True


@dataclass
class World:
    """A desk, and all that it does to the world."""

    limit: int = 1000
    now: float = 0.0
    sent: list[list[str]] = field(default_factory=list)
    """The header words of each frame, without the last two."""
    answers: list[tuple[str, dict]] = field(default_factory=list)
    raw: dict[str, bytes | None] = field(default_factory=dict)
    """What was stored beside each answer for readers by offset."""

    def __post_init__(self) -> None:
        self._timers: list[tuple[float, int, Timer, Callable[[], None]]] = []
        self._count = itertools.count()
        around = Surroundings(self._send, self._finish, self._later)
        self.desk = Desk(around, self.limit)

    def _finish(self, job: Job, envelope: dict, raw: bytes | None) -> None:
        self.answers.append((job.id, envelope))
        self.raw[job.id] = raw

    def _send(self, frames) -> None:
        for one in frames:
            self.sent.append(one.split(b"\n", 1)[0].decode().split(" ")[:4])

    def _later(self, seconds: float, function: Callable[[], None]) -> Timer:
        timer = Timer()
        heapq.heappush(self._timers, (self.now + seconds, next(self._count), timer, function))
        return timer

    def pass_time(self, seconds: float) -> None:
        """Move the clock, and make the calls that are due."""
        end = self.now + seconds
        while self._timers and self._timers[0][0] <= end:
            self.now, _, timer, function = heapq.heappop(self._timers)
            if not timer.cancelled:
                function()
        self.now = end

    def verbs(self) -> list[str]:
        """Return what was sent since the last time."""
        found = [words[0] for words in self.sent]
        self.sent.clear()
        return found

    def hear(self, kind: str, job: Job, *args: object, data: bytes = b"") -> None:
        """Let the keeper say something."""
        self.desk.handle(Event(kind, job.id, tuple(map(str, args)), data))

    def hear_output(
        self, job: Job, data: bytes, code: int | None = 0, stream: int = protocol.STDOUT, offset: int = 0
    ) -> None:
        """Let the keeper send output, with the end mark unless `code` is None."""
        if code is not None:
            data += f"\x1e{job.id} {code}\x1e".encode()
        self.hear("data", job, stream, offset, len(data), offset + len(data), data=data)

    def answer(self) -> dict:
        """Return the one answer that was given."""
        assert len(self.answers) == 1, self.answers
        return self.answers[0][1]


def make(route: Route, number: int = 1, **body: object) -> Job:
    """Return the job of a call."""
    fields = {"sandbox_id": "box", **body}
    return make_job(Call(f"{number:032x}"[::-1], f"r{number}", "", route, "box", fields), 1000)


def run(command: str = "echo hi", number: int = 1, **fields: object) -> Job:
    """Return the job of a command in a session."""
    return make(Route.RUN_IN_SESSION, number, command=command, **fields)
