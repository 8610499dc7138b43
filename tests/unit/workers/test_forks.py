"""Forks on a node, as far as no container is needed: done again, refused half-way, cleared away. Real Redis, an engine that is a table."""

import json
import threading
import uuid
from dataclasses import replace

import pytest

from app.calls import Call, Route, call_id
from app.config import load
from app.database import connect
from app.keys import Keys
from app.line import Line
from app.node_store import NodeStore
from app.records import Event, NodeRecord, SandboxRecord, State
from app.references import is_own
from app.stores import make_stores
from rock.errors import Internal, NodeLost, StartFailed, success
from tests.wire import until
from workers.forks import Forks
from workers.turns import Turns

GB = 1024**3


class Engine:
    """Images by name, each with the sandboxes that use it."""

    mark = "n1"

    def __init__(self):
        self.all: dict[str, set[str]] = {}
        self.commits, self.fault = [], None

    @property
    def images(self):
        return self

    def has(self, image):
        return image in self.all

    def names(self):
        return list(self.all)

    def commit(self, sandbox_id, image):
        self.commits.append((sandbox_id, image))
        if self.fault:
            raise self.fault
        self.all[image] = set()

    def evict(self, image, asked_for):
        if self.all.get(image):
            return False
        return self.all.pop(image, None) is not None


class World:
    """Node n1 with a running sandbox `a`; starts come up, or fail, as soon as `node` sees them."""

    def __init__(self, redis_url):
        self.keys = keys = Keys(f"fork{uuid.uuid4().hex[:8]}:")
        environ = {"ROCK_REDIS_URL": redis_url, "ROCK_REDIS__PREFIX": keys.prefix, "ROCK_NODE_ID": "n1"}
        self.config, self.redis = load("test", environ), connect(redis_url)
        line = Line(self.redis, keys)
        self.stores = replace(
            make_stores(self.config, self.redis, None), line=line, nodes=NodeStore(self.redis, keys, line)
        )
        self.now = self.stores.results.clock()
        self.stores.nodes.register("n1", "t", NodeRecord("n1", 8.0, 16 * GB), self.now)
        self.engine, self.down, self.failing = Engine(), [], set()
        self.forks = self.process()
        spec = {"image": "x:1", "memory": "1g", "metadata": {"a": 1}}
        record = SandboxRecord("a", "ann", "", 1.0, GB, 60.0, self.now, 9.0, start_call="life", spec=spec)
        line.enter(
            record, Call("life", "life", "ann", "start", "a", {}, created=self.now, deadline=self.now + 60), self.now
        )
        self.comes_up("a", "life")

    def process(self):
        """Return the forks of a process of this node."""
        return Forks(self.config, self.stores, self.engine, Turns(), self)

    def put_down(self, sandbox_id, life, now):
        """Stands in for the reaper."""
        self.down.append(sandbox_id)
        for users in self.engine.all.values():
            users.discard(sandbox_id)

    def comes_up(self, sandbox_id, life):
        assert self.stores.sandboxes.transition(sandbox_id, [State.PENDING], State.RUNNING, Event.STARTED, self.now)
        assert self.stores.results.complete(life, success({"sandbox_id": sandbox_id}), self.now)

    def fork(self, **body):
        """Claim a fork of `a`; return the call."""
        request_id = uuid.uuid4().hex
        body = {"count": 2, "env": {}, "docker_args": [], "startup_timeout": 20.0, **body}
        call = Call(call_id("ann", request_id), request_id, "ann", Route.FORK, "a", body, created=self.now)
        self.stores.results.claim(call, self.now, need_running=False)
        return call

    def pending(self, call):
        """Return the starts of a fork that a node has to carry out."""
        found = (self.stores.results.load(id_) for id_ in self.stores.results.inflight("n1"))
        return [one for one in found if one and one.route == Route.START and call.call_id in one.request_id]

    def carry_out(self, call, failing=0):
        """Carry out a fork's starts, of which the last `failing` fail; return its answer."""
        done = threading.Event()

        def node():
            seen = 0
            while not done.wait(0.005):
                for start in self.pending(call):
                    seen += 1
                    self.one(start, seen > call.body["count"] - failing)

        thread = threading.Thread(target=node)
        thread.start()
        try:
            return self.stores.results.wait(call.call_id, 20)
        finally:
            done.set()
            thread.join()

    def one(self, start, fails):
        if fails:
            error = StartFailed("no room in the engine")
            self.stores.sandboxes.transition(
                start.sandbox_id, [State.PENDING], State.STOPPED, Event.START_FAILED, self.now
            )
            self.stores.results.fail(start.call_id, error, self.now)
        else:
            self.engine.all[start.body["image"]].add(start.sandbox_id)
            self.comes_up(start.sandbox_id, start.call_id)

    def living(self):
        return {one.sandbox_id for one in self.stores.sandboxes.list() if one.state is not State.STOPPED} - {"a"}


@pytest.fixture
def world(redis_url):
    made = World(redis_url)
    yield made
    made.stores.results.close()
    made.redis.close()


def test_forks_are_like_their_source(world):
    call = world.fork(count=3, env={"A": "b"}, docker_args=["--init"])
    world.forks.begin(call.call_id)
    answer = world.carry_out(call)
    made = [one["sandbox_id"] for one in answer["result"]["sandboxes"]]
    assert set(made) == world.living() and len(made) == 3
    for record in world.stores.sandboxes.many(made):
        assert (record.owner, record.node, record.cpus, record.memory) == ("ann", "n1", 1.0, GB)
        assert (record.lease, record.retention, record.spec["metadata"]) == (60.0, 9.0, {"a": 1})
    ((source, image),) = world.engine.commits
    assert source == "a" and is_own(image), "no caller can ask for it"
    assert world.stores.nodes.get("n1").used_cpus == 4.0


