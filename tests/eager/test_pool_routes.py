"""A start that a pool serves, through HTTP: who sees what, and when."""

import time

import pytest

from app.config import load
from app.sections import ConfigError
from app.stock import mark_of
from rock.actions import StartRequest
from tests.eager.conftest import Api

SAME = {"image": "x", "memory": "1g", "cpus": 1}


def pool(api: Api) -> str:
    """Put a sandbox into the node's pool; return its id."""
    node = api.node.stores.nodes.get("n1")
    call = api.node.stores.stock.begin(StartRequest(**SAME), node, 60.0, time.time())
    api.node.start(call.call_id)
    return call.sandbox_id


def test_a_start_is_answered_without_the_node(api):
    pooled = pool(api)
    ran = len(api.node.ran)
    headers = {"X-User-Id": "u", "X-Cluster": "zb"}
    answer = api.post("/start", headers=headers, **SAME, metadata={"a": 1}, auto_clear_seconds=77, request_id="r")
    assert answer["result"] == {"sandbox_id": pooled, "host_name": "host", "host_ip": "127.0.0.1", "cpus": 1,
                                "memory": "1g", "disk": "50G"}  # fmt: skip
    assert len(api.node.ran) == ran
    assert (
        api.post("/start", headers=headers, **SAME, metadata={"a": 1}, auto_clear_seconds=77, request_id="r") == answer
    )
    assert api.get("/results/r")["result"] == answer["result"]
    assert api.post("/start", **SAME, request_id="r")["result"]["kind"] == "bad_request"
    shown = api.get("/get_status", sandbox_id=pooled)["result"]
    assert (shown["user_id"], shown["metadata"], shown["state"], shown["is_alive"]) == ("u", {"a": 1}, "running", True)
    assert {phase["status"] for phase in shown["status"].values()} == {"success"}
    assert shown["create_time"] == shown["start_time"] and shown["auto_stop_time"]
    api.post("/create_session", sandbox_id=pooled)
    assert api.post("/run_in_session", sandbox_id=pooled, command="echo hi")["result"]["output"] == "hi"
    assert api.post("/stop", sandbox_id=pooled)["status"] == "Success"
    node = api.node.stores.nodes.get("n1")
    assert (node.used_cpus, node.used_memory) == (0, 0)
    assert api.leftovers() == set()


def test_start_async_is_served_too(api):
    pooled = pool(api)
    assert api.post("/start_async", **SAME)["result"]["sandbox_id"] == pooled
    assert api.get("/is_alive", sandbox_id=pooled)["result"]["is_alive"] is True


def test_pooled_sandboxes_are_nobodys(api):
    pooled = pool(api)
    assert api.get("/sandboxes")["result"] == {"items": [], "total": 0, "has_more": False}
    assert api.post("/sandboxes/batch", sandbox_ids=[pooled])["result"]["statuses"] == []
    assert api.get("/get_status", sandbox_id=pooled)["result"]["kind"] == "not_found"
    assert api.post("/stop", sandbox_id=pooled)["result"]["kind"] == "not_found"
    assert api.post("/execute", sandbox_id=pooled, command="id")["result"]["kind"] == "not_found"
    (node,) = api.get("/nodes")["result"]["nodes"]
    assert (node["pooled"], node["sandboxes"], node["used_cpus"]) == (1, 0, 0)


def test_an_id_of_ones_own_is_started(api):
    pooled = pool(api)
    assert api.post("/start", **SAME, sandbox_id="mine")["result"]["sandbox_id"] == "mine"
    assert api.start() == pooled


def test_two_callers_get_two_sandboxes(api):
    pooled = pool(api)
    assert api.start() == pooled != api.start()


def configured(text: str):
    return load("test", {"ROCK_POOL__SANDBOXES": text}).pool.sandboxes


def test_the_configuration_names_what_a_plain_start_asks_for():
    (kind,) = configured('[{"image": "python:3.11"}]')
    assert kind.count == 1
    assert mark_of(kind.request()) == mark_of(StartRequest(image="python:3.11"))
    assert configured("") == ()


@pytest.mark.parametrize(("text", "word"), [
    ('{"image": "x"}', "list"), ('[{"count": 2}]', "image"), ('[{"image": "x", "counts": 2}]', "count"), ("[", "pool.sandboxes"),
    ('[{"image": "x", "memory": "much"}]', "memory"), ('[{"image": "x", "count": 0}]', "count"), ('[{"image": "UPPER CASE"}]', "image"),
])  # fmt: skip
def test_a_pool_that_makes_no_sense_is_refused(text, word):
    with pytest.raises(ConfigError, match=word):
        configured(text)
