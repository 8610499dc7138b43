"""Choice, reservation and the lines of waiting starts, against a real Redis."""

import time

import pytest

from app.calls import ClaimWord
from app.line import Line
from app.records import Event, NodeState, PhaseName, PhaseStatus, State
from app.starts import fail_start
from app.sweep import Sweep
from rock.errors import BadRequest, NoCapacity, NotFound, Unavailable
from tests.unit.app.conftest import GB


def waiting(world):
    """Return who waits, in order of all turns."""
    lines = world.redis.zrange(world.keys.lines(), 0, -1)
    turns = [pair for line in lines for pair in world.redis.zrange(world.keys.line(line), 0, -1, withscores=True)]
    return [sandbox_id for sandbox_id, _ in sorted(turns, key=lambda pair: pair[1])]


def test_the_freest_by_its_scarcer_resource(world):
    world.node("a", cpus=4.0)
    world.node("b", cpus=4.0)
    world.create("one", cpus=1)
    world.create("two", cpus=0.1, memory=6 * GB)
    assert {world.where("one"), world.where("two")} == {"a", "b"}
    assert world.create("three", cpus=0.1).node == world.where("one")


def test_A19_as_many_wait_as_may(world):
    world.line = Line(world.redis, world.keys, longest=2)
    world.node()
    world.create("runs", cpus=2)
    assert [world.create(name).word for name in ("w1", "w2")] == [ClaimWord.NEW] * 2
    with pytest.raises(Unavailable, match="2 starts wait") as refused:
        world.create("w3")
    assert (refused.value.http_status, refused.value.retryable) == (503, True)
    assert world.sandboxes.get("w3") is None and waiting(world) == ["w1", "w2"]
    assert world.create("w1").word is ClaimWord.ATTACHED, "a retry of one that waits"
    world.stop("runs")
    assert world.create("w3").word is ClaimWord.NEW, "the two have room now"


def test_it_spreads(world):
    for name in "abcd":
        world.node(name, cpus=4.0)
    for index in range(8):
        world.create(f"s{index}", cpus=0.5)
    assert [node.used_cpus for node in world.nodes.list()] == [1.0] * 4


def test_a_small_idle_node_does_not_hide_a_large_one(world):
    for index in range(40):
        world.node(f"small{index}", cpus=2.0)
    world.node("large", cpus=64.0)
    world.create("first", cpus=32)
    assert world.create("s", cpus=4).node == "large"


def test_a_nodes_label_keeps_other_clusters_out(world):
    world.node("x", cluster="x", cpus=4.0)
    world.node("open", cpus=1.0)
    assert world.create("zb", cluster="zb").node == "open"
    assert world.create("any").node == "x"
    assert world.create("mine", cluster="x").node == "x"
    assert world.create("zb2", cluster="zb").node == ""
    with pytest.raises(BadRequest, match="at most 1"):
        world.create("zb3", cluster="zb", cpus=2)


def test_a_cluster_prefers_its_own_nodes(world):
    world.node("open", cpus=64.0)
    world.node("x", cluster="x")
    assert world.create("a", cluster="x", cpus=1.5).node == "x"
    assert world.create("b", cluster="x", cpus=1.5).node == "open"


def test_any_label_does(world):
    for number, label in enumerate(("../x", "ü", "a*b", "%1", "x" * 300)):
        world.node(f"n{number}", cluster=label)
        assert world.create(f"s{number}", cluster=label, cpus=2).node == f"n{number}"
    assert world.create("waits", cluster="a*b").node == ""
    assert world.sandboxes.touch("waits", world.now, "", False)[0].place == 1


def test_a_route_key_stays_on_its_node_while_it_can(world):
    for name in "abc":
        world.node(name)
    first = world.create("k1", route_key="k", cpus=0.5).node
    assert {world.create(f"k{index}", route_key="k", cpus=0.5).node for index in (2, 3, 4)} == {first}
    second = world.create("k5", route_key="k", cpus=0.5).node
    assert second and second != first
    world.stop("k1")
    assert world.create("k6", route_key="k", cpus=0.5).node == second
    world.nodes.admit(second, NodeState.DRAINING, world.now)
    assert world.create("k7", route_key="k", cpus=0.1).node not in ("", second)


