"""Processes are killed at random moments under load: every caller gets the true result, and each command ran once."""

import contextlib
import os
import random
import secrets
import signal
import sys
import time
from collections import Counter

import redis

from app.keys import Keys
from tests.chaos.load import Load, in_a_session, new_sandboxes, one_off
from tests.wire import Api, retried, until

WEIGHTS = {"redis": 8, "worker": 4, "api": 3, "lifecycle": 2, "beat": 1}
"""How often each process is chosen, against the others; Redis is back at once, the others take a second or two."""


class Killer:
    """Chooses who dies when."""

    def __init__(self, stack, load: Load, seed: int) -> None:
        self._stack, self._load, self._chance = stack, load, random.Random(f"{seed}-kills")
        self._killed: dict[str, int] = {}
        self.kills: Counter[str] = Counter()

    def strike(self) -> None:
        """Wait for a moment that chance chooses, then kill one process, or several at once."""
        chance = self._chance
        # Some answers must come in between, or nothing but starts of processes would be tested.
        self._load.moments.await_answers(chance.choice((0, 1, 3, 10, 30)), 5.0)
        if chance.random() < 0.7:
            self._load.moments.await_sending(0.5)
        # Most moments lie close behind the sending: on its way, taken, running, done, answered.
        time.sleep(chance.choice((0.0, chance.uniform(0, 0.005), chance.uniform(0, 0.05), chance.uniform(0, 0.4))))
        for name in self._choose():
            self._kill(name)

    def _choose(self) -> list[str]:
        number = self._chance.choice((1, 1, 1, 2, 3))
        return self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=number)

    def _kill(self, name: str) -> None:
        """Kill the process unless it is still the one that was killed before."""
        process = self._stack.pids().get(name)
        if process is None or self._killed.get(name) == process.pid:
            return
        self._killed[name] = process.pid
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
            self.kills[name] += 1


def test_random_kills(stack, tmp_path, pytestconfig, capsys):
    seed = pytestconfig.getoption("--chaos-seed") or secrets.randbits(32)
    seconds = pytestconfig.getoption("--chaos-seconds")
    load = Load(stack.url, tmp_path / "evidence")
    load.evidence.touch()
    boxes = [Api(stack.url).start() for _ in range(2)]
    for number, box in enumerate(boxes):
        for session in range(4):
            load.begin(in_a_session(box.open()), f"{seed}-session-{number}-{session}")
        load.begin(one_off(box), f"{seed}-execute-{number}")
    load.begin(new_sandboxes, f"{seed}-starts")
    killer, end = Killer(stack, load, seed), time.monotonic() + seconds
    while time.monotonic() < end and not load.over.is_set():
        killer.strike()
    load.finish()
    story = f"seed {seed}: {killer.kills.total()} kills {dict(killer.kills)}, {len(load.sent)} commands"
    with capsys.disabled():
        sys.stdout.write(f"\n{story}\n")
    wrong = load.judge()
    assert not wrong, f"{story}\n{wrong}\n{stack.log()}"
    for box in boxes:
        assert retried(lambda b=box: b.post("/stop")).ok
    nothing_held(stack)


def nothing_held(stack) -> None:
    """Check that no call is in flight, and that no sandbox holds room."""
    keys = Keys()
    with contextlib.closing(redis.Redis.from_url(stack.redis_url, decode_responses=True)) as client:
        inflight = keys.node_inflight(stack.node_id)
        with contextlib.suppress(AssertionError):
            until(lambda: not client.zcard(inflight))
        assert not [client.hgetall(keys.call(call_id)) for call_id in client.zrange(inflight, 0, -1)]
        assert not client.smembers(keys.node_sandboxes(stack.node_id))
        assert client.hmget(keys.node(stack.node_id), "used_cpus", "used_memory") == ["0", "0"]
