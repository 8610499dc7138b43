"""How a node keeps its pool: one start at a time, no more than it has room for, nothing in the way of others. Real Redis, no containers."""

import json
import time
import uuid
from dataclasses import replace

import pytest

from app.calls import Call, call_id
from app.config import load
from app.database import connect
from app.image_store import Home
from app.keys import Keys
from app.line import Line
from app.node_store import NodeStore
from app.records import Event, NodeRecord, NodeState, SandboxRecord, State
from app.stock import offer
from app.stores import make_stores
from app.sweep import Sweep
from rock.actions import StartRequest
from rock.errors import ImageNotFound, success
from workers.pool import LONGEST_PAUSE, Pool

GB = 1024**3
KINDS = [{"image": "a:1", "count": 2, "cpus": 1, "memory": "1g"}, {"image": "b:1", "cpus": 2, "memory": "1g"}]


class World:
    """Node n1 of 8 CPUs, and its pool; what that starts comes up when the test says so."""

    def __init__(self, redis_url, kinds=KINDS):
        self.url, self.keys = redis_url, Keys(f"pool{uuid.uuid4().hex[:8]}:")
        self.redis = connect(redis_url)
        self.line = Line(self.redis, self.keys)
        nodes = NodeStore(self.redis, self.keys, self.line)
        self.stores = replace(make_stores(self.configured(kinds), self.redis, None), line=self.line, nodes=nodes)
        self.now = time.time()
        self.stores.nodes.register("n1", "t", NodeRecord("n1", 8.0, 16 * GB), self.now)
        self.started, self.ended, self.busy = [], [], False
        self.pool = self.process(kinds)

    def configured(self, kinds):
        environ = {"ROCK_REDIS_URL": self.url, "ROCK_REDIS__PREFIX": self.keys.prefix, "ROCK_NODE_ID": "n1"}
        return load("test", {**environ, "ROCK_POOL__SANDBOXES": json.dumps(kinds)})

    def process(self, kinds=KINDS):
        """Return the pool of a process of this node."""
        config, end = self.configured(kinds), lambda *what: self.ended.append(what[0])
        return Pool(config, self.stores, self.started.append, end, lambda: self.busy)

    def look(self, seconds=1.0):
        self.now += seconds
        self.stores.nodes.heartbeat("n1", "t", self.now)
        self.pool.look(self.now)

    def comes_up(self, name):
        assert self.stores.sandboxes.transition(name, [State.PENDING], State.RUNNING, Event.STARTED, self.now)
        assert self.stores.results.complete(name, success({}), self.now)

    def fails(self, name):
        error = ImageNotFound("no such image")
        self.stores.sandboxes.transition(name, [State.PENDING], State.STOPPED, Event.START_FAILED, self.now)
        self.stores.results.fail(name, error, self.now)

    def fill(self):
        """Look until nothing more is started."""
        for _ in range(10):
            self.look()
            for name in self.started:
                if self.stores.sandboxes.get(name).state is State.PENDING:
                    self.comes_up(name)
        return self.images()

    def images(self):
        records = self.stores.sandboxes.many(self.stores.stock.ids("n1"))
        return sorted(record.spec["image"] for record in records)

    def other(self, cpus):
        """Place somebody's start."""
        id_ = call_id("", uuid.uuid4().hex)
        call = Call(id_, id_, "", "start", id_, {}, created=self.now, deadline=self.now + 60)
        record = SandboxRecord(id_, "", "", cpus, GB, 60.0, self.now, start_call=id_, spec={"image": "z"})
        return self.line.enter(record, call, self.now), id_

    def take(self, **wishes):
        request, id_ = StartRequest(**wishes), call_id("", uuid.uuid4().hex)
        call = Call(id_, id_, "", "start", id_, {}, created=self.now, deadline=self.now + 60)
        record = SandboxRecord(id_, "", "", request.cpus, GB, 60.0, self.now, start_call=id_, spec={"image": "a:1"})
        claim = self.line.enter(record, call, self.now, offer(request, record, self.now, 60.0))
        return json.loads(claim.envelope)["result"]["sandbox_id"] if claim.envelope else ""


@pytest.fixture
def make(redis_url):
    """A function that makes a World."""
    made = []

    def make_world(**options):
        made.append(World(redis_url, **options))
        return made[-1]

    yield make_world
    for one in made:
        one.redis.close()


