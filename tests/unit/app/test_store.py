"""The Lua moves of sandboxes, calls and capacity against a real Redis."""

import pytest

from app.calls import ClaimWord
from app.records import Event, PhaseName, PhaseStatus, State
from rock.errors import AlreadyExists, NodeLost
from tests.unit.app.conftest import GB


def test_create_reserves_and_stop_gives_back_once(world):
    world.node()
    assert world.create(cpus=1.5, memory=3 * GB).word is ClaimWord.NEW
    assert (world.nodes.get("n1").used_cpus, world.nodes.get("n1").used_memory) == (1.5, 3 * GB)
    assert world.run()
    assert world.stop()
    assert not world.stop()
    assert (world.nodes.get("n1").used_cpus, world.nodes.get("n1").used_memory) == (0, 0)


def test_no_more_than_there_is(world):
    world.node(cpus=2.0)
    assert world.create("a", cpus=1.5).word is ClaimWord.NEW
    assert world.create("b", cpus=0.6).node == ""
    assert world.stop("b")
    assert world.create("b", cpus=0.5, request_id="again").node == "n1"
    assert world.create("c", cpus=0.001).node == ""
    assert world.nodes.get("n1").used_cpus == 2


def test_thousandths_add_up_exactly(world):
    world.node(cpus=1.0)
    for index in range(10):
        assert world.create(f"s{index}", cpus=0.1, memory=1).word is ClaimWord.NEW
    assert world.create("s10", cpus=0.1, memory=1).node == ""
    assert world.stop("s10")
    for index in range(10):
        assert world.stop(f"s{index}")
    assert world.nodes.get("n1").used_cpus == 0


def test_the_same_start_attaches_and_another_is_refused(world):
    world.node()
    assert world.create().word is ClaimWord.NEW
    assert world.create().word is ClaimWord.ATTACHED
    assert world.nodes.get("n1").used_cpus == 1
    assert world.create(request_id="other").word is ClaimWord.EXISTS
    assert world.create("s2", request_id="start-s1").word is ClaimWord.CONFLICT


def test_a_stopped_id_may_be_used_again_by_its_owner_only(world):
    world.node()
    world.running(owner="alice")
    world.stop()
    assert world.create(owner="bob", request_id="b").word is ClaimWord.EXISTS
    assert world.create(owner="alice", request_id="again").word is ClaimWord.NEW
    assert world.sandboxes.get("s1").state is State.PENDING


def test_the_first_life_cannot_move_the_second(world):
    world.node()
    world.create()
    first = world.sandboxes.get("s1").start_call
    world.stop()
    world.create(request_id="again")
    assert not world.run(only_start=first)
    assert not world.sandboxes.set_phase("s1", PhaseName.DOCKER_RUN, PhaseStatus.RUNNING, "", world.now, first)
    assert world.run(only_start=world.sandboxes.get("s1").start_call)


def test_a_late_completion_of_the_first_life_leaves_the_second_alone(world):
    world.node()
    world.running()
    old = world.call("r1")
    world.results.claim(old, world.now)
    world.stop()
    world.running(request_id="again")
    world.results.claim(world.call("r2"), world.now)
    world.results.complete(old.call_id, {}, world.now)
    assert world.sandboxes.get("s1").inflight == 1


def test_moves_outside_of_the_table_are_a_mistake(world):
    with pytest.raises(ValueError, match="stopped"):
        world.sandboxes.transition("s1", [State.STOPPED], State.RUNNING, Event.STARTED, world.now)


def test_history_and_times(world):
    world.node()
    world.running()
    world.now += 5
    world.stop(reason="asked for")
    record = world.sandboxes.get("s1")
    assert [(item["from_state"], item["to_state"], item["event"]) for item in record.history] == [
        ("pending", "running", "started"),
        ("running", "stopped", "stop"),
    ]
    assert (record.started, record.stopped, record.reason) == (1000.0, 1005.0, "asked for")
    assert 0 < world.redis.ttl(world.keys.sandbox("s1")) <= 3600


def test_phases_keep_their_start_and_note_their_end(world):
    world.node()
    world.create()
    for status, message in ((PhaseStatus.RUNNING, "pulling"), (PhaseStatus.FAILED, "no such image")):
        world.sandboxes.set_phase("s1", PhaseName.IMAGE_PULL, status, message, world.now)
        world.now += 3
    phase = world.sandboxes.get("s1").phases["image_pull"]
    assert phase == {"status": "failed", "message": "no such image", "started_at": 1000.0, "completed_at": 1003.0}


def test_late_writes_do_not_revive_a_forgotten_record(world):
    assert not world.sandboxes.set_phase("s1", PhaseName.IMAGE_PULL, PhaseStatus.RUNNING, "", world.now)
    assert not world.sandboxes.set_container("s1", container={"id": "c"}, port_mapping={80: 1}, host_name="h")
    assert world.raw_keys() == set()


def test_leases(world):
    world.node()
    world.running(lease=60)
    assert world.sandboxes.expired("n1", 1059) == []
    assert world.sandboxes.expired("n1", 1061) == ["s1"]
    world.now = 1050
    assert world.sandboxes.renew("s1", world.now).expires == 1110
    world.now = 1061
    assert not world.stop(event=Event.EXPIRED, only_expired=True)
    world.now = 1111
    assert world.sandboxes.expired("n1", world.now) == ["s1"]
    assert world.stop(event=Event.EXPIRED, only_expired=True)
    assert world.sandboxes.expired("n1", world.now) == []


