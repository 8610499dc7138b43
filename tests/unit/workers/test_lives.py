"""Work on one life of a sandbox that comes late, or again after a crash: it leaves the next life alone. Real Redis, an engine that is a table."""

import threading
import time
import uuid
from dataclasses import replace
from types import SimpleNamespace

import pytest

from app.calls import Call, Route, call_id
from app.config import load
from app.database import connect
from app.gate_store import GateStore
from app.image_store import ImageStore
from app.keys import Keys
from app.line import Line
from app.node_store import NodeStore
from app.records import Event, NodeRecord, SandboxRecord, State
from app.results import ResultStore
from app.stock import Stock
from app.store import SandboxStore
from app.stores import Stores
from rock.errors import ImageNotFound, StartFailed, success
from tests.wire import until
from workers.agent import NodeAgent
from workers.deployments.abstract import Pull
from workers.deployments.faults import DiskFull, DiskFullForImage
from workers.image_gate import ImageGate
from workers.lifecycle import NodeLifecycle


class Engine:
    """Containers by sandbox id: whether they run."""

    mark = "n1"

    def __init__(self) -> None:
        self.all: dict[str, bool] = {}
        # Which images are being fetched, each time; it ends when `pulled` is set.
        self.pulls: list[str] = []
        self.pulled = threading.Event()
        # How full the disk is, None: nobody can see that.
        self.percent: float | None = 99.0
        self.images = SimpleNamespace(disk_percent=lambda: self.percent, take_back=lambda repository: None)

    isolation = False

    def prepare_image(self, image, pull, **options):
        if pull is Pull.NEVER:
            raise ImageNotFound(image)
        self.pulls.append(image)
        assert self.pulled.wait(20)
        raise StartFailed("no such image")

    def stop(self, sandbox_id):
        self.all[sandbox_id] = False

    def remove(self, sandbox_id):
        self.all.pop(sandbox_id, None)


class Relay:
    """Keeps what is to be called when a keeper answers, or does not."""

    def open(self, sandbox_id, start, then):
        self.then = then

    def holds(self, sandbox_id, call_id):
        return False


class World:
    """Node n1 with both of its sides."""

    def __init__(self, redis_url) -> None:
        prefix = f"live{uuid.uuid4().hex[:8]}:"
        environ = {"ROCK_REDIS_URL": redis_url, "ROCK_REDIS__PREFIX": prefix, "ROCK_NODE_ID": "n1"}
        self.redis, keys, self.numbers = connect(redis_url), Keys(prefix), iter(range(100))
        line = Line(self.redis, keys)
        self.stores = Stores(line, SandboxStore(self.redis, keys, line), NodeStore(self.redis, keys, line),
                             ResultStore(self.redis, keys), ImageStore(self.redis, keys), Stock(self.redis, keys),
                             GateStore(self.redis, keys))  # fmt: skip
        self.stores.nodes.register("n1", "t", NodeRecord("n1", 99.0, 2**40), time.time())
        self.engine, self.relay = Engine(), Relay()
        self.lifecycle = NodeLifecycle(load("test", environ), self.stores, None, None, self.engine)
        self.agent = NodeAgent("n1", self.stores.results, self.stores.sandboxes, None, self.engine, self.relay)

    def call(self, route, name, **body):
        """Return a call that is not made yet."""
        number = f"r{next(self.numbers)}"
        return Call(call_id("", number), number, "", route.value, name, body, "n1", time.time())

    def start(self, name, running=True, image="x", retention=100.0, **body):
        """Begin a first life; return its start."""
        call = self.call(Route.START, name, image=image, **body)
        record = SandboxRecord(
            name, "", "", 1.0, 1, 60.0, call.created, retention, start_call=call.call_id, spec={"image": "x"}
        )
        self.stores.line.enter(record, call, call.created)
        self.engine.all[name] = True
        assert not running or self.runs(name)
        return call

    def restart(self, name, running=True):
        """Begin the life after the one that has ended."""
        old, call = self.stores.sandboxes.get(name), self.call(Route.RESTART, name)
        new = replace(old, state=State.PENDING, start_call=call.call_id)
        self.stores.line.restart(new, call, call.created, old.start_call)
        self.engine.all[name] = True
        assert not running or self.runs(name)

    def runs(self, name):
        now, life = time.time(), self.stores.sandboxes.get(name).start_call
        moved = self.stores.sandboxes.transition(name, [State.PENDING], State.RUNNING, Event.STARTED, now)
        return moved and self.stores.results.complete(life, success({}), now)

    def ends(self, name):
        living = [State.PENDING, State.RUNNING]
        return self.stores.sandboxes.transition(name, living, State.STOPPED, Event.STOP, time.time())

    def stop(self, name):
        """Return a stop of the present life that is in flight on the node."""
        call = replace(self.call(Route.STOP, name), life=self.stores.sandboxes.get(name).start_call)
        self.stores.results.claim(call, call.created, need_running=False)
        return call

    def state(self, name):
        return self.stores.sandboxes.get(name).state


@pytest.fixture
def world(redis_url):
    made = World(redis_url)
    yield made
    made.redis.close()


