"""Blobs, the watch, the sweep, the broker's settings and the inbox's manners."""

import threading
import time

import pytest

from app.blobs import CHUNK, WINDOW, BlobStore
from app.broker import NodeTask, make_celery
from app.config import load
from app.database import connect, redis_faults
from app.records import Event, State
from app.sweep import FORGET_AFTER, Sweep
from app.watch import Watch
from rock.errors import Unavailable


@pytest.fixture
def blobs(world, redis_url):
    client = connect(redis_url, decode_responses=False)
    yield BlobStore(client, world.keys)
    client.close()


def test_a_file_arrives_whole_and_bounded(world, blobs):
    data, got, longest = bytes(range(256)) * (20 * CHUNK // 256), [], 0

    def receive():
        receiver = blobs.receiver("c")
        while chunk := receiver.pull(5):
            got.append(chunk)

    thread = threading.Thread(target=receive)
    thread.start()
    sender = blobs.sender("c")
    for start in range(0, len(data), CHUNK):
        assert sender.push(data[start : start + CHUNK], 5)
        longest = max(longest, world.redis.llen(world.keys.blob("c")))
    assert sender.finish(5)
    thread.join(5)
    assert b"".join(got) == data
    assert longest <= WINDOW
    assert world.raw_keys() == set()


def test_nobody_receives(world, blobs):
    sender = blobs.sender("c")
    assert all(sender.push(b"x", 0.01) for _ in range(WINDOW))
    assert not sender.push(b"x", 0.01)
    assert 0 < world.redis.ttl(world.keys.blob("c")) <= 600
    blobs.drop("c")
    assert world.raw_keys() == set()


def test_nobody_sends(blobs):
    with pytest.raises(Unavailable, match="stopped coming"):
        blobs.receiver("c").pull(0.01)


def test_a_second_receiver_notices_the_hole(blobs):
    sender = blobs.sender("c")
    sender.push(b"abc", 1)
    sender.push(b"def", 1)
    assert blobs.receiver("c").pull(1) == b"abc"
    with pytest.raises(Unavailable, match="part of the file was lost"):
        blobs.receiver("c").pull(1)


def test_watch_answers_for_a_lost_node(world):
    world.node()
    world.running()
    call = world.call("r")
    world.results.claim(call, world.now)
    watch = Watch(world.stores, tick=3600)
    assert watch.tick(5000) == []
    with watch.over(call, "n1"):
        assert watch.tick(1010) == []
        assert watch.tick(1016) == [call.call_id]
    assert watch.tick(1016) == []
    watch.close()
    result = world.results.load(call.call_id).envelope["result"]
    assert (result["kind"], result["retryable"]) == ("node_lost", True)


def test_watch_gives_back_the_room_of_a_start_on_a_lost_node(world):
    """The node may be back before any sweep has seen it lost."""
    world.node()
    assert world.create().node == "n1"
    call_id = world.sandboxes.get("s1").start_call
    watch = Watch(world.stores, tick=3600)
    with watch.over(world.results.load(call_id), "n1"):
        assert watch.tick(world.now + 16) == [call_id]
    watch.close()
    record = world.sandboxes.get("s1")
    assert (record.state, record.stop_event) == (State.STOPPED, Event.NODE_LOST.value)
    assert world.nodes.get("n1").used_cpus == 0
    assert world.results.load(call_id).envelope["result"]["kind"] == "node_lost"


def test_watch_follows_a_start_that_was_moved_to_another_node(world):
    """The disk of the first was full."""
    world.now = time.time()
    world.node("a")
    claim = world.create()
    call, watch = world.results.load(world.sandboxes.get("s1").start_call), Watch(world.stores, tick=3600)
    world.node("b")
    with watch.over(call, claim.node):
        assert claim.node == "a" and world.line.displace(call, "a", world.now, 60.0)
        world.nodes.heartbeat("b", "t", world.now + 20)
        assert watch.tick(world.now + 21) == [], "the silence of the first is none of its business"
        assert world.sandboxes.get("s1").state is State.PENDING
        assert watch.tick(world.now + 41) == [call.call_id]
    watch.close()
    assert "node b was lost" in world.results.load(call.call_id).envelope["error"]
    assert world.nodes.get("b").used_cpus == 0


def sweep(world):
    return Sweep(world.stores)


def test_sweep_leaves_the_living_alone(world):
    world.node()
    world.running()
    world.results.claim(world.call("r"), world.now)
    assert sweep(world).run(1010) == 0


def test_sweep_answers_for_a_lost_node(world):
    world.node()
    world.running("a")
    world.create("b")
    call = world.call("r", sandbox_id="a")
    world.results.claim(call, world.now)
    assert sweep(world).run(1016) == 2
    assert world.results.load(call.call_id).envelope["result"]["kind"] == "node_lost"
    record = world.sandboxes.get("b")
    assert (record.state, record.stop_event) == (State.STOPPED, Event.NODE_LOST.value)
    # What ran may be alive still: it is, when its node comes back.
    assert world.sandboxes.get("a").state is State.RUNNING
    assert sweep(world).run(1016) == 0


def test_sweep_ends_leases_of_a_lost_node_and_forgets_it(world):
    world.node()
    world.running(lease=60)
    sweep(world).run(1061)
    assert world.sandboxes.get("s1").stop_event == Event.EXPIRED.value
    assert world.nodes.get("n1").used_cpus == 0
    sweep(world).run(1000 + FORGET_AFTER + 1)
    assert world.nodes.list() == []


def test_sweep_fails_what_no_node_took(world):
    world.node()
    world.running()
    late, taken = world.call("late"), world.call("taken")
    for call in (late, taken):
        object.__setattr__(call, "deadline", 1005.0)
        world.results.claim(call, world.now)
    world.results.take(taken.call_id, world.now)
    assert sweep(world).run(1006) == 1
    assert world.results.load(late.call_id).envelope["result"]["kind"] == "unavailable"
    assert not world.results.load(taken.call_id).done


def test_X15_broker_settings_and_queues():
    """Data only: whoever writes to Redis must not be able to run code in the service."""
    celery = make_celery(load(environ={"ROCK_NODE_ID": "n1"}))
    assert celery.conf.accept_content == ["json"]
    assert celery.conf.result_backend is None
    assert not celery.conf.task_acks_late
    assert {queue.name: queue.no_ack for queue in celery.conf.task_queues} == {
        "control": False,
        "node.n1": True,
        "node.n1.lifecycle": False,
    }
    assert NodeTask.CALL.queue("n2") == "node.n2"
    assert NodeTask.STOP.queue("n2") == "node.n2.lifecycle"


def test_redis_faults_become_ours():
    client = connect("redis://127.0.0.1:1/0")
    with pytest.raises(Unavailable), redis_faults():
        client.ping()


def test_sweep_forgets_a_node_that_signed_off_and_is_empty(world):
    world.node()
    world.running()
    call = world.call("r")
    world.results.claim(call, world.now)
    world.nodes.leave("n1", "t")
    assert sweep(world).run(1010) == 0, "it may be back within its time"
    assert sweep(world).run(1016) == 1
    assert world.nodes.get("n1"), "its sandbox is still there"
    world.stop()
    sweep(world).run(1017)
    assert world.nodes.get("n1") is None