def test_each_start_is_of_the_copy_and_has_what_the_caller_said_again(world):
    call = world.fork(env={"A": "b"}, docker_args=["--init"])
    world.forks.begin(call.call_id)
    starts = until(lambda: len(world.pending(call)) == 2 and world.pending(call))
    bodies = [start.body for start in starts]
    assert {body["image"] for body in bodies} == set(world.engine.all)
    assert {(body["pull"], body["memory"], body["env"]["A"], *body["docker_args"]) for body in bodies} == {
        ("never", "1g", "b", "--init")
    }
    world.carry_out(call)


@pytest.mark.parametrize("failing", [1, 2])
def test_all_of_them_or_none(world, failing):
    call = world.fork()
    world.forks.begin(call.call_id)
    answer = world.carry_out(call, failing)
    assert (answer["status"], answer["result"]["kind"]) == ("Failed", "start_failed")
    # One that has not failed yet when the first has is ended, too.
    assert world.living() == set() and len(world.down) >= 2 - failing
    assert world.engine.all == {} and world.stores.nodes.get("n1").used_cpus == 1.0
    assert world.stores.results.inflight("n1") == []


def test_a_copy_that_fails_is_the_answer(world):
    world.engine.fault = Internal("disk full")
    call = world.fork()
    world.forks.begin(call.call_id)
    answer = world.carry_out(call)
    assert answer["status"] == "Failed" and "disk full" in answer["error"]
    assert world.living() == set()


def test_more_than_the_node_has_is_refused_before_anything_is_copied(world):
    call = world.fork(count=9)
    world.forks.begin(call.call_id)
    answer = world.carry_out(call)
    assert (answer["result"]["kind"], world.engine.commits) == ("bad_request", [])
    assert "count" in answer["error"]


def test_another_process_goes_on_where_one_was_killed(world):
    call = world.fork()
    world.forks.begin(call.call_id)
    starts = until(lambda: len(world.pending(call)) == 2 and world.pending(call))
    world.one(starts[0], fails=False)
    other = world.process()
    other.begin(call.call_id)
    answer = world.carry_out(call)
    assert {one["sandbox_id"] for one in answer["result"]["sandboxes"]} == {start.sandbox_id for start in starts}
    assert len(world.engine.commits) == 1 and world.living() == {start.sandbox_id for start in starts}


def test_its_image_goes_with_the_last_of_them(world):
    call = world.fork()
    world.forks.begin(call.call_id)
    world.carry_out(call)
    world.forks.clean(world.now)
    ((_, image),) = world.engine.commits
    assert world.engine.has(image)
    world.engine.all[image].clear()
    world.forks.clean(world.now)
    assert world.engine.has(image), "what was in use is not looked at again at once"
    world.forks.clean(world.now + 2)
    assert not world.engine.has(image)


def test_a_process_that_ends_leaves_no_image_that_nobody_uses(world):
    for _ in range(2):
        call = world.fork()
        world.forks.begin(call.call_id)
        world.carry_out(call)
    world.forks.clean(world.now)
    (_, used), (_, unused) = world.engine.commits
    world.engine.all[unused].clear()
    world.process().close(world.now)  # of a process that never had the node
    assert set(world.engine.all) == {used, unused}
    world.forks.close(world.now)
    assert set(world.engine.all) == {used}


def test_another_process_clears_away_what_it_finds(world):
    call = world.fork()
    world.forks.begin(call.call_id)
    world.carry_out(call)
    world.engine.all.update({"rock-fork-ffffffffffff:another-nodes": set(), "x:1": set()})
    ((_, image),) = world.engine.commits
    world.engine.all[image].clear()
    world.process().clean(world.now)
    assert set(world.engine.all) == {"rock-fork-ffffffffffff:another-nodes", "x:1"}


def test_the_image_of_a_fork_under_way_stays(world):
    call = world.fork()
    world.forks.begin(call.call_id)
    until(lambda: len(world.pending(call)) == 2)
    world.forks.clean(world.now + 100)
    assert len(world.engine.all) == 1
    world.carry_out(call)


def test_what_was_made_for_a_fork_that_was_given_up_meanwhile_ends(world):
    """Its node was lost, and the caller has been told; now the node is back."""
    call = world.fork()
    world.forks.begin(call.call_id)
    starts = until(lambda: len(world.pending(call)) == 2 and world.pending(call))
    world.one(starts[0], fails=False)
    world.stores.results.fail(call.call_id, NodeLost("n1"), world.now)
    world.stores.results.fail(starts[1].call_id, NodeLost("n1"), world.now)
    until(lambda: world.living() == set() and not world.engine.all)
    assert world.down[0] == starts[0].sandbox_id


def test_so_does_it_when_the_worker_was_killed_too(world):
    call = world.fork()
    world.forks.begin(call.call_id)
    for start in until(lambda: len(world.pending(call)) == 2 and world.pending(call)):
        world.one(start, fails=False)
    until(lambda: world.stores.results.load(call.call_id).done)
    # As if the others' answer had been the first.
    key = world.keys.call(call.call_id)
    world.redis.hset(key, "envelope", json.dumps(NodeLost("n1").to_envelope()))
    world.process().clean(world.now)
    assert world.living() == set() and not world.engine.all
