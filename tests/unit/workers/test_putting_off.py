"""What a node does while Redis is away: it fails nobody for that, and says so without noise."""

import logging
import threading
import time

import pytest

from app.calls import Call, Route
from app.config import load
from app.database import DatabaseAway
from app.stores import Stores
from rock.errors import StartFailed
from workers.heartbeat import Heartbeat
from workers.lifecycle import NodeLifecycle


class Away:
    """Stores whose Redis does not answer."""

    def __getattr__(self, name):
        def refuse(*args, **options):
            raise DatabaseAway

        return refuse


class Results:
    """Hands out one call, and keeps the failures that are stored."""

    def __init__(self, call) -> None:
        self.call, self.failed = call, []

    clock = staticmethod(time.time)

    def take(self, call_id, now):
        return self.call

    def fail(self, call_id, error, now):
        self.failed.append(error)


@pytest.fixture
def config(tmp_path):
    return load("test", {"ROCK_DATA_DIR": str(tmp_path), "ROCK_NODE_ID": "n1"})


@pytest.mark.parametrize(("error", "failures"), [(DatabaseAway(), 0), (StartFailed("no"), 1)])
def test_a_call_that_meets_redis_away_stays_in_flight(config, error, failures):
    """Nothing is answered, so the next round of recovery finds and does it."""
    results = Results(Call("c" * 32, "r", "", Route.STATISTICS.value, "s1"))

    class Deployment:
        mark = "n1"

        def statistics(self, sandbox_id):
            raise error

    stores = Stores(Away(), Away(), Away(), results, Away(), Away(), Away())
    lifecycle = NodeLifecycle(config, stores, Away(), Away(), Deployment())
    lifecycle.statistics("c" * 32)
    assert len(results.failed) == failures


def test_a_worker_that_ends_after_redis_says_so_in_one_line(config, caplog):
    """Ctrl-C of a Procfile ends all processes at once."""

    class Nodes(Away):
        def register(self, *args):
            return None

    heartbeat = Heartbeat(config, Nodes(), time.time, "local", "")
    heartbeat.start()
    with caplog.at_level(logging.INFO):
        heartbeat.close()
    said = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "workers.heartbeat"]
    assert len(said) == 1 and said[0][0] == "INFO" and "n1" in said[0][1]
    assert not [thread for thread in threading.enumerate() if thread.name == "heartbeat" and not thread.daemon]