def test_the_image_is_worth_half_the_room(world):
    world.node("a", cpus=4.0)
    world.node("b", cpus=4.0)
    world.nodes.set_images("b", ["docker.io/library/python:3.11", "other:1"])
    for index in range(3):
        assert world.create(f"s{index}", image="python:3.11").node == "b"
    assert world.create("full", image="python:3.11").node == "a"
    world.nodes.add_image("a", "x")
    assert world.create("x", cpus=0.1).node == "a"
    world.nodes.set_images("b", [])
    assert not [key for key in world.raw_keys() if key.startswith("node:b:images")]


def test_first_come_first_served_whatever_the_size(world):
    world.node(cpus=2.0)
    world.create("has", cpus=1)
    world.create("large", cpus=2)
    world.create("small", cpus=0.5)
    assert waiting(world) == ["large", "small"]
    assert world.sandboxes.touch("small", world.now, "", False)[0].place == 2
    world.stop("has")
    assert (world.where("large"), world.where("small")) == ("n1", "")
    world.stop("large")
    assert world.where("small") == "n1" and waiting(world) == []


def test_one_who_leaves_lets_the_next_go(world):
    world.node(cpus=2.0)
    world.create("has", cpus=1)
    world.create("large", cpus=2)
    world.create("small", cpus=0.5)
    assert world.stop("large")
    assert world.where("small") == "n1"
    assert world.sandboxes.get("large").node == ""


def test_a_line_does_not_hold_up_those_who_need_not_its_nodes(world):
    world.node("open", cpus=2.0)
    world.node("x", cluster="x", cpus=2.0)
    world.create("has", cluster="zb", cpus=2)
    world.create("zb", cluster="zb", cpus=2)
    assert world.create("mine", cluster="x", cpus=1).node == "x"
    # The shared node is zb's by turn, and "any" came after it; x's own node is free for both.
    assert world.create("any", cpus=1).node == "x"
    world.create("x2", cluster="x", cpus=0.5)
    world.stop("has")
    assert (world.where("zb"), world.where("x2")) == ("open", "")


def test_a_start_that_is_bound_to_a_node_waits_for_that_one_alone(world):
    world.node("a", cpus=2.0)
    world.node("b", cpus=2.0)
    world.create("has", cpus=1.5, only="a")
    assert world.where("has") == "a"
    assert world.create("bound", cpus=1, only="a").node == ""
    # The others pass it by, but not on its node.
    assert world.create("other", cpus=0.5).node == "b"
    assert world.create("more", cpus=1.5).node == "b"
    assert world.create("small", cpus=0.5).node == ""
    world.stop("has")
    assert world.where("bound") == "a" and world.where("small") == "a"
    with pytest.raises(BadRequest, match="at most 2"):
        world.create("large", cpus=3, only="a")
    world.now += 16
    world.nodes.heartbeat("b", "t", world.now)
    with pytest.raises(BadRequest, match="node a, which is lost"):
        world.create("lost", cpus=1, only="a")


def test_one_without_a_wish_is_overtaken_nowhere(world):
    world.node("open", cpus=2.0)
    world.node("x", cluster="x", cpus=2.0)
    world.create("a", cluster="zb", cpus=1)
    world.create("b", cluster="x", cpus=1)
    world.create("any", cpus=2)
    assert world.create("later", cluster="x", cpus=1.5).node == ""
    world.stop("b")
    assert (world.where("any"), world.where("later")) == ("x", "")
    world.stop("a")
    assert world.where("later") == "open"


@pytest.mark.parametrize("how", ["join", "resume", "return", "failure", "expiry"])
def test_whatever_gives_room_lets_the_next_go(world, how):
    world.node(cpus=1.0)
    world.create("has", cpus=1, lease=10)
    if how == "resume":
        world.stop("has")
        world.nodes.admit("n1", NodeState.DRAINING, world.now)
    if how == "return":
        world.stop("has")
        world.node("other")
        world.nodes.admit("other", NodeState.DRAINING, world.now)
        world.now += 16
        world.nodes.heartbeat("other", "t", world.now)
    assert world.create("next", cpus=1).node == ""
    if how == "join":
        world.node("other")
    elif how == "resume":
        world.nodes.admit("n1", NodeState.ACTIVE, world.now)
    elif how == "return":
        world.nodes.heartbeat("n1", "t", world.now)
    elif how == "failure":
        world.run("has", State.STOPPED, Event.START_FAILED)
    else:
        world.run("has")
        world.now += 11
        world.nodes.heartbeat("n1", "t", world.now)
        world.results.complete(world.sandboxes.get("has").start_call, {}, 1000)
        assert world.stop("has", event=Event.EXPIRED, only_expired=True)
    assert world.where("next") == ("other" if how == "join" else "n1")
    assert world.results.inflight(world.where("next"))[-1] == world.sandboxes.get("next").start_call