@pytest.mark.parametrize("running", [True, False])
def test_a_stop_done_again_leaves_the_next_life_alone(world, running):
    """The lifecycle worker died between the record and the answer, and the owner has started the sandbox again since."""
    world.start("a")
    stop = world.stop("a")
    assert world.ends("a")
    world.restart("a", running)
    world.lifecycle.stop(stop.call_id)
    assert world.state("a") is (State.RUNNING if running else State.PENDING) and world.engine.all == {"a": True}
    assert world.stores.results.load(stop.call_id).envelope["status"] == "Success"
    world.lifecycle.stop(world.stop("a").call_id)
    assert world.state("a") is State.STOPPED


def test_a_stop_does_not_wait_for_what_its_own_life_is_doing(world):
    """A container that is being made, a commit."""
    world.start("a")
    with world.lifecycle.turns.of("a"):
        world.lifecycle.stop(world.stop("a").call_id)
        assert world.state("a") is State.STOPPED and world.engine.all == {"a": False}


def test_a_stop_that_goes_without_the_turn_is_answered_when_its_container_is_gone(world):
    """Nothing keeps the next life back then, and a container is removed by its name."""
    world.start("a", retention=0.0)
    stop, removed = world.stop("a"), world.engine.remove

    def remove(sandbox_id):
        assert not world.stores.results.load(stop.call_id).done, "its owner could start it again"
        removed(sandbox_id)

    world.engine.remove = remove
    with world.lifecycle.turns.of("a"):
        world.lifecycle.stop(stop.call_id)
    assert world.engine.all == {} and world.stores.results.load(stop.call_id).envelope["status"] == "Success"


def test_a_stop_that_cannot_remove_the_container_is_answered(world):
    world.start("a", retention=0.0)
    stop = world.stop("a")

    def remove(sandbox_id):
        raise StartFailed("removal is in progress")

    world.engine.remove = remove
    with world.lifecycle.turns.of("a"):
        world.lifecycle.stop(stop.call_id)
    assert world.stores.results.load(stop.call_id).envelope["status"] == "Success"


def test_a_stop_that_goes_without_the_turn_leaves_a_life_alone_that_began_meanwhile(world):
    """Somebody else started it again while the engine was killing what ran."""
    world.start("a", retention=0.0)
    stop, stopped = world.stop("a"), world.engine.stop

    def stop_slowly(sandbox_id):
        stopped(sandbox_id)
        world.start("a")

    world.engine.stop = stop_slowly
    with world.lifecycle.turns.of("a"):
        world.lifecycle.stop(stop.call_id)
    assert world.engine.all == {"a": True} and world.state("a") is State.RUNNING
    assert world.stores.results.load(stop.call_id).envelope["status"] == "Success"


def test_the_next_life_waits_for_the_end_of_the_one_before(world):
    world.start("a")
    stopped, held = world.engine.stop, []

    def stop(sandbox_id):
        held.append(world.lifecycle.turns._locks["a"][0].locked())
        stopped(sandbox_id)

    world.engine.stop = stop
    world.lifecycle.stop(world.stop("a").call_id)
    assert held == [True] and world.lifecycle.turns._locks == {}


@pytest.mark.parametrize("error", [StartFailed("no answer"), None])
def test_a_start_that_is_over_does_not_undo_the_next_life(world, error):
    """Its keeper answers, or is given up, when the owner has stopped the sandbox and started it again."""
    first = world.start("a", running=False)
    world.agent.opened(first.call_id)
    world.ends("a")
    world.restart("a")
    world.relay.then(error)
    assert world.engine.all == {"a": True} and world.state("a") is State.RUNNING
    assert world.stores.results.load(first.call_id).envelope["status"] == "Failed"


@pytest.mark.parametrize("error", [StartFailed("no answer"), None])
def test_a_start_that_comes_to_nothing_leaves_no_container(world, error):
    first = world.start("a", running=False)
    world.agent.opened(first.call_id)
    if error is None:
        world.ends("a")
    world.relay.then(error)
    assert world.engine.all == {} and world.state("a") is State.STOPPED


@pytest.mark.parametrize("error", [StartFailed("no answer"), None])
def test_a_start_that_is_completed_twice_keeps_the_container_of_what_has_run_since(world, error):
    """Its message and the recovery brought it to the session side; between the two its owner stopped the sandbox, to start it again."""
    first = world.start("a", running=False)
    world.agent.opened(first.call_id)
    then = world.relay.then
    world.agent.opened(first.call_id)
    then(None)
    assert world.ends("a")
    world.relay.then(error)
    assert world.engine.all == {"a": True} and world.stores.sandboxes.get("a").kept
    assert world.stores.results.load(first.call_id).envelope["status"] == "Success"


