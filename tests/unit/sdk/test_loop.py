"""The private loop of the synchronous SDK."""

import asyncio
import os
import signal
import threading

import pytest

from rock.sdk import loop


def test_an_interrupted_caller_waits_until_what_it_ran_has_cleaned_up():
    begun, cleaned = threading.Event(), threading.Event()

    async def work():
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)  # as withdrawing a start takes a round trip
            cleaned.set()

    def interrupt():
        begun.wait(10)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        loop.run(work())
    assert cleaned.is_set()


def test_errors_and_results_pass():
    async def give(value):
        return value

    async def fail():
        raise LookupError("x")

    assert loop.run(give(3)) == 3
    with pytest.raises(LookupError):
        loop.run(fail())


def test_it_works_where_a_loop_runs_already():
    """As in a notebook, whose cells run inside a loop."""

    async def give():
        return threading.current_thread().name

    async def cell():
        return loop.run(give())

    assert asyncio.run(cell()) == "rock-sdk"