def test_a_start_is_over_at_its_limit_and_says_what_was_short(world):
    world.node(cpus=1.0)
    world.create("has", cpus=1)
    world.create("late", cpus=1, limit=20)
    world.create("later", cpus=1, limit=40)
    sweep = Sweep(world.stores)
    world.now += 10
    world.nodes.heartbeat("n1", "t", world.now)
    assert sweep.run(world.now) == 0
    world.now += 11
    world.nodes.heartbeat("n1", "t", world.now)
    assert sweep.run(world.now) == 1
    record = world.sandboxes.get("late")
    assert (record.state, record.stop_event) == (State.STOPPED, Event.START_FAILED.value)
    assert record.phases["image_pull"]["status"] == "failed"
    answer = world.results.load(record.start_call).envelope
    assert answer["result"]["kind"] == "no_capacity" and "at most 0 CPUs" in answer["error"]
    assert waiting(world) == ["later"]
    world.stop("has")
    call = world.results.load(world.sandboxes.get("later").start_call)
    assert call.node == "n1" and call.deadline == 1000 + 40 + 30


def test_a_limit_does_not_end_one_who_has_just_been_placed(world):
    world.node(cpus=1.0)
    world.create("has", cpus=1)
    call = world.results.load(world.sandboxes.get("has").start_call)
    assert not fail_start(world.sandboxes, world.results, call, NoCapacity("x"), world.now, only_waiting=True)
    assert world.sandboxes.get("has").state is State.PENDING


def test_a_hopeless_head_does_not_hold_up_the_others(world):
    world.node("large", cpus=4.0)
    world.node("small", cpus=1.0)
    world.create("has", cpus=1)
    world.create("has2", cpus=3)
    world.create("huge", cpus=4)
    world.create("next", cpus=0.5)
    assert waiting(world) == ["huge", "next"]
    world.stop("has2" if world.where("has") == "small" else "has")
    world.now += 16
    world.nodes.heartbeat("small", "t", world.now)
    Sweep(world.stores).run(world.now)
    assert world.results.load(world.sandboxes.get("huge").start_call).envelope["result"]["kind"] == "no_capacity"
    assert waiting(world) == ([] if world.where("next") else ["next"])


def test_the_sweep_repairs_a_lost_event(world):
    world.node(cpus=1.0)
    world.create("has", cpus=1)
    world.create("next", cpus=1)
    # Room that nobody was told of.
    world.redis.hset(world.keys.node("n1"), "cpus", 2000)
    world.redis.zadd(world.keys.free_cpus(""), {"n1": 1000})
    assert world.where("next") == ""
    Sweep(world.stores).run(world.now)
    assert world.where("next") == "n1"


def test_more_go_than_one_script_places(world):
    world.node(cpus=1.0)
    world.create("has", cpus=1)
    for index in range(150):
        world.create(f"s{index}", cpus=0.1, memory=1)
    world.node("big", cpus=64.0)
    assert waiting(world) == []
    assert world.line.waiting() == 0


def test_a_silent_or_draining_node_takes_nothing(world):
    world.node()
    world.nodes.admit("n1", NodeState.DRAINING, world.now)
    assert world.create().node == ""
    world.stop()
    world.nodes.admit("n1", NodeState.ACTIVE, world.now)
    world.now += 16
    with pytest.raises(NoCapacity, match="no node is alive"):
        world.create(request_id="again")
    assert world.redis.get(world.keys.call("again")) is None
    with pytest.raises(NotFound, match="nobody"):
        world.nodes.admit("nobody", NodeState.ACTIVE, world.now)


def test_a_drained_node_stays_so_when_its_worker_comes_back(world):
    world.node()
    world.nodes.admit("n1", NodeState.DRAINING, world.now)
    world.node()
    world.nodes.heartbeat("n1", "t", world.now)
    assert world.create().node == ""


def test_a_node_that_comes_back_under_another_label(world):
    world.node("a", cluster="x")
    world.node("a", cluster="y")
    with pytest.raises(NoCapacity, match="cluster 'x'"):
        world.create("x", cluster="x")
    assert world.create("y", cluster="y").node == "a"
    assert world.redis.smembers(world.keys.pools()) == {"y"}


