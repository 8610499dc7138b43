"""What outgrows its disk limit is ended with a reason; looking costs a bounded share of the time. Real Redis."""

import uuid
from dataclasses import replace

import pytest

from app.calls import Call, call_id
from app.config import load
from app.database import connect
from app.keys import Keys
from app.line import Line
from app.node_store import NodeStore
from app.records import Event, NodeRecord, SandboxRecord, State
from app.store import SandboxStore
from rock.errors import SandboxGone, Unavailable
from workers.agent import Coroner
from workers.deployments.abstract import ContainerState
from workers.disk_guard import SHARE, DiskGuard
from workers.reaper import Reaper
from workers.turns import Turns

MB = 1 << 20


class Containers:
    """id -> bytes of its files, None where the engine limits them, or the fault of the engine."""

    def __init__(self):
        self.used, self.stopped = {}, []

    def disk_use(self, sandbox_id):
        if isinstance(self.used[sandbox_id], Exception):
            raise self.used[sandbox_id]
        return self.used[sandbox_id]

    def stop(self, sandbox_id):
        self.stopped.append(sandbox_id)

    remove = stop

    def inspect(self, sandbox_id):
        return ContainerState(exists=True, running=sandbox_id not in self.stopped)


class World:
    def __init__(self, redis_url):
        prefix = f"disk{uuid.uuid4().hex[:8]}:"
        self.redis, self.keys, self.containers, self.pauses = connect(redis_url), Keys(prefix), Containers(), []
        self.line = Line(self.redis, self.keys)
        self.sandboxes = SandboxStore(self.redis, self.keys, self.line)
        NodeStore(self.redis, self.keys, self.line).register("n1", "t", NodeRecord("n1", 99.0, 1 << 40), 1000.0)
        config = load("test", {"ROCK_REDIS_URL": redis_url, "ROCK_NODE_ID": "n1"})
        reaper = Reaper(config, self.sandboxes, self.containers, Turns())
        self.guard = DiskGuard(config, self.sandboxes, self.containers, reaper, self.pauses.append)

    def start(self, name, used, disk="20m"):
        call = Call(call_id("", name), name, "", "start", name, {}, created=1000.0)
        record = SandboxRecord(
            name, "", "", 1.0, 1, 60.0, 1000.0, 100.0, start_call=call.call_id, spec={"image": "x", "disk": disk}
        )
        self.line.enter(record, replace(call, deadline=2000.0), 1000.0)
        self.sandboxes.transition(name, [State.PENDING], State.RUNNING, Event.STARTED, 1000.0)
        self.containers.used[name] = used


@pytest.fixture
def world(redis_url):
    made = World(redis_url)
    yield made
    made.redis.close()


def test_only_what_is_above_its_limit_is_ended_and_is_told_why(world):
    world.start("small", 20 * MB)
    world.start("big", 21 * MB)
    world.start("free", 999 * MB, disk=None)
    world.start("held", None)
    assert world.guard.run(1001.0) == 1
    assert world.containers.stopped == ["big"]
    record = world.sandboxes.get("big")
    assert record.state is State.STOPPED and record.stop_event == "disk_limit"
    assert record.reason == "its files take 21 MB, more than its disk limit of 20 MB"
    assert {world.sandboxes.get(name).state for name in ("small", "free", "held")} == {State.RUNNING}
    assert not world.redis.sismember(world.keys.node_sandboxes("n1"), "big"), "it gave its room back"
    assert world.guard.run(1002.0) == 0


def test_those_who_wait_for_it_hear_the_reason(world):
    world.start("big", 21 * MB)
    world.guard.run(1001.0)
    error = Coroner(world.containers, world.sandboxes, lambda: 1002.0).examine("big")
    assert isinstance(error, SandboxGone) and "disk limit of 20 MB" in error.message


def test_one_that_cannot_be_measured_keeps_no_other_from_it(world):
    world.start("a", SandboxGone("gone"))
    world.start("b", Unavailable("the engine does not answer"))
    world.start("c", 21 * MB)
    assert world.guard.run(1001.0) == 1 and world.containers.stopped == ["c"]


def test_it_rests_for_longer_than_it_measures(world):
    world.start("a", 1)
    world.start("b", 1)
    world.guard.run(1001.0)
    assert len(world.pauses) == 2 and all(pause > 0 for pause in world.pauses) and SHARE >= 10
