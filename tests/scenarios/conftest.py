"""Each scenario runs twice: with sandboxes as plain process trees, and with sandboxes in containers."""

from collections.abc import Iterator

import pytest

from tests.service_stack import Stack
from tests.wire import Api, Box

BOTH = [
    pytest.param("server", id="local", marks=pytest.mark.service),
    pytest.param("engine_server", id="docker", marks=pytest.mark.engine),
]


@pytest.fixture(scope="session", params=BOTH)
def stack(request: pytest.FixtureRequest) -> Stack:
    """A real service of either kind."""
    found: Stack = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def api(stack: Stack) -> Api:
    """Its API."""
    return Api(stack.url)


@pytest.fixture(scope="session")
def shared(api: Api) -> Iterator[Box]:
    """A sandbox for all tests that leave it as it was."""
    box = api.start()
    yield box
    box.stop()


@pytest.fixture
def shell(shared: Box) -> Iterator[Box]:
    """A session of the test's own in the shared sandbox, in a folder of its own."""
    box = shared.open()
    folder = box.output('cd "$(mktemp -d "$PWD/test-XXXXXX")" && pwd')
    yield box
    box.run("kill $(jobs -p) 2>/dev/null")
    box.close()
    box.execute(["rm", "-rf", folder])


@pytest.fixture
def own(api: Api) -> Iterator[Box]:
    """A sandbox of the test's own."""
    box = api.start()
    yield box
    box.stop()
