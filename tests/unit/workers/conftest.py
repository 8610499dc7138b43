"""A keeper of the test's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.workers.keeper_process import Keeper


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    """The real keeper, without a session."""
    running = Keeper(tmp_path)
    yield running
    running.close()


@pytest.fixture
def shell(keeper: Keeper) -> Keeper:
    """The real keeper, with the open session `s`."""
    assert keeper.open().exit_code == 0
    return keeper