def test_a_lost_node_is_met_once(world):
    world.node("dead", cpus=64.0)
    world.now += 16
    world.node("alive")
    assert world.create("a").node == "alive"
    assert world.redis.zscore(world.keys.free_cpus(""), "dead") is None
    world.nodes.heartbeat("dead", "t", world.now)
    assert world.create("b").node == "dead"


def test_a_repeated_start_keeps_its_place(world):
    world.node(cpus=1.0)
    world.create("has", cpus=1)
    world.create("a", cpus=1)
    world.create("b", cpus=1)
    assert world.create("a", cpus=1).word is ClaimWord.ATTACHED
    assert waiting(world) == ["a", "b"]
    assert world.create("a", cpus=1, request_id="other").word is ClaimWord.EXISTS


def test_nothing_is_left_of_a_forgotten_node(world):
    world.node("a", cluster="x")
    world.nodes.set_images("a", ["python:3.11"])
    assert world.nodes.forget("a", world.now + 1)
    assert world.raw_keys() == set()


@pytest.fixture
def full(world):
    """Nodes `a`, whose disk turns out to be full when it is to start `s1`, and `b`; the call of that start."""
    world.now = time.time()
    world.node("a")
    claim = world.create("s1")
    world.node("b")
    assert claim.node == "a"
    return world.results.load(world.sandboxes.get("s1").start_call)


def test_R07_a_start_that_finds_a_full_disk_goes_to_another_node(world, full):
    taken = world.results.take(full.call_id, world.now)
    world.sandboxes.set_phase("s1", PhaseName.IMAGE_PULL, PhaseStatus.RUNNING, "fetching", world.now, full.call_id)
    assert world.line.displace(taken, "a", world.now, 60.0)
    record = world.sandboxes.get("s1")
    assert (record.node, record.state, record.phases, record.has_container) == ("b", State.PENDING, {}, False)
    assert [(node.used_cpus, node.used_memory) for node in world.nodes.list()] == [(0, 0), (1.0, GB)]
    assert (world.results.inflight("a"), world.results.inflight("b")) == ([], [full.call_id])
    moved = world.results.load(full.call_id)
    assert (moved.node, moved.state, moved.deadline) == ("b", "pending", pytest.approx(full.deadline, abs=0.01))
    assert not world.line.displace(taken, "a", world.now, 60.0), "it is not that node's any more"
    assert world.create("s2").node == "b"
    world.nodes.heartbeat("a", "t", world.now)
    assert world.create("s3").node == "", "it takes nothing, though it lives"
    world.redis.hset(world.keys.node("a"), "full_until", world.now - 1)
    world.nodes.heartbeat("a", "t", world.now)
    assert world.where("s3") == "a", "a minute later it does"
    for name in ("s1", "s2", "s3"):
        world.stop(name)
    assert [(node.used_cpus, node.used_memory) for node in world.nodes.list()] == [(0, 0), (0, 0)]


def test_R07_it_stands_before_those_who_wait(world, full):
    assert [world.create(name, cpus=2).node for name in ("b1", "w1", "w2")] == ["b", "", ""]
    assert world.line.displace(full, "a", world.now, 60.0)
    assert waiting(world) == ["s1", "w1", "w2"] and set(world.line.overdue(world.now + 601)) == {"s1", "w1", "w2"}
    world.stop("b1")
    assert (world.where("s1"), waiting(world)) == ("b", ["w1", "w2"])
    world.stop("s1")
    assert world.where("w1") == "b"


def test_R07_a_start_is_put_back_twice_and_closes_no_more_nodes(world, full):
    """Whatever it is that fills each disk."""
    world.node("c")
    assert world.line.displace(full, "a", world.now, 60.0)
    second = world.where("s1")
    assert world.line.displace(full, second, world.now, 60.0)
    third = world.where("s1")
    assert {second, third} == {"b", "c"}
    assert not world.line.displace(full, third, world.now, 60.0)
    assert world.where("s1") == third and world.nodes.get(third).full_until == 0


def test_R07_a_start_that_was_stopped_meanwhile_goes_nowhere(world, full):
    world.stop("s1")
    assert not world.line.displace(full, "a", world.now, 60.0)
    assert world.create("s2").node in ("a", "b") and world.sandboxes.get("s1").state is State.STOPPED
