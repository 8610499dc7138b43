"""Restart, delete, lists and batches, through HTTP."""

import time
from datetime import datetime

import pytest

from app.records import Event, NodeRecord, State
from tests.eager.conftest import envelope
from tests.eager.fake_node import GB


def stopped(api, **fields) -> str:
    sandbox_id = api.start(**fields)
    assert api.post("/stop", sandbox_id=sandbox_id)["status"] == "Success"
    return sandbox_id


def status_of(api, sandbox_id):
    return api.get("/get_status", sandbox_id=sandbox_id, include_all_states="true")["result"]


def used(api):
    node = api.node.stores.nodes.get("n1")
    return node.used_cpus, node.used_memory


def test_L15_L09_a_restart_is_a_new_life_of_the_same_sandbox(api):
    sandbox_id = stopped(api, metadata={"a": 1}, auto_clear_seconds=77)
    before = status_of(api, sandbox_id)
    assert before["auto_delete_time"] > before["stop_time"] and used(api) == (0, 0)
    for route, body in (("/restart", {"sandbox_id": sandbox_id}), (f"/sandboxes/{sandbox_id}/restart", {})):
        answer = api.post(route, body, headers={"X-Request-Id": route})
        assert answer["status"] == "Success" and answer["result"]["sandbox_id"] == sandbox_id, answer
        assert api.post(route, body, headers={"X-Request-Id": route}) == answer, "a retry attaches"
        shown = api.get("/get_status", sandbox_id=sandbox_id)["result"]
        assert (shown["state"], shown["is_alive"], shown["metadata"]) == ("running", True, {"a": 1})
        assert (shown["stop_time"], shown["auto_delete_time"]) == (None, None)
        assert shown["start_time"] > before["start_time"] and shown["create_time"] == before["create_time"]
        assert datetime.fromisoformat(shown["auto_stop_time"]).timestamp() > time.time() + 70
        assert used(api) == (1, GB)
        moves = [(move["from_state"], move["to_state"], move["event"]) for move in shown["state_history"]]
        assert moves[-2:] == [("stopped", "pending", "restart"), ("pending", "running", "started")]
        assert api.post("/run_in_session", sandbox_id=sandbox_id, command="echo hi")["status"] == "Success"
        api.post("/stop", sandbox_id=sandbox_id)
    assert api.redis.ttl(f"{api.prefix}sandbox:{sandbox_id}") > 600, "the record outlives its container"


def test_a_stop_sent_again_after_a_restart_is_the_same_stop(api):
    sandbox_id = api.start()
    first = api.post("/stop", sandbox_id=sandbox_id, request_id="the-stop")
    assert first["status"] == "Success" == api.post("/restart", sandbox_id=sandbox_id)["status"]
    assert api.post("/stop", sandbox_id=sandbox_id, request_id="the-stop") == first
    assert status_of(api, sandbox_id)["state"] == "running", "the life after it goes on"


@pytest.mark.parametrize(
    ("make", "code", "word"),
    [
        (lambda api: "nope", "not_found", "not found"),
        (lambda api: api.start(), "bad_request", "running"),
        (lambda api: stopped(api, auto_delete_seconds=0), "not_found", "files went with its stop"),
        (
            lambda api: api.post("/start", image="missing", sandbox_id="m", memory="1g") and "m",
            "not_found",
            "never ran",
        ),
    ],
)
def test_what_cannot_be_restarted(api, make, code, word):
    sandbox_id = make(api)
    failed = api.post("/restart", sandbox_id=sandbox_id)
    assert (failed["result"]["kind"], failed["result"]["code"]) == (code, 4000), failed
    assert word in failed["error"] and sandbox_id in failed["error"]


def test_a_restart_needs_its_own_node_and_room_there(api):
    sandbox_id = stopped(api, cpus=3)
    other = api.start(cpus=2)
    failed = api.post("/restart", sandbox_id=sandbox_id)
    assert (failed["result"]["kind"], failed["result"]["retryable"]) == ("no_capacity", True)
    assert "n1" in failed["error"] and status_of(api, sandbox_id)["state"] == "stopped"
    api.post("/stop", sandbox_id=other)
    api.node.vanish()
    assert api.post("/restart", sandbox_id=sandbox_id)["result"]["kind"] == "node_lost"


def test_delete(api):
    sandbox_id = api.start()
    failed = api.post("/delete", sandbox_id=sandbox_id)
    assert failed["result"]["code"] == 4000 and "running" in failed["error"] and "stop it first" in failed["error"]
    api.post("/stop", sandbox_id=sandbox_id)
    for name in (sandbox_id, sandbox_id, "never-was"):
        assert isinstance(api.post("/delete", sandbox_id=name)["result"], str)
    shown = status_of(api, sandbox_id)
    assert (shown["state"], shown["auto_delete_time"]) == ("deleted", None)
    assert shown["delete_time"] and shown["stop_time"] and "stop was called" not in shown["state_history"]
    assert api.get("/get_status", sandbox_id=sandbox_id)["result"]["kind"] == "not_found"
    assert api.post("/restart", sandbox_id=sandbox_id)["result"]["kind"] == "not_found"
    assert api.redis.zcard(f"{api.prefix}node:n1:stopped") == 0
    assert api.start(sandbox_id=sandbox_id) == sandbox_id, "the name is free"


def test_delete_while_the_node_is_away(api):
    sandbox_id = stopped(api)
    api.node.vanish()
    assert "when it is back" in api.post("/delete", sandbox_id=sandbox_id)["result"]
    assert status_of(api, sandbox_id)["state"] == "deleted"


