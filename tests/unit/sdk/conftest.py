"""A service for code that has no event loop."""

import asyncio
import threading

import pytest

from tests.unit.sdk.fake_service import FakeService


@pytest.fixture
def service():
    """A service on a loop of its own, as a program without a loop meets it."""
    fake, loop = FakeService(), asyncio.new_event_loop()
    loop.run_until_complete(fake.__aenter__())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield fake
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(fake.__aexit__())
    loop.close()
