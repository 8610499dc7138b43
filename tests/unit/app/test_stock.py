"""Which start takes a sandbox from a pool, what it gets, and who does not get it. Real Redis."""

import json

import pytest

from app.calls import ClaimWord
from app.records import Event, NodeState, State
from app.stock import OWNER, mark_of
from app.sweep import FORGET_AFTER, Sweep
from rock.errors import NoCapacity
from tests.unit.app.conftest import GB, wish


@pytest.fixture
def stocked(world):
    """Node n1 with one sandbox in its pool."""
    world.node("n1", 4.0, 8 * GB)
    world.pooled = world.pool("n1")
    return world


def test_a_start_that_asks_for_the_same_gets_it_at_once(stocked):
    claim, taken = stocked.take("s1", owner="ann", lease=60.0, retention=9.0)
    assert (claim.word, claim.node, taken) == (ClaimWord.DONE, "n1", stocked.pooled)
    answer = json.loads(claim.envelope)
    assert answer["status"] == "Success" and answer["error"] is None
    record = stocked.sandboxes.get(taken)
    assert (record.owner, record.state, record.node, record.lease) == ("ann", State.RUNNING, "n1", 60.0)
    assert (record.created, record.started, record.expires) == (stocked.now, stocked.now, stocked.now + 60)
    assert (record.retention, record.stock) == (9.0, "")
    assert [entry["event"] for entry in record.history] == [Event.TAKEN.value]
    assert {phase["status"] for phase in record.phases.values()} == {"success"}
    node = stocked.nodes.get("n1")
    assert (node.used_cpus, node.used_memory) == (1.0, GB)
    assert [one.sandbox_id for one in stocked.sandboxes.list()] == [taken]
    assert stocked.sandboxes.expired("n1", stocked.now + 61) == [taken]
    # The next one has to be started.
    assert stocked.take("s2")[0].word is ClaimWord.NEW


def test_it_ends_as_any_other(stocked):
    taken = stocked.take("s1")[1]
    assert stocked.stop(taken)
    assert stocked.nodes.get("n1").used_cpus == 0
    assert stocked.raw_keys() & {"node:n1:stock", "node:n1:leases", "node:n1:sandboxes"} == set()


def test_the_same_request_gets_the_same_sandbox(stocked):
    stocked.pool("n1")
    first, again = stocked.take("s1"), stocked.take("s1")
    assert again[1] == first[1] and again[0].node == ""
    call = stocked.results.load(stocked.call("start-s1", "start").call_id)
    assert call.done and call.body == {} and call.sandbox_id == first[1]
    assert stocked.redis.ttl(stocked.keys.call(call.call_id)) > 0
    assert stocked.results.inflight("n1") == []


def test_nobody_sees_what_is_in_stock(stocked):
    assert stocked.sandboxes.list() == []
    assert stocked.sandboxes.get(stocked.pooled).owner == OWNER
    assert stocked.sandboxes.touch(stocked.pooled, stocked.now, "", False) is None
    assert stocked.sandboxes.touch(stocked.pooled, stocked.now, "ann", False) is None
    assert stocked.nodes.counts(["n1"]) == {"n1": (0, 1)}
    assert stocked.nodes.get("n1").used_cpus == 0
    assert [record.sandbox_id for record in stocked.sandboxes.by_node("n1")] == [stocked.pooled]


@pytest.mark.parametrize("wished", [
    wish(sandbox_id="mine"), wish(env={"A": "1"}), wish(pull="always"), wish(registry_username="u"), wish(num_gpus=1),
    wish(registry_password="p"), wish(accelerator_type="a100"),
], ids=lambda wished: ",".join(name for name, value in vars(wished).items() if value != getattr(wish(), name)))  # fmt: skip
def test_who_needs_a_container_of_his_own(wished):
    assert mark_of(wished) == ""


@pytest.mark.parametrize("wished", [
    wish(image="y"), wish(image="x:1"), wish(cpus=2.0), wish(memory="2g"), wish(limit_cpus=1.0), wish(disk=None), wish(runtime="runsc"),
    wish(use_kata_runtime=True), wish(docker_args=["--shm-size", "1g"]),
])  # fmt: skip
def test_other_wishes_have_other_marks(stocked, wished):
    assert mark_of(wished) not in ("", mark_of(wish()))
    assert stocked.take("s1", wished, cpus=wished.cpus)[0].word is ClaimWord.NEW