def test_lists_are_paged_and_narrowed(api):
    names = [api.start(headers={"X-User-Id": f"u{i % 2}", "X-Namespace": "ns"}, cpus=0.5, image=f"x{i % 3}")
             for i in range(5)]  # fmt: skip
    api.post("/stop", sandbox_id=names[0])
    whole = api.get("/sandboxes")["result"]
    assert [row["sandbox_id"] for row in whole["items"]] == names[::-1] and whole["total"] == 5
    assert not whole["has_more"]
    assert whole["items"][-1]["state"] == "stopped"
    pages = [api.get("/sandboxes", page=page, page_size=2)["result"] for page in (1, 2, 3, 4)]
    assert [len(page["items"]) for page in pages] == [2, 2, 1, 0]
    assert [page["has_more"] for page in pages] == [True, True, False, False]
    assert {page["total"] for page in pages} == {5}
    for query, count in (
        ({"user_id": "u0"}, 3), ({"user_id": "u0", "state": "running"}, 2), ({"image": "x1"}, 2),
        ({"namespace": "ns"}, 5), ({"experiment_id": "e"}, 0), ({"state": "deleted"}, 0),
    ):  # fmt: skip
        assert api.get("/sandboxes", **query)["result"]["total"] == count, query
    for name, value in (("page", "0"), ("page", "x"), ("page_size", "501"), ("page_size", "-1"), ("state", "odd")):
        failed = api.get("/sandboxes", **{name: value})
        assert failed["result"]["code"] == 4000 and name in failed["error"]


def test_batch(api):
    names = [api.start() for _ in range(2)]
    rows = api.post("/sandboxes/batch", sandbox_ids=[names[1], "nope", names[0], names[1]])["result"]["statuses"]
    assert [row["sandbox_id"] for row in rows] == [names[1], names[0]]
    assert rows[0] == api.get("/get_status", sandbox_id=names[1])["result"] | {
        "auto_stop_time": rows[0]["auto_stop_time"]
    }
    failed = api.post("/sandboxes/batch", sandbox_ids=["x"] * 501)
    assert failed["result"]["code"] == 4000 and "sandbox_ids" in failed["error"]


def test_lists_do_not_renew_leases(api):
    sandbox_id = api.start(auto_clear_seconds=100)
    first = api.node.stores.sandboxes.get(sandbox_id).expires
    api.get("/sandboxes")
    api.post("/sandboxes/batch", sandbox_ids=[sandbox_id])
    api.get(f"/sandboxes/{sandbox_id}/mount-infos")
    assert api.node.stores.sandboxes.get(sandbox_id).expires == first
    api.get("/get_status", sandbox_id=sandbox_id)
    assert api.node.stores.sandboxes.get(sandbox_id).expires > first


def test_N10_a_node_that_is_down_costs_a_list_nothing(api):
    lost = api.start()
    api.node.vanish()
    api.node.stores.nodes.register("n2", "t", NodeRecord("n2", 4.0, 16 * GB), time.time())
    began = time.monotonic()
    rows = (
        api.get("/sandboxes")["result"]["items"]
        + api.post("/sandboxes/batch", sandbox_ids=[lost])["result"]["statuses"]
    )
    assert time.monotonic() - began < 1
    assert [(row["sandbox_id"], row["is_alive"], row["state"]) for row in rows] == [(lost, False, "running")] * 2
    assert "node lost" in rows[0]["message"]


def test_each_owner_sees_its_own(make_api):
    api = make_api(ROCK_API_KEYS="alpha-key=alice,beta-key=bob,root-key=ops:admin")
    api.node.join()
    alice, bob, root = ({"X-API-Key": f"{name}-key"} for name in ("alpha", "beta", "root"))
    mine = api.start(headers=alice)
    for who, rows in ((alice, [mine]), (bob, []), (root, [mine])):
        assert [row["sandbox_id"] for row in api.get("/sandboxes", headers=who)["result"]["items"]] == rows
        seen = api.post("/sandboxes/batch", {"sandbox_ids": [mine]}, headers=who)["result"]["statuses"]
        assert [row["sandbox_id"] for row in seen] == rows
    api.post("/stop", {"sandbox_id": mine}, headers=alice)
    assert api.post("/restart", {"sandbox_id": mine}, headers=bob)["result"]["kind"] == "not_found"
    assert api.get(f"/sandboxes/{mine}/mount-infos", headers=bob)["result"]["kind"] == "not_found"
    assert api.post("/delete", {"sandbox_id": mine}, headers=bob)["status"] == "Success", "as for an unknown one"
    assert api.post("/restart", {"sandbox_id": mine}, headers=root)["status"] == "Success", "nothing was deleted"
    assert api.get("/get_status", headers=alice, sandbox_id=mine)["result"]["is_alive"]


def test_a_bad_id_in_the_path_is_named(api):
    answer = api.client.get("/apis/envs/sandbox/v1/sandboxes/..%20x/mount-infos")
    assert "sandbox_id" in envelope(answer)["error"]


def test_a_dead_sandbox_stays_known_as_dead_when_it_is_deleted(api):
    sandbox_id, stores = api.start(), api.node.stores
    stores.sandboxes.transition(sandbox_id, [State.RUNNING], State.STOPPED, Event.GONE, time.time(), reason="killed")
    api.post("/delete", sandbox_id=sandbox_id)
    failed = api.post("/run_in_session", sandbox_id=sandbox_id, command="echo x")
    assert (failed["result"]["kind"], "killed" in failed["error"]) == ("sandbox_gone", True)
