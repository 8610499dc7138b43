"""Images are removed from nodes, and fetched ahead of time, through HTTP."""

import time
from dataclasses import replace

import pytest

from app.image_store import Home
from app.records import NodeRecord
from rock.errors import Forbidden
from tests.eager.fake_node import GB


def lose_a_node(api, name="n2"):
    api.node.stores.nodes.register(name, "t", NodeRecord(name, 4.0, 16 * GB), time.time())
    api.node.stores.nodes.heartbeat(name, "t", time.time() - 1000)


def test_an_image_is_removed_where_it_is(api):
    lose_a_node(api)
    began = time.monotonic()
    here = api.post("/remove_image", image="here", request_id="R")["result"]
    assert here == {"removed": ["n1"], "failed": [], "lost": ["n2"]}
    assert time.monotonic() - began < 1, "nobody waits for a node that is down"
    assert api.post("/remove_image", image="here", request_id="R")["result"] == here and len(api.node.ran) == 1
    absent = api.post("/remove_image", image="absent", node="n1")
    assert absent["status"] == "Success" and absent["result"] == {"removed": [], "failed": [], "lost": []}
    for fields, word in (
        ({"image": "A B"}, "image"),
        ({"image": "UP:1"}, "image"),
        ({"image": "x", "node": "n9"}, "n9"),
    ):
        failed = api.post("/remove_image", **fields)
        assert failed["result"]["code"] == 4000 and word in failed["error"]
    conflict = api.post("/remove_image", image="other", request_id="R")
    assert conflict["status"] == "Success", "another image is another errand"


def test_a_removed_commit_is_forgotten_and_anothers_is_not_removed(make_api):
    api = make_api(ROCK_API_KEYS="alpha-key=alice,beta-key=bob")
    api.node.join()
    alice, bob = ({"X-API-Key": f"{name}-key"} for name in ("alpha", "beta"))
    store = api.node.stores.images
    store.note("here", Home("n1", "alice", 1.0))
    assert api.post("/remove_image", {"image": "here"}, headers=bob)["result"]["kind"] == "forbidden"
    assert store.homes("here:latest")
    assert api.post("/remove_image", {"image": "here"}, headers=alice)["result"]["removed"] == ["n1"]
    assert store.homes("here") == []


def test_a_commit_stays_its_owners_on_every_node_until_that_node_has_removed_it(api):
    """Else anybody could plant an image of their own under a name such as `ubuntu:24.04`."""
    store, nodes = api.node.stores.images, api.node.stores.nodes
    nodes.register("n2", "t", NodeRecord("n2", 4.0, 16 * GB), time.time())
    older, newer = Home("n2", "", 1.0), Home("n1", "", 2.0)
    store.note("ubuntu:24.04", newer)
    store.note("docker.io/library/ubuntu:24.04", older)
    assert store.only_node("ubuntu:24.04", "") == "n1", "the latest"
    assert api.post("/remove_image", image="ubuntu:24.04", node="n1")["status"] == "Success"
    assert store.homes("ubuntu:24.04") == [older], "n2 was not asked"
    nodes.heartbeat("n2", "t", time.time() - 1000)
    assert api.post("/remove_image", image="ubuntu:24.04")["result"]["lost"] == ["n2"]
    assert store.homes("ubuntu:24.04") == [older], "n2 will be back with it"
    with pytest.raises(Forbidden):
        store.only_node("ubuntu:24.04", "bob")
    store.note("ubuntu:24.04", replace(newer, pushed=True))
    assert store.only_node("ubuntu:24.04", "bob") == "", "a registry has a later one of the same owner's"


def test_a_warmup_goes_to_every_living_node_and_its_progress_is_told(api):
    lose_a_node(api)
    task = api.post("/warmup/tasks", images=["a:1", "missing", "slow", "a:1"])["result"]
    assert [(pull["image"], pull["node"], pull["state"]) for pull in task["pulls"]] == [
        ("a:1", "n1", "success"), ("missing", "n1", "failed"), ("slow", "n1", "running"),
    ]  # fmt: skip
    assert task["state"] == "running" and task["pulls"][2]["message"] == "pulling slow: 1 of 2 layers"
    assert "no such image" in task["pulls"][1]["message"]
    assert api.get(f"/warmup/tasks/{task['task_id']}")["result"] == task
    one = api.post("/warmup/tasks", {}, headers={"X-Request-Id": "W"})["result"]
    assert (one["state"], one["pulls"][0]["image"]) == ("success", "python:3.11")
    assert api.post("/warmup/tasks", {}, headers={"X-Request-Id": "W"})["result"] == one
    failed = api.post("/warmup/tasks", image="missing")["result"]
    assert failed["state"] == "failed"
    assert api.get("/warmup/tasks/nope")["result"]["kind"] == "not_found"
    bad = api.post("/warmup/tasks", images=["ok", "B A D"])
    assert bad["result"]["code"] == 4000 and "images" in bad["error"]
    assert "node:n1:inflight" in api.leftovers(), "the slow one is in flight until it is done"


def test_a_warmup_whose_results_are_gone_is_no_success(api):
    path = f"/warmup/tasks/{api.post('/warmup/tasks', images=['a:1', 'missing', 'b:1'])['result']['task_id']}"
    calls = api.node.ran[-3:]
    api.redis.delete(f"{api.prefix}call:{calls[0]}")
    task = api.get(path)["result"]
    assert (task["state"], [pull["image"] for pull in task["pulls"]]) == ("failed", ["missing", "b:1"])
    for call in calls[1:]:
        api.redis.delete(f"{api.prefix}call:{call}")
        gone = api.get(path)
        assert gone["result"]["kind"] == "not_found" and "dropped" in gone["error"]


def test_a_warmup_without_nodes_says_so(api):
    api.node.vanish()
    answer = api.client.post("/apis/envs/sandbox/v1/warmup/tasks", data="{}")
    assert answer.status_code == 503 and "no node is alive" in answer.json["error"]