def test_a_command_holds_the_lease(world):
    world.node()
    world.running(lease=60)
    call = world.call("r")
    world.results.claim(call, world.now)
    world.now = 5000
    assert world.sandboxes.expired("n1", world.now) == []
    assert not world.stop(event=Event.EXPIRED, only_expired=True)
    world.results.complete(call.call_id, {}, world.now)
    assert world.sandboxes.expired("n1", 5059) == []
    assert world.sandboxes.expired("n1", 5061) == ["s1"]


def test_no_lease_never_expires(world):
    world.node()
    world.running(lease=0)
    assert world.sandboxes.expired("n1", 10**9) == []
    world.now = 10**9
    assert not world.stop(event=Event.EXPIRED, only_expired=True)


def test_owners_see_their_own(world):
    world.node()
    world.running(owner="alice")
    assert world.sandboxes.touch("s1", world.now, "bob", False) is None
    assert world.sandboxes.touch("s1", world.now, "alice", False)[0].owner == "alice"
    assert world.sandboxes.touch("s1", world.now, "bob", True)[1] == 1000.0


def test_lists(world):
    world.node()
    for sandbox_id in ("a", "b"):
        world.running(sandbox_id)
        world.now += 1
    assert [record.sandbox_id for record in world.sandboxes.list()] == ["b", "a"]
    assert [record.sandbox_id for record in world.sandboxes.by_node("n1")] == ["a", "b"]
    world.redis.delete(world.keys.sandbox("a"))
    assert [record.sandbox_id for record in world.sandboxes.list()] == ["b"]
    assert world.redis.zcard(world.keys.sandboxes()) == 1


def test_one_holder_per_node_id(world):
    world.node()
    world.node()  # the same holder again: its second process
    with pytest.raises(AlreadyExists, match="n1"):
        world.node(token="other")
    world.now += 16
    world.node(token="other")
    with pytest.raises(NodeLost):
        world.nodes.heartbeat("n1", "t", world.now)
    assert not world.nodes.leave("n1", "t")
    assert world.nodes.leave("n1", "other")
    assert world.nodes.alive(world.now) == []
    assert not world.nodes.is_lost(world.nodes.get("n1"), world.now), "its calls wait: it may only be restarting"
    world.node(token="third")
    assert [node.node_id for node in world.nodes.alive(world.now)] == ["n1"]


def test_reservations_survive_a_worker(world):
    world.node()
    world.running(cpus=1.5)
    world.now += 16
    world.node(token="next", cpus=4.0)
    assert (world.nodes.get("n1").used_cpus, world.nodes.get("n1").cpus) == (1.5, 4.0)


def test_a_node_is_forgotten_when_it_is_silent_and_empty(world):
    world.node()
    world.running()
    assert not world.nodes.forget("n1", 2000)
    world.stop()
    assert not world.nodes.forget("n1", 1000)
    assert world.nodes.forget("n1", 2000)
    assert world.nodes.list() == []
    assert not {key for key in world.raw_keys() if key.startswith("node")}


def test_stopped_sandboxes_retire_in_time_and_by_number(world):
    world.node(cpus=8.0)
    for name, retention in (("a", 100.0), ("b", 10.0), ("c", 50.0), ("d", 0.0)):
        world.running(name, retention=retention)
        world.stop(name)
    assert world.sandboxes.retired("n1", world.now, 10) == []
    assert world.sandboxes.retired("n1", world.now, 2) == ["b"], "of too many, what ends first goes first"
    assert world.sandboxes.retired("n1", world.now + 10, 2) == ["b"]
    assert world.sandboxes.retired("n1", world.now + 60, 2) == ["b", "c"]
    assert world.redis.ttl(world.keys.sandbox("a")) > 3600 >= world.redis.ttl(world.keys.sandbox("d"))
    assert world.sandboxes.transition("b", [State.STOPPED], State.DELETED, Event.DELETE, world.now)
    world.sandboxes.forget_stopped("n1", "c")
    assert world.sandboxes.retired("n1", world.now + 1000, 0) == ["a"]


def test_a_container_that_died_by_itself_is_left_to_the_reaper(world):
    world.node()
    world.running(retention=0.0)
    world.stop(event=Event.GONE)
    assert world.sandboxes.retired("n1", world.now, 10) == ["s1"]


def test_a_new_life_on_the_node_is_not_retired_with_the_old_one(world):
    world.node(cluster="one")
    world.node("n2", cluster="two")
    world.running(retention=10.0, cluster="one")
    world.stop()
    world.create(request_id="again", cluster="two")
    assert world.sandboxes.retired("n1", world.now + 10, 10) == ["s1"], "that node has the old container"
    world.stop()
    world.create(request_id="third", cluster="one")
    assert world.sandboxes.retired("n1", world.now + 10, 10) == []
    assert world.sandboxes.retired("n2", world.now + 10, 10) == []


def test_a_restart_needs_the_very_life_that_has_stopped(world):
    world.node(cpus=1.0)
    world.running(retention=10.0)
    first = world.sandboxes.get("s1").start_call
    assert world.restart(first, request_id="r1").word is ClaimWord.EXISTS
    world.stop()
    assert world.restart("another", request_id="r2").word is ClaimWord.EXISTS
    world.create("other")
    assert world.restart(first, request_id="r3").word is ClaimWord.FULL
    world.stop("other")
    assert world.restart(first, request_id="r3").word is ClaimWord.NEW
    assert world.restart(first, request_id="r3").word is ClaimWord.ATTACHED
    assert world.nodes.get("n1").used_cpus == 1 and world.redis.ttl(world.keys.sandbox("s1")) == -1
    assert world.sandboxes.retired("n1", world.now + 100, 0) == []
    assert world.redis.zscore(world.keys.free_cpus(""), "n1") == 0
