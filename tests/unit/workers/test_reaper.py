"""What a node ends by itself, and what it leaves alone. Real Redis, containers that are entries of a table."""

import threading
import time
import uuid
from dataclasses import replace

import pytest

from app.calls import Call, call_id
from app.config import load
from app.database import DatabaseAway, connect
from app.keys import Keys
from app.line import Line
from app.node_store import NodeStore
from app.records import Event, NodeRecord, SandboxRecord, State
from app.store import SandboxStore
from rock.errors import Internal
from tests.wire import until
from workers.deployments.abstract import ContainerState
from workers.reaper import Reaper
from workers.turns import Turns


class Containers:
    """A deployment as far as the reaper sees one: id -> is running."""

    def __init__(self):
        self.all: dict[str, bool] = {}
        # What the engine refuses to stop, remove or tell of, and how.
        self.stuck: dict[str, Exception] = {}

    def _refuse(self, sandbox_id):
        if sandbox_id in self.stuck:
            raise self.stuck[sandbox_id]

    def list(self):
        return list(self.all.items())

    def inspect(self, sandbox_id):
        self._refuse(sandbox_id)
        return ContainerState(exists=sandbox_id in self.all, running=self.all.get(sandbox_id, False))

    def stop(self, sandbox_id):
        self._refuse(sandbox_id)
        if sandbox_id in self.all:
            self.all[sandbox_id] = False

    def remove(self, sandbox_id):
        self._refuse(sandbox_id)
        self.all.pop(sandbox_id, None)


class World:
    """A node with its reaper, two nodes' worth of records; time is `now`."""

    def __init__(self, redis_url, **environ):
        prefix = f"reap{uuid.uuid4().hex[:8]}:"
        self.redis, self.now, self.number = connect(redis_url), 1000.0, 0
        self.line = Line(self.redis, Keys(prefix))
        self.sandboxes, self.containers = SandboxStore(self.redis, Keys(prefix), self.line), Containers()
        for name in ("n1", "n2"):
            # A cluster of its own for each, so that a test can choose.
            record = NodeRecord(name, 99.0, 2**40, pool=name)
            NodeStore(self.redis, Keys(prefix), self.line).register(name, "t", record, self.now)
        config = load(environ={"ROCK_REDIS_URL": redis_url, "ROCK_NODE_ID": "n1", "ROCK_ADMIN_ENV": "test", **environ})
        self.reaper = Reaper(config, self.sandboxes, self.containers, Turns())

    def start(self, name, node="n1", retention=100.0, running=True, asked=None):
        self.number += 1
        call = Call(call_id("", f"r{self.number}"), "r", "", "start", name, created=self.now, node=node)
        record = SandboxRecord(name, "", node, 1.0, 1, 60.0, self.now, retention, start_call=call.call_id,
                               spec={"image": "x", "auto_delete_seconds": asked})  # fmt: skip
        self.line.enter(replace(record, node="", line=node), call, self.now)
        self.containers.all[name] = True
        if running:
            assert self.move(name, State.RUNNING, Event.STARTED)

    def move(self, name, to=State.STOPPED, event=Event.STOP):
        allowed = [State.PENDING] if to is State.RUNNING else [State.PENDING, State.RUNNING]
        return self.sandboxes.transition(name, allowed, to, event, self.now)

    def life(self, name):
        return self.sandboxes.get(name).start_call

    def state(self, name):
        return self.sandboxes.get(name).state


@pytest.fixture
def world(redis_url):
    made = World(redis_url)
    yield made
    made.redis.close()


def test_expired_sandboxes_are_put_down_and_kept_if_asked(world):
    world.start("kept")
    world.start("not-kept", retention=0.0)
    world.start("at-once", retention=0.0, asked=0)
    assert world.reaper.reap(world.now + 61) == 3
    assert world.containers.all == {"kept": False}
    assert [world.state(name) for name in ("kept", "not-kept", "at-once")] == ["stopped", "stopped", "deleted"]


def test_what_was_kept_goes_when_its_time_is_over(world):
    world.start("a")
    world.move("a")
    world.reaper.put_down("a", world.life("a"), world.now)
    assert world.reaper.retire(world.now + 99) == 0 and world.containers.all == {"a": False}
    assert world.reaper.retire(world.now + 100) == 1
    assert world.containers.all == {} and world.state("a") is State.DELETED
    assert world.reaper.retire(world.now + 1000) == 0


def test_no_more_are_kept_than_the_limit(redis_url):
    world = World(redis_url, ROCK_RUNTIME__KEEP_STOPPED_LIMIT="2")
    for name, retention in (("a", 300.0), ("b", 100.0), ("c", 200.0)):
        world.start(name, retention=retention)
        world.move(name)
        world.reaper.put_down(name, world.life(name), world.now)
    world.reaper.run(world.now)
    assert set(world.containers.all) == {"a", "c"} and world.state("b") is State.DELETED
    world.redis.close()


