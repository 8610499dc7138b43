"""Connections to Redis are cut, and Redis is killed, while callers wait: each gets its own answer, and the next ones too."""

import contextlib
import os
import signal
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from app.keys import Keys
from tests.wire import Api, retried, until

CALLERS = 200


@pytest.fixture
def database(stack):
    with contextlib.closing(redis.Redis.from_url(stack.redis_url, decode_responses=True)) as client:
        yield client


@pytest.fixture
def shells(stack):
    box = Api(stack.url).start(memory="64m", cpus=0.05)
    yield [box.open() for _ in range(10)]
    assert retried(lambda: box.post("/stop")).ok


def test_cut_subscriptions_lose_no_answer(stack, database, shells, tmp_path):
    """C04: 200 callers wait, half of their answers come while the subscription is being cut."""
    gate, marks = tmp_path / "gate", [f"m-{uuid.uuid4().hex}" for _ in range(CALLERS)]
    inflight = Keys().node_inflight(stack.node_id)

    def ask(place):
        script = f"while [[ ! -e {gate} ]]; do sleep 0.05; done; echo {marks[place]}"
        return shells[place % len(shells)].run(script, request_id=marks[place])

    with ThreadPoolExecutor(CALLERS) as pool:
        callers = [pool.submit(ask, place) for place in range(CALLERS)]
        until(lambda: database.zcard(inflight) == CALLERS, what="all in flight")
        assert database.client_kill_filter(_type="pubsub") >= 1
        gate.touch()
        for done in (10, 50, 100, 150):
            until(lambda n=done: database.zcard(inflight) <= CALLERS - n, what="some answers")
            database.client_kill_filter(_type="pubsub")
        # No caller asks again: the ones whose answer was announced to nobody look for themselves.
        assert [caller.result(30).result["output"] for caller in callers] == marks


@pytest.mark.parametrize("cut", ["connections", "redis"])
def test_workers_take_calls_again_after_a_cut(stack, database, shells, cut):
    """C03: whatever was cut, three times over, the next command is answered soon."""
    for _ in range(3):
        with ThreadPoolExecutor(len(shells)) as pool:
            busy = [pool.submit(lambda s=shell: retried(lambda: s.run("sleep 0.2; echo on"))) for shell in shells]
            if cut == "redis":
                before = stack.pids()["redis"]
                os.kill(before.pid, signal.SIGKILL)
                until(lambda old=before: (now := stack.pids().get("redis")) and now.pid != old.pid, what="its return")
            else:
                database.client_kill_filter(_type="normal", skipme=True)
            begun = time.monotonic()
            assert retried(lambda: shells[0].run("echo on")).result["output"] == "on"
            measured = retried(lambda: shells[0].api.get("/get_sandbox_statistics", sandbox_id=shells[0].id))
            assert measured.ok, "the other worker"
            assert time.monotonic() - begun < 10
            assert {one.result(60).result["output"] for one in busy} == {"on"}