def test_starts_are_done_again_beside_each_other_and_keep_nothing_else_waiting(world):
    """The lifecycle worker was killed while it fetched images, and a stop was lost with it."""
    starts = [world.start(name, running=False, image=f"slow:{name}") for name in "bcd"]
    world.start("a")
    stop = world.stop("a")
    assert world.lifecycle.recover(time.time(), all=True) == 4
    until(lambda: len(world.engine.pulls) == 3, 20, "the starts")
    until(lambda: world.stores.results.load(stop.call_id).done, 20, "the stop")
    assert world.lifecycle.recover(time.time(), all=True) == 0, "they are in hand"
    world.engine.pulled.set()
    until(lambda: all(world.stores.results.load(start.call_id).done for start in starts), 20, "the ends of the starts")
    assert sorted(world.engine.pulls) == ["slow:b", "slow:c", "slow:d"]
    assert [world.state(name) for name in "abcd"] == [State.STOPPED] * 4


def test_C07_starts_that_wait_for_their_images_hold_no_thread_of_those_that_stop(world):
    """As many slow pulls as there may be: whoever brought the starts is free at once, and a message that comes again does nothing."""
    starts = [world.start(f"s{number}", running=False, image=f"slow:{number}") for number in range(30)]
    for start in starts:
        world.lifecycle.start(start.call_id)
        world.lifecycle.start(start.call_id)
    until(lambda: len(world.engine.pulls) == 30, 20, "the pulls")
    assert world.lifecycle.recover(time.time(), all=True) == 0, "they are in hand"
    world.start("a")
    world.lifecycle.stop(world.stop("a").call_id)
    assert world.state("a") is State.STOPPED
    world.engine.pulled.set()
    until(lambda: all(world.stores.results.load(start.call_id).done for start in starts), 20, "the ends of the starts")
    assert len(world.engine.pulls) == 30


def test_C07_starts_under_a_name_that_is_being_pushed_hold_no_thread_of_those_that_stop(world):
    """The registry may take for ever."""
    gate, asked = ImageGate(0.0), []

    def prepare(image, pull, deadline, **options):
        with gate.using(image, deadline):
            asked.append(pull)
            raise StartFailed("its name was free")

    world.engine.prepare_image = prepare
    with gate.alone("x", 1):
        call = world.start("a", running=False, startup_timeout=15)
        world.lifecycle.start(call.call_id)
        assert world.state("a") is State.PENDING and not asked
        assert world.lifecycle.recover(time.time(), all=True) == 0, "it is in hand"
    until(lambda: world.stores.results.load(call.call_id).done, 20, "the end of the start")
    assert asked == [Pull.MISSING] and "its name was free" in world.stores.results.load(call.call_id).envelope["error"]


@pytest.mark.parametrize("fault", [DiskFull, DiskFullForImage])
@pytest.mark.parametrize("others", [0, 1])
def test_R07_a_full_disk_fails_a_start_only_where_no_other_node_could_take_it(world, fault, others):
    """It fails at once then, and may be tried again."""
    call = world.start("a", running=False)

    def prepare(image, pull, **options):
        raise fault("cannot start: disk full on the node (no space left on device)")

    world.engine.prepare_image = prepare
    if others:
        world.stores.nodes.register("n2", "t", NodeRecord("n2", 9.0, 2**40), time.time())
    world.lifecycle.start(call.call_id)
    record, answer = world.stores.sandboxes.get("a"), world.stores.results.load(call.call_id).envelope
    if others:
        assert (record.node, record.state, answer) == ("n2", State.PENDING, None)
        world.ends("a")
        return
    result = answer["result"]
    assert (record.state, result["code"], result["retryable"]) == (State.STOPPED, 5000, True) and "disk full" in answer[
        "error"
    ]
    assert world.stores.nodes.get("n1").full_until == 0, "it is the only one, and tells each start"


@pytest.mark.parametrize("percent", [50.0, None])
def test_R07_words_that_a_registry_can_send_close_no_node(world, percent):
    """The disk has to be near full indeed, and where nobody can see that the start fails."""
    call = world.start("a", running=False)
    world.engine.percent = percent

    def prepare(image, pull, **options):
        raise DiskFullForImage("cannot pull: disk full on the node (no space left on device)")

    world.engine.prepare_image = prepare
    world.stores.nodes.register("n2", "t", NodeRecord("n2", 9.0, 2**40), time.time())
    world.lifecycle.start(call.call_id)
    assert (world.stores.sandboxes.get("a").node, world.state("a")) == ("n1", State.STOPPED)
    assert "disk full" in world.stores.results.load(call.call_id).envelope["error"]
    assert world.stores.nodes.get("n1").full_until == 0


def test_R07_a_disk_that_was_full_during_the_fetch_counts_though_it_has_room_when_that_has_failed(world):
    """The engine removes what it could not fetch whole."""
    call = world.start("a", running=False)

    def prepare(image, pull, **options):
        if pull is Pull.NEVER:
            raise ImageNotFound(image)
        assert world.engine.pulled.wait(20)
        raise DiskFullForImage("cannot pull: disk full on the node (no space left on device)")

    world.engine.prepare_image = prepare
    world.stores.nodes.register("n2", "t", NodeRecord("n2", 9.0, 2**40), time.time())
    world.lifecycle.start(call.call_id)
    world.lifecycle.watch_disk(time.time())
    world.engine.percent = 50.0
    world.engine.pulled.set()
    until(lambda: world.stores.sandboxes.get("a").node == "n2", 20, "the other node")
    world.ends("a")
