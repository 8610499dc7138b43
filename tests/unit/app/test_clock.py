"""The service's clock is Redis', however the machine's is set, and however slowly Redis answers."""

import time

import pytest

from app.clock import AGAIN, SLOW, RedisClock
from app.database import DatabaseAway, connect
from tests.service_stack import free_port


class Redis:
    """Tells `now`; an answer takes `delay` seconds of the machine's, and None is no Redis at all."""

    def __init__(self):
        self.now, self.here, self.delay, self.asked, self.away = 5000.0, 70.0, 0.0, 0, False

    def time(self):
        self.asked += 1
        if self.away:
            raise DatabaseAway
        self.pass_(self.delay / 2)
        told = self.now
        self.pass_(self.delay / 2)
        return int(told), round(told % 1 * 1e6)

    def pass_(self, seconds):
        self.now, self.here = self.now + seconds, self.here + seconds

    def elapsed(self):
        return self.here


@pytest.fixture
def redis():
    return Redis()


def test_it_is_redis_time_whatever_the_machine_believes(redis_url, monkeypatch):
    true = time.time()
    monkeypatch.setattr(time, "time", lambda: true + 3600)
    client = connect(redis_url)
    assert abs(RedisClock(client)() - true) < 60
    client.close()


def test_it_goes_on_by_itself_and_asks_again_now_and_then(redis):
    clock = RedisClock(redis, redis.elapsed)
    for _ in range(5):
        assert clock() == pytest.approx(redis.now)
        redis.pass_(AGAIN / 10)
    assert redis.asked == 1
    redis.now += 7  # Redis' machine was set, or this one's seconds are longer
    redis.pass_(AGAIN)
    assert clock() == pytest.approx(redis.now) and redis.asked == 2


def test_an_answer_counts_for_the_middle_of_its_way_and_a_slow_one_not_at_all(redis):
    redis.delay = SLOW * 2
    clock = RedisClock(redis, redis.elapsed)
    assert clock() == pytest.approx(redis.now), "better than none"
    redis.delay, redis.now = SLOW / 2, redis.now + 3
    redis.pass_(AGAIN + 1)
    assert clock() == pytest.approx(redis.now)
    redis.delay, redis.now = SLOW * 2, redis.now + 3
    redis.pass_(AGAIN + 1)
    assert clock() == pytest.approx(redis.now - 3)


def test_while_redis_is_away_it_goes_on_and_does_not_ask_each_time(redis):
    clock = RedisClock(redis, redis.elapsed)
    clock()
    redis.away = True
    redis.pass_(AGAIN + 1)
    for _ in range(3):
        assert clock() == pytest.approx(redis.now)
    assert redis.asked == 2


def test_without_any_answer_there_is_no_time():
    client = connect(f"redis://127.0.0.1:{free_port()}/0")
    clock = RedisClock(client)
    for _ in range(2):
        with pytest.raises(DatabaseAway):
            clock()
    client.close()