def test_a_dead_container_is_cleared_away_in_time(world):
    world.start("dead", retention=0.0)
    world.containers.stop("dead")
    world.move("dead", event=Event.GONE)
    world.reaper.retire(world.now)
    assert world.containers.all == {} and world.state("dead") is State.STOPPED, "how it died stays known"


def test_containers_are_compared_with_the_records(world):
    for name in ("runs", "starts", "stopped", "went", "gone", "nobodys", "elsewhere", "old"):
        world.start(name, running=name != "starts", retention=0.0 if name == "old" else 100.0,
                    node="n2" if name == "elsewhere" else "n1")  # fmt: skip
    world.move("stopped")  # on paper, while this node was silent: its processes go on
    world.move("went")
    world.containers.stop("went")
    world.move("old")
    world.containers.remove("gone")
    world.redis.delete(world.sandboxes._keys.sandbox("nobodys"))
    assert world.reaper.adopt(world.now) == 3
    assert world.containers.all == {"runs": True, "starts": True, "stopped": False, "went": False}
    assert world.sandboxes.get("gone").stop_event == Event.GONE


@pytest.mark.parametrize("fault", [Internal("removal is in progress"), OSError("no space left")])
def test_what_cannot_be_cleared_away_keeps_nothing_else_from_its_end(world, fault):
    for name in ("expired", "retired", "nobodys", "gone"):
        for place in ("a-bad", "b-good"):
            world.start(f"{place}-{name}", retention=100.0 if name == "retired" else 0.0)
    for place in ("a-bad", "b-good"):
        world.move(f"{place}-retired")
        world.containers.stop(f"{place}-retired")
        world.move(f"{place}-nobodys")
        world.redis.zrem(world.sandboxes._keys.node_stopped("n1"), f"{place}-nobodys")
        world.containers.remove(f"{place}-gone")
        world.redis.zrem(world.sandboxes._keys.node_leases("n1"), f"{place}-gone")
    bad = [name for name in [*world.containers.all, "a-bad-gone"] if name.startswith("a-bad")]
    world.containers.stuck = dict.fromkeys(bad, fault)
    world.reaper.run(world.now + 100)
    assert set(world.containers.all) == set(bad) - {"a-bad-gone"}
    assert world.sandboxes.get("b-good-gone").stop_event == Event.GONE and world.state("a-bad-gone") is State.RUNNING
    world.containers.stuck.clear()
    world.reaper.retire(world.now + 101)
    world.reaper.adopt(world.now + 101)
    assert not world.containers.all and world.state("a-bad-retired") is State.DELETED


def test_redis_away_ends_a_round(world):
    for name in ("a", "b"):
        world.start(name)
        world.move(name)
    world.containers.stuck = {"a": DatabaseAway(), "b": AssertionError("nothing is tried without Redis")}
    with pytest.raises(DatabaseAway):
        world.reaper.retire(world.now + 100)


def test_a_restart_and_a_removal_take_turns(world):
    turns, order = Turns(), []
    inside = threading.Event()

    def wait_for_it():
        inside.set()
        with turns.of("a"):
            order.append("second")

    with turns.of("a"), turns.of("b"):
        thread = threading.Thread(target=wait_for_it)
        thread.start()
        assert inside.wait(5)
        order.append("first")
    thread.join(5)
    assert order == ["first", "second"] and turns._locks == {}


def test_a_sandbox_that_was_started_again_is_left_alone(world):
    world.start("a")
    world.move("a")
    old = world.sandboxes.get("a")
    retired = world.sandboxes.retired
    new = replace(old, state=State.PENDING, start_call=call_id("", "restart"))
    call = Call(new.start_call, "restart", "", "restart", "a", created=time.time())

    def restarted_in_between(*args):
        found = retired(*args)
        world.line.restart(new, call, world.now, old.start_call)
        return found

    world.sandboxes.retired = restarted_in_between
    assert world.reaper.retire(world.now + 100) == 0
    assert "a" in world.containers.all and world.state("a") is State.PENDING


def test_after_a_time_without_a_whole_round_everything_is_compared(redis_url):
    """Others take a node for lost that Redis does not hear of; here within 50 ms."""
    times = {"ROCK_NODE__LOST_AFTER_SECONDS": "0.6", "ROCK_NODE__HEARTBEAT_SECONDS": "0.55"}
    world = World(redis_url, **times)
    world.start("a", retention=0.0)
    world.reaper.run(world.now)
    world.move("a")
    world.sandboxes.forget_stopped("n1", "a")
    begun = time.monotonic()
    until(lambda: time.monotonic() - begun > 0.06)
    world.reaper.run(world.now + 1)
    assert world.containers.all == {}
    world.redis.close()
