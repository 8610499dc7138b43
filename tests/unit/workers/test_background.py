"""Long calls in the background: a few threads for any number of calls, and each call once."""

import threading

import pytest

from app.calls import Call, Route
from app.database import DatabaseAway
from tests.wire import until
from workers.background import Background

AT_ONCE = 3


class Results:
    """Hands out any call."""

    def __init__(self):
        self.fault = None

    def clock(self):
        return 1000.0

    def take(self, call_id, now):
        if self.fault:
            raise self.fault
        return None if call_id == "overdue" else Call(call_id, "r", "", Route.WARM.value, "", node="n1")


class Work:
    """What is done with calls: it waits until it may end."""

    def __init__(self):
        self.open, self.begun, self.ended, self.threads = threading.Event(), [], [], set()
        self.fault = None

    def __call__(self, call):
        self.threads.add(threading.current_thread())
        self.begun.append(call.call_id)
        assert self.open.wait(10)
        if self.fault:
            raise self.fault
        self.ended.append(call.call_id)


@pytest.fixture
def results():
    return Results()


@pytest.fixture
def work():
    made = Work()
    yield made
    made.open.set()
    for thread in made.threads:
        thread.join(10)


@pytest.fixture
def background(results, work):
    return Background(results, AT_ONCE, work)


def test_any_number_of_calls_needs_a_few_threads(background, work):
    before = threading.active_count()
    names = [str(number) for number in range(500)]
    for name in [*names, *names]:
        background.begin(name)
    assert threading.active_count() - before <= AT_ONCE
    until(lambda: len(work.begun) == AT_ONCE)
    work.open.set()
    until(lambda: len(work.ended) == len(names))
    assert sorted(work.ended) == sorted(names), "each once"
    until(lambda: not any(thread.is_alive() for thread in work.threads), what="the end of idle threads")
    background.begin("later")
    until(lambda: "later" in work.ended)


def test_a_call_without_a_thread_can_be_taken_again(background, work, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            background.begin("a")
    work.open.set()
    background.begin("a")
    until(lambda: work.ended == ["a"])


@pytest.mark.parametrize("fault", [DatabaseAway(), ValueError("a bug")])
def test_a_call_whose_work_broke_off_can_be_taken_again(background, work, fault):
    work.open.set()
    work.fault = fault
    background.begin("a")
    until(lambda: len(work.begun) == 1 and not any(thread.is_alive() for thread in work.threads))
    work.fault = None
    background.begin("a")
    until(lambda: work.ended == ["a"])


def test_a_call_that_redis_or_time_withholds_is_not_kept_in_hand(background, results, work):
    work.open.set()
    results.fault = DatabaseAway()
    background.begin("a")
    background.begin("overdue")
    assert work.begun == []
    results.fault = None
    background.begin("overdue")
    background.begin("a")
    until(lambda: work.ended == ["a"])