@pytest.mark.parametrize("wished", [
    wish(image="docker.io/library/x:latest"), wish(memory="1024m"), wish(disk="51200m"), wish(cpus=1), wish(metadata={"a": 1}), wish(route_key="r"),
    wish(startup_timeout=5), wish(auto_clear_seconds=5), wish(auto_delete_seconds=5), wish(pull="never"), wish(wait=0),
])  # fmt: skip
def test_what_is_no_part_of_a_container_does_not_matter(stocked, wished):
    assert stocked.take("s1", wished)[1] == stocked.pooled


def test_one_that_is_starting_is_not_taken(world):
    world.node("n1")
    world.pool("n1", running=False)
    assert world.take("s1")[0].word is ClaimWord.NEW


def test_one_that_has_died_is_not_taken(stocked):
    assert stocked.stop(stocked.pooled, Event.GONE)
    assert stocked.stores.stock.ids("n1") == []
    assert stocked.take("s1")[0].word is ClaimWord.NEW


def test_a_draining_node_gives_nothing(stocked):
    stocked.node("n2", 1.0)
    stocked.nodes.admit("n1", NodeState.DRAINING, stocked.now)
    claim, _ = stocked.take("s1")
    assert (claim.word, claim.node) == (ClaimWord.NEW, "n2")


def test_a_lost_node_gives_nothing_until_it_is_back(stocked):
    stocked.now += 100
    with pytest.raises(NoCapacity):
        stocked.take("s1")
    stocked.nodes.heartbeat("n1", "t", stocked.now)
    assert stocked.take("s1")[1] == stocked.pooled


def test_without_room_it_stays(stocked):
    stocked.create("big", cpus=3.5)
    assert stocked.take("s1")[0].node == ""
    assert stocked.stores.stock.ids("n1") == [stocked.pooled]


def test_real_starts_find_the_room_of_what_is_in_stock(world):
    world.node("n1", 1.0)
    world.pool("n1")
    assert world.create("other", cpus=1.0).node == "n1"


def test_whoever_waits_comes_first(stocked):
    assert stocked.create("big", cpus=4.0).node == "n1"
    assert stocked.create("waits", cpus=4.0).node == ""
    stocked.node("n2", 2.0)
    stocked.pool("n2")
    assert stocked.take("s1")[0].word is ClaimWord.NEW


def test_a_cluster_takes_from_its_own_nodes_first(world):
    world.node("n1", 4.0, cluster="a")
    world.node("n2", 2.0, cluster="b")
    world.node("n3", 8.0)
    pooled = {name: world.pool(name) for name in ("n1", "n2", "n3")}
    assert [world.take(name, cluster="b")[1] for name in ("s1", "s2")] == [pooled["n2"], pooled["n3"]]
    assert world.take("s3", cluster="b")[0].word is ClaimWord.NEW
    assert world.take("s4")[1] == pooled["n1"]


def test_a_route_key_stays_on_its_node(world):
    world.node("n1", 8.0)
    world.create("s1", route_key="k")
    world.node("n2", 8.0)
    pooled = [world.pool("n2"), world.pool("n2"), world.pool("n1")]
    assert world.take("s2", route_key="k")[1] == pooled[2]
    # Better a start on the key's node than a sandbox elsewhere.
    assert world.take("s3", route_key="k")[0].node == "n1"
    # A new key stays where it found one.
    assert world.take("s4", route_key="new")[0].node == "n2"
    world.stop("s1")
    assert world.take("s5", route_key="new")[0].node == "n2"


def test_who_was_taken_cannot_be_ended_as_stock(stocked):
    taken = stocked.take("s1")[1]
    assert not stocked.stop(taken, only_stock=True)
    assert stocked.sandboxes.get(taken).state is State.RUNNING


def test_a_node_that_is_forgotten_takes_its_stock_along(stocked):
    stocked.now += FORGET_AFTER + 100
    Sweep(stocked.stores).run(stocked.now)
    assert stocked.nodes.get("n1") is None
    assert [key for key in stocked.raw_keys() if "stock" in key or key.startswith("sandbox")] == []
