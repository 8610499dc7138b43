"""What the chaos tests share: their time limit, and a service of their own, since its processes die."""

import pytest

from tests.service_stack import Stack


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give a longer run by hand the time it needs."""
    for item in items:
        if item.path.is_relative_to(__file__.rpartition("/")[0]):
            item.add_marker(pytest.mark.timeout(config.getoption("--chaos-seconds") + 240))


@pytest.fixture(scope="module")
def stack(make_stack) -> Stack:
    """A service. Where all processes are killed again and again on few cores, a node may be silent for a while."""
    return make_stack(variables={"ROCK_NODE__LOST_AFTER_SECONDS": "40"}).start()