@pytest.fixture
def world(make):
    return make()


def test_it_starts_what_is_missing_one_at_a_time(world):
    world.look()
    world.look()
    assert len(world.started) == 1
    call = world.stores.results.load(world.started[0])
    assert (call.route, call.node, call.body["image"], call.body["cpus"]) == ("start", "n1", "a:1", 1.0)
    world.comes_up(world.started[0])
    assert world.fill() == ["a:1", "a:1", "b:1"]
    assert len(world.started) == 3 and world.ended == []


def test_what_was_taken_is_replaced(world):
    world.fill()
    taken = world.take(image="a:1", cpus=1, memory="1g")
    assert taken in world.started
    assert world.fill() == ["a:1", "a:1", "b:1"]
    assert taken not in world.stores.stock.ids("n1") and len(world.started) == 4


def test_it_waits_while_somebodys_sandbox_comes_up(world):
    world.busy = True
    world.look()
    assert world.started == []


def test_it_keeps_no_more_than_there_is_room_for(world):
    world.fill()
    first, _ = world.other(4.0)
    assert first.node == "n1" and world.fill() == ["a:1", "a:1", "b:1"]
    second, id_ = world.other(3.0)
    assert second.node == "n1"
    world.look()
    assert world.images() == ["a:1"] and len(world.ended) == 2
    assert {world.stores.sandboxes.get(name).state for name in world.ended} == {State.STOPPED}
    world.stores.sandboxes.transition(id_, [State.PENDING], State.STOPPED, Event.STOP, world.now)
    assert world.fill() == ["a:1", "a:1", "b:1"]


def test_a_draining_node_has_no_pool(world):
    world.fill()
    world.stores.nodes.admit("n1", NodeState.DRAINING, world.now)
    assert world.fill() == [] and len(world.ended) == 3
    world.stores.nodes.admit("n1", NodeState.ACTIVE, world.now)
    assert world.fill() == ["a:1", "a:1", "b:1"]


def test_what_the_configuration_does_not_want_any_more_ends(make):
    world = make()
    world.fill()
    world.pool = world.process(KINDS[1:])
    assert world.fill() == ["b:1"]


def test_without_a_pool_nothing_happens(make):
    world = make(kinds=[])
    assert world.fill() == [] and world.started == []


def test_a_failure_is_tried_again_less_and_less_often(world):
    moments = []
    for _ in range(300):
        world.look()
        for name in world.started[len(moments) :]:
            moments.append(world.now)
            world.fails(name)
    gaps = [round(later - earlier) for earlier, later in zip(moments, moments[1:], strict=False)]
    # Both kinds fail in turn; neither more often than once in a minute at the end.
    assert len(moments) < 30 and sum(gaps[-2:]) >= LONGEST_PAUSE / 2
    assert world.images() == []


def test_another_process_goes_on_with_what_was_begun(world):
    world.look()
    world.pool = world.process()
    world.look()
    assert len(world.started) == 1 and world.stores.results.inflight("n1") == world.started
    world.comes_up(world.started[0])
    assert world.fill() == ["a:1", "a:1", "b:1"]


def test_a_start_that_is_lost_is_made_up_for(world):
    world.look()
    world.now += 10_000
    world.stores.nodes.heartbeat("n1", "t", world.now)
    Sweep(world.stores).run(world.now)
    assert world.images() == []
    assert world.fill() == ["a:1", "a:1", "b:1"]


def test_nothing_of_an_image_is_kept_while_it_is_removed(world):
    world.fill()
    with world.pool.without("docker.io/library/a:1"):
        assert world.images() == ["b:1"]
        assert world.fill() == ["b:1"]
    assert world.fill() == ["a:1", "a:1", "b:1"]


def test_a_users_image_is_never_pooled(world):
    world.stores.images.note("a:1", Home("n1", "ann", world.now))
    assert world.fill() == ["b:1"]


def test_a_node_that_ends_leaves_no_pool(world):
    world.process().close(world.now)  # of a process that never had the node
    world.fill()
    world.take(image="a:1", cpus=1, memory="1g")
    world.look()
    world.pool.close(world.now)
    assert world.images() == [] and len(world.ended) == 3
    assert world.stores.results.inflight("n1") == []
