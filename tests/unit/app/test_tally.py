"""Counting without waiting for Redis: nothing is lost while that is away, and nothing is done where metrics are off."""

import json
import threading

import pytest

from app.database import DatabaseAway, connect
from app.keys import Keys
from app.tally import CALL_SECONDS, CALLS, SECONDS, SUM, Tally
from tests.service_stack import free_port


@pytest.fixture
def tally(world):
    made = Tally(world.redis, world.keys)
    yield made
    made.close()


def stored(world):
    fields = world.redis.hgetall(world.keys.metrics())
    return {tuple(json.loads(name)): float(number) for name, number in fields.items()}


def test_threads_add_up(world, tally):
    def work():
        for _ in range(1000):
            tally.count(CALLS, "execute", "ok")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tally.flush()
    assert stored(world) == {("rock_calls", "execute", "ok"): 4000}


def test_a_time_is_in_the_bucket_whose_bound_it_does_not_pass(world, tally):
    for seconds in (-1.0, 0.001, 0.0011, 10_000.0):
        tally.observe(CALL_SECONDS, seconds, "start")
    tally.flush()
    name = CALL_SECONDS.name
    assert stored(world) == {
        (name, "start", 0): 2, (name, "start", 1): 1, (name, "start", len(SECONDS)): 1,
        (name, "start", SUM): pytest.approx(10_000.0021),
    }  # fmt: skip


def test_what_could_not_be_added_is_kept(world):
    away = connect(f"redis://127.0.0.1:{free_port()}/0")
    tally = Tally(away, world.keys)
    tally.count(CALLS, "execute", "ok")
    for _ in range(2):
        with pytest.raises(DatabaseAway):
            tally.flush()
    tally._redis = world.redis
    tally.close()
    assert stored(world) == {("rock_calls", "execute", "ok"): 1}
    away.close()


def test_where_metrics_are_off_nothing_happens(world):
    tally = Tally(world.redis, Keys("off:"), enable=False)
    tally.count(CALLS, "execute", "ok")
    tally.observe(CALL_SECONDS, 1.0, "execute")
    tally.close()
    assert not world.redis.exists("off:metrics") and tally._thread is None
