"""Processes are told to end while callers wait: nobody is cut off without a word, and each command runs once."""

import os
import signal
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.wire import Api, retried, until

GRACE = 5
SMALL = {"image": "python:3.11", "memory": "64m", "cpus": 0.05}


@pytest.fixture(scope="module")
def stack(make_stack):
    """A service of this module's own, whose API lets its callers go after two seconds."""
    return make_stack(
        variables={"ROCK_NODE__LOST_AFTER_SECONDS": "40", "ROCK_SERVER__GRACEFUL_SECONDS": str(GRACE)}
    ).start()


@pytest.fixture
def box(stack):
    box = Api(stack.url).start(**SMALL)
    yield box
    assert retried(lambda: box.post("/stop")).ok


class Waiting:
    """Callers of commands that wait at a gate; each command leaves a line of its own as evidence."""

    def __init__(self, box, folder, number, **fields) -> None:
        self.gate, self.evidence = folder / "gate", folder / "evidence"
        self.box, self.fields, self.marks = box, fields, [f"m-{uuid.uuid4().hex}" for _ in range(number)]
        self.shells = [box.open() for _ in range(min(10, number))]
        self.pool = ThreadPoolExecutor(number)

    def ask(self, place):
        """Ask for a command once."""
        mark = self.marks[place]
        script = f"echo {mark} >> {self.evidence}; while [[ ! -e {self.gate} ]]; do sleep 0.1; done; echo {mark}"
        return self.shells[place % len(self.shells)].run(script, request_id=mark, **self.fields)

    def all(self, ask):
        """Have all callers ask at once."""
        return [self.pool.submit(ask, place) for place in range(len(self.marks))]

    def begun(self) -> None:
        """Wait until every session has begun its first command."""
        until(lambda: self.evidence.exists() and len(self.evidence.read_text().split()) == len(self.shells))

    def were_true(self, replies) -> None:
        """Check the answers, and that each command ran once."""
        wrong = [reply.body for reply in replies if not reply.ok]
        assert not wrong, wrong
        assert [reply.result["output"] for reply in replies] == self.marks
        assert sorted(self.evidence.read_text().split()) == sorted(self.marks)


def restarted(stack, name, before):
    """Wait until the supervisor has started a process again."""
    until(lambda: name in (now := stack.pids()) and now[name].pid != before.pid, what=f"the return of {name}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_an_api_told_to_end_lets_its_callers_go_with_their_request_ids(stack, box, tmp_path, number):
    """C18: SIGTERM ends gunicorn, SIGHUP has it replace its processes. The command goes on; asked again, it is answered."""
    waiting, before = Waiting(box, tmp_path, 12), stack.pids()["api"]
    callers = waiting.all(waiting.ask)
    waiting.begun()
    # A start that waits, too: there is not enough room for it beside the box.
    start, (node,) = f"s-{uuid.uuid4().hex}", box.api.get("/nodes").result["nodes"]
    fields = {**SMALL, "cpus": node["cpus"], "request_id": start}
    starter = ThreadPoolExecutor(1).submit(lambda: box.api.post("/start", **fields))
    until(lambda: box.api.get("/nodes").result["waiting"] == 1, what="the start's wait")
    begun = time.monotonic()
    os.kill(before.pid, number)
    for mark, reply in zip(waiting.marks, [caller.result(GRACE + 20) for caller in callers], strict=True):
        assert reply.status == 503 and int(reply.headers["Retry-After"]) > 0
        assert reply.failed(5000, mark, kind="unavailable")["request_id"] == mark
    assert starter.result(GRACE + 20).failed(5000, start, kind="unavailable")["request_id"] == start
    assert time.monotonic() - begun < GRACE + 3
    if number == signal.SIGTERM:
        restarted(stack, "api", before)
    again = waiting.all(lambda place: retried(lambda: waiting.ask(place)))
    waiting.gate.touch()
    waiting.were_true([caller.result(60) for caller in again])
    assert retried(lambda: box.api.post("/start", **fields, wait=0)).result["state"] == "pending", "it waits on"
    assert box.api.post(f"/results/{start}/cancel").ok


def test_a_worker_told_to_end_answers_each_call_once(stack, box, tmp_path):
    """C10: the session worker with 50 commands in its hands, the lifecycle worker with starts."""
    waiting, before = Waiting(box, tmp_path, 50), stack.pids()
    api, starts = Api(stack.url), [f"s-{uuid.uuid4().hex}" for _ in range(5)]
    callers = waiting.all(waiting.ask)
    waiting.begun()
    with ThreadPoolExecutor(len(starts)) as pool:
        started = pool.map(lambda request: retried(lambda: api.post("/start", request_id=request, **SMALL)), starts)
        # The box and all of them: a start that comes when the node has signed off is refused.
        until(lambda: api.get("/sandboxes").result["total"] > len(starts), what="the starts in hand")
        begun = time.monotonic()
        for name in ("worker", "lifecycle"):
            os.kill(before[name].pid, signal.SIGTERM)
        until(lambda: not before["worker"].is_alive(), 10, "the worker's end")
        # Generous: it is a second where nothing else runs.
        assert time.monotonic() - begun < 8
        for name in ("worker", "lifecycle"):
            restarted(stack, name, before[name])
        waiting.gate.touch()
        waiting.were_true([caller.result(90) for caller in callers])
        replies = list(started)
    assert all(reply.ok for reply in replies), [reply.body for reply in replies]
    ids = {reply.result["sandbox_id"] for reply in replies}
    assert len(ids) == len(starts)
    for sandbox in ids:
        assert api.post("/stop", sandbox_id=sandbox).ok
