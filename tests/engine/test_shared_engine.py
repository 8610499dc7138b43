"""Others use the same engine: containers of nobody's, and of another service. Each service touches its own only."""

import os
import signal

import pytest

from scripts.images import DEBIAN
from tests.wire import Api, retried, until

SMALL = {"image": DEBIAN, "memory": "64m", "cpus": 0.05}


@pytest.fixture
def foreign(engine, engine_server):
    """Containers of others; one even has a label of ours, as somebody's copy of a command line may."""
    labels = [{}, {"rock.node": engine_server.node_id, "rock.sandbox": "foreign"}]
    made = [engine.containers.create(DEBIAN, ["sleep", "1000"], labels=one) for one in labels]
    for one in made:
        one.start()
    yield made
    for one in made:
        one.remove(force=True)


def test_N06_two_services_on_one_engine_leave_each_other_alone(engine_server, engine_url, make_stack, foreign):
    """They have the same node id and the same prefix, as two services on one machine do by default; only their Redis differs."""
    first = Api(engine_server.url)
    mine = first.start(**SMALL).open()
    other = make_stack(runtime="docker", variables={"DOCKER_HOST": engine_url}, node_id=engine_server.node_id).start()
    second = Api(other.url)
    theirs = second.start(**{**SMALL, "sandbox_id": mine.id}).open()
    assert mine.output("echo mine") == "mine" and theirs.output("echo theirs") == "theirs"
    before = engine_server.pids()["lifecycle"]
    os.kill(before.pid, signal.SIGKILL)  # the next one compares the engine with its records when it starts
    until(lambda: (now := engine_server.pids().get("lifecycle")) and now.pid != before.pid, what="its return")
    assert retried(lambda: first.get("/get_sandbox_statistics", sandbox_id=mine.id)).ok
    assert theirs.output("echo still") == "still"
    theirs.stop()
    other.stop()
    assert mine.output("echo still") == "still"
    for one in foreign:
        one.reload()
        assert one.status == "running"
    mine.stop()
