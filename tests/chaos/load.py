"""Callers who keep a service busy with commands that leave evidence, and check every answer."""

import random
import threading
import traceback
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.wire import Api, Box, Reply, retried

ANSWER_WITHIN = 100.0
"""Seconds within which a caller who asks again and again has its answer, whatever is killed meanwhile."""
SMALL = {"image": "python:3.11", "memory": "64m", "cpus": 0.05}


class Moments:
    """Lets somebody wait until a caller has just sent something, or until so many answers have come."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sent = self.answers = 0

    def sending(self) -> None:
        """A caller sends now."""
        with self._changed:
            self._sent += 1
            self._changed.notify_all()

    def answered(self) -> None:
        """A caller has its answer."""
        with self._changed:
            self.answers += 1
            self._changed.notify_all()

    def await_sending(self, seconds: float) -> None:
        """Return when the next caller sends, or after `seconds`."""
        with self._changed:
            before = self._sent
            self._changed.wait_for(lambda: self._sent > before, seconds)

    def await_answers(self, number: int, seconds: float) -> None:
        """Return when `number` more answers have come, or after `seconds`."""
        with self._changed:
            before = self.answers
            self._changed.wait_for(lambda: self.answers >= before + number, seconds)


@dataclass
class Load:
    """Callers at work. Each command appends a line of its own to `evidence`; each caller asks again until answered."""

    url: str
    evidence: Path
    moments: Moments = field(default_factory=Moments)
    faults: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def begin(self, work: Callable[["Load", random.Random], None], seed: str) -> None:
        """Start a caller that does `work` until the load is over."""

        def run() -> None:
            try:
                work(self, random.Random(seed))
            except Exception:  # noqa: BLE001  of a thread: the test shows it
                self.faults.append(f"caller {seed}: {traceback.format_exc()}")
                self.over.set()

        self._threads.append(threading.Thread(target=run, name=seed, daemon=True))
        self._threads[-1].start()

    def finish(self) -> None:
        """Let every caller get its last answer."""
        self.over.set()
        for thread in self._threads:
            thread.join(3 * ANSWER_WITHIN)
            if thread.is_alive():
                self.faults.append(f"caller {thread.name} hangs")

    def ask(self, what: Callable[[], Reply]) -> Reply:
        """Ask until answered."""
        self.moments.sending()
        reply = retried(what, ANSWER_WITHIN)
        self.moments.answered()
        return reply

    def command(self, chance: random.Random) -> tuple[str, str]:
        """Return a new id and a line that leaves it as evidence; some take a while before or after."""
        mark = uuid.UUID(int=chance.getrandbits(128)).hex
        self.sent.append(mark)
        pause = f"sleep {chance.choice((0.01, 0.05, 0.3))}; " if chance.random() < 0.3 else ""
        later = f"sleep {chance.choice((0.01, 0.05, 0.3))}; " if chance.random() < 0.3 else ""
        return mark, f"{pause}echo {mark} >> {self.evidence}; {later}"

    def judge(self) -> str:
        """Return what is wrong: commands that did not run once, and what callers complained about; "" if nothing."""
        ran = Counter(self.evidence.read_text().split())
        wrong = [f"{mark} ran {ran[mark]} times" for mark in self.sent if ran[mark] != 1]
        strange = [f"{mark} was never asked for" for mark in ran if mark not in set(self.sent)]
        return "\n".join([*self.faults, *wrong, *strange])


def in_a_session(shell: Box) -> Callable[[Load, random.Random], None]:
    """Return the work of a caller who runs one command after the other in a session that must keep its state."""

    def work(load: Load, chance: random.Random) -> None:
        number = 0
        while not load.over.is_set():
            number += 1
            mark, line = load.command(chance)
            script = f"n=$((n + 1)); {line}echo {mark} $n; (exit {number % 7})"
            reply = load.ask(lambda s=script, m=mark: shell.run(s, request_id=m))  # type: ignore[misc]
            assert reply.ok and not reply.result["failure_reason"], reply.body
            assert (reply.result["output"], reply.result["exit_code"]) == (f"{mark} {number}", number % 7), reply.body

    return work


def one_off(box: Box) -> Callable[[Load, random.Random], None]:
    """Return the work of a caller who runs one-off commands, and polls for some of the answers."""

    def work(load: Load, chance: random.Random) -> None:
        while not load.over.is_set():
            mark, line = load.command(chance)
            script = f"{line}echo {mark}; echo error >&2; exit 5"
            wait = 0.0 if chance.random() < 0.3 else None
            reply = load.ask(
                lambda s=script, m=mark, w=wait: box.execute(s, shell=True, request_id=m, wait=w)  # type: ignore[misc]
            )
            while reply.ok and reply.result.get("state"):
                reply = load.ask(lambda m=mark: box.api.get(f"/results/{m}", wait=20))  # type: ignore[misc]
            expected = {"stdout": f"{mark}\n", "stderr": "error\n", "exit_code": 5, "failure_reason": ""}
            assert reply.ok and reply.result == expected, reply.body

    return work


def new_sandboxes(load: Load, chance: random.Random) -> None:
    """The work of a caller who starts a sandbox, runs something in it and stops it, again and again."""
    api = Api(load.url)
    while not load.over.is_set():
        request = uuid.UUID(int=chance.getrandbits(128)).hex
        reply = load.ask(lambda r=request: api.post("/start", request_id=r, **SMALL))  # type: ignore[misc]
        assert reply.ok, reply.body
        box = Box(api, reply.result["sandbox_id"])
        mark, line = load.command(chance)
        reply = load.ask(lambda s=line, m=mark, b=box: b.execute(s, shell=True, request_id=m))  # type: ignore[misc]
        assert reply.ok and reply.result["exit_code"] == 0, reply.body
        reply = load.ask(lambda b=box: b.post("/stop"))  # type: ignore[misc]
        assert reply.ok, reply.body
