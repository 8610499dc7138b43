"""Start, status, stop, commands and their retries, through HTTP."""

import threading
import time
from dataclasses import replace
from datetime import datetime

import pytest

from app.calls import call_id
from tests.eager.conftest import PREFIX, Api, envelope


def in_thread(call, *args, **kwargs):
    """Run a call in a thread; returns the thread and a list that gets its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call(*args, **kwargs)))
    thread.start()
    return thread, results


def until(condition, seconds=5.0):
    """Wait until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def used(api: Api) -> tuple[float, int]:
    node = api.node.stores.nodes.get("n1")
    return node.used_cpus, node.used_memory


def test_a_whole_life(api):
    headers = {"X-User-Id": "u", "X-Experiment-Id": "e", "X-Namespace": "ns", "X-Cluster": "zb"}
    sandbox_id = api.start(headers=headers, metadata={"a": 1})
    assert api.get("/is_alive", sandbox_id=sandbox_id)["result"]["is_alive"] is True
    shown = api.get("/get_status", sandbox_id=sandbox_id)["result"]
    expected = {"state": "running", "user_id": "u", "experiment_id": "e", "namespace": "ns", "metadata": {"a": 1}}
    assert expected.items() <= shown.items()
    assert set(shown["status"]) == {"image_pull", "docker_run"}
    assert api.post("/create_session", sandbox_id=sandbox_id)["status"] == "Success"
    assert api.post("/run_in_session", sandbox_id=sandbox_id, command="echo hi")["result"]["output"] == "hi"
    assert api.post("/execute", sandbox_id=sandbox_id, command="echo hi")["status"] == "Success"
    assert api.post("/close_session", sandbox_id=sandbox_id, session="default")["status"] == "Success"
    assert api.get("/get_sandbox_statistics", sandbox_id=sandbox_id)["status"] == "Success"
    for _ in range(2):
        assert isinstance(api.post("/stop", sandbox_id=sandbox_id)["result"], str)
    assert api.get("/is_alive", sandbox_id=sandbox_id)["result"]["is_alive"] is False
    assert api.get("/get_status", sandbox_id=sandbox_id)["error"] == f"Sandbox {sandbox_id} not found"
    shown = api.get("/get_status", sandbox_id=sandbox_id, include_all_states="true")["result"]
    assert (shown["state"], shown["is_alive"]) == ("stopped", False)
    failed = api.post("/run_in_session", sandbox_id=sandbox_id, command="x")
    assert (failed["result"]["code"], failed["result"]["kind"]) == (4000, "not_running")
    assert used(api) == (0, 0)
    assert api.leftovers() == set()


@pytest.mark.parametrize(
    "fields", [{"auto_clear_time_minutes": 0.5}, {"auto_clear_time": 0.5}, {"auto_clear_seconds": 30}, {"auto_clear_seconds": 30.0}]
)  # fmt: skip
def test_L06_a_lease_is_what_was_asked_for_to_the_second(api, fields):
    shown = api.get("/get_status", sandbox_id=api.start(**fields))["result"]
    start, stop = (datetime.fromisoformat(shown[f"{name}_time"]) for name in ("start", "auto_stop"))
    assert (stop - start).total_seconds() == pytest.approx(30, abs=5)


@pytest.mark.parametrize("name", ["auto_clear_time_minutes", "auto_clear_time", "auto_clear_seconds"])
@pytest.mark.parametrize("value", [0, -1, "5", 1e12, True])
def test_L06_a_lease_that_cannot_be_is_named(api, name, value):
    failed = api.post("/start", image="x", memory="1g", **{name: value})
    assert (failed["result"]["code"], name in failed["error"]) == (4000, True), failed


def test_unknown_sandbox(api):
    assert api.get("/is_alive", sandbox_id="nope")["result"]["is_alive"] is False
    for failed in (
        api.get("/get_status", sandbox_id="nope"),
        api.post("/stop", sandbox_id="nope"),
        api.post("/run_in_session", sandbox_id="nope", command="x"),
    ):
        assert (failed["result"]["kind"], failed["error"]) == ("not_found", "Sandbox nope not found")
    assert "sandbox_id" in api.get("/get_status")["error"]


def test_a_failed_start_is_shown(api):
    failed = api.post("/start", image="missing", sandbox_id="m", memory="1g")
    assert (failed["result"]["code"], failed["result"]["kind"]) == (5000, "image_not_found")
    shown = api.get("/get_status", sandbox_id="m")["result"]
    assert (shown["state"], shown["is_alive"]) == ("stopped", False)
    assert shown["status"]["image_pull"]["status"] == "failed"
    assert "missing" in shown["status"]["image_pull"]["message"]
    assert used(api) == (0, 0)


def test_start_async_answers_at_once(api):
    answer = api.post("/start_async", image="slow", memory="1g", cpus=1)["result"]
    assert (answer["host_name"], answer["cpus"], answer["memory"]) == ("host", 1, "1g")
    assert api.get("/is_alive", sandbox_id=answer["sandbox_id"])["result"]["is_alive"] is False
    assert api.get("/get_status", sandbox_id=answer["sandbox_id"])["result"]["state"] == "pending"
    failed = api.post("/run_in_session", sandbox_id=answer["sandbox_id"], command="x")
    assert failed["result"]["kind"] == "not_running"
    api.node.release()
    assert api.get("/is_alive", sandbox_id=answer["sandbox_id"])["result"]["is_alive"] is True


@pytest.mark.parametrize("named", [{}, {"sandbox_id": "mine"}])
def test_a_repeated_start_makes_one_sandbox(api, named):
    body = {"image": "slow", "memory": "1g", "cpus": 1, "request_id": "R", **named}
    waiting = [in_thread(api_of(api).post, "/start", body) for _ in range(3)]
    until(lambda: api.node.held)
    assert api.post("/start_async", body)["status"] == "Success"
    api.node.release()
    ids = set()
    for thread, results in waiting:
        thread.join(5)
        ids.add(results[0]["result"]["sandbox_id"])
    assert len(ids) == 1
    assert len(api.node.ran) == 1
    assert used(api) == (1, 1024**3)
    assert api.post("/start", body)["result"]["sandbox_id"] in ids
    failed = api.post("/start", {**body, "image": "other"})
    assert (failed["result"]["code"], "request_id" in failed["error"]) == (4000, True)


def api_of(api: Api) -> Api:
    """Return the same API with a client of its own, for another thread."""
    return replace(api, client=api.client.application.test_client())


def test_one_id_in_two_apis_at_once(api, make_api):
    other = make_api(prefix=api.prefix)
    started = [in_thread(one.post, "/start", image="x", memory="1g", cpus=1, sandbox_id="same") for one in (api, other)]
    for thread, _ in started:
        thread.join(5)
    kinds = sorted(results[0]["result"].get("kind", "ok") for _, results in started)
    assert kinds == ["already_exists", "ok"]
    assert api.post("/start", image="x", memory="1g", sandbox_id="same")["error"] == "Sandbox same already exists"
    assert used(api) == (1, 1024**3)


def test_stop_during_start(api):
    thread, results = in_thread(api_of(api).post, "/start", image="slow", memory="1g", sandbox_id="s")
    until(lambda: api.node.held)
    assert api.post("/stop", sandbox_id="s")["status"] == "Success"
    thread.join(5)
    assert (results[0]["result"]["code"], results[0]["result"]["kind"]) == (5000, "sandbox_gone")
    api.node.release()
    assert api.get("/get_status", sandbox_id="s", include_all_states="true")["result"]["state"] == "stopped"
    assert used(api) == (0, 0)


@pytest.fixture
def full(make_api):
    """An API whose one node has room for one sandbox; returns it and the sandbox that has it."""
    api = make_api()
    api.node.join(cpus=1.0)
    return api, api.start()


SMALL = {"image": "x", "memory": "1g", "cpus": 1}


def test_a_start_that_finds_no_room_waits_and_gives_up_in_time(full):
    api, _ = full
    started = time.monotonic()
    failed = api.post("/start", **SMALL, startup_timeout=0.3)
    assert 0.2 < time.monotonic() - started < 2
    assert (failed["result"]["code"], failed["result"]["kind"], failed["result"]["retryable"]) == (
        5000,
        "no_capacity",
        True,
    )
    assert "1 CPUs" in failed["error"] and "at most 0 CPUs" in failed["error"]
    shown = api.get("/get_status", sandbox_id=failed["result"]["sandbox_id"])["result"]
    assert shown["state"] == "stopped" and shown["status"]["image_pull"]["status"] == "failed"
    assert "no room within" in shown["status"]["image_pull"]["message"]
    assert used(api) == (1, 1024**3)


def test_starts_wait_in_line_and_go_in_order(full):
    """start, start_async and polled starts stand in one line; each end of a sandbox lets the next go, at once."""
    api, first = full
    thread, results = in_thread(api_of(api).post, "/start", **SMALL, sandbox_id="w1")
    until(lambda: api.node.stores.sandboxes.get("w1"))
    queued = api.post("/start_async", **SMALL, sandbox_id="w2")
    assert (queued["status"], queued["result"]["sandbox_id"]) == ("Success", "w2")
    polled = api.post("/start", **SMALL, sandbox_id="w3", request_id="R", wait=0)
    assert polled["result"] == {"request_id": "R", "state": "pending"}
    for place, name in enumerate(("w1", "w2", "w3"), start=1):
        shown = api.get("/get_status", sandbox_id=name)["result"]
        text = f"waiting for capacity: position {place}"
        assert (shown["state"], shown["status"]["image_pull"]["status"]) == ("pending", "waiting")
        assert shown["status"]["image_pull"]["message"] == text and text in shown["message"]
        assert text in api.get("/is_alive", sandbox_id=name)["result"]["message"]
    assert api.post("/run_in_session", sandbox_id="w2", command="x")["result"]["kind"] == "not_running"
    assert used(api) == (1, 1024**3)
    for gone, name in ((first, "w1"), ("w1", "w2"), ("w2", "w3")):
        assert api.post("/stop", sandbox_id=gone)["status"] == "Success"
        assert api.get("/is_alive", sandbox_id=name)["result"]["is_alive"] is True
    thread.join(5)
    assert results[0]["result"]["sandbox_id"] == "w1"
    assert api.get("/results/R")["result"]["sandbox_id"] == "w3"
    assert api.post("/start", **SMALL, sandbox_id="w3", request_id="R")["result"]["sandbox_id"] == "w3"
    api.post("/stop", sandbox_id="w3")
    assert used(api) == (0, 0) and api.leftovers() == set()


def test_a_waiting_start_can_be_withdrawn(full):
    api, first = full
    for name in ("a", "b", "c"):
        api.post("/start", **SMALL, sandbox_id=name, request_id=f"R{name}", wait=0)
    assert api.post("/stop", sandbox_id="a")["status"] == "Success"
    assert api.post("/results/Rb/cancel")["result"]["state"] == "done"
    assert api.get("/results/Ra")["result"]["kind"] == "sandbox_gone"
    assert api.get("/results/Rb")["result"]["kind"] == "cancelled"
    assert "position 1" in api.get("/is_alive", sandbox_id="c")["result"]["message"]
    assert api.node.ran == [api.node.stores.sandboxes.get(first).start_call]
    api.post("/stop", sandbox_id=first)
    assert api.get("/is_alive", sandbox_id="c")["result"]["is_alive"] is True


def test_a_waiting_start_outlives_a_poll_and_is_watched_once_it_has_a_node(full, monkeypatch):
    api, first = full
    monkeypatch.setattr(api.client.application.extensions["rock"].watch, "_tick", 0.1)
    body = {**SMALL, "image": "slow", "sandbox_id": "w", "request_id": "R"}
    assert api.post("/start", body | {"wait": 0.5})["result"]["state"] == "pending"
    thread, results = in_thread(api_of(api).get, "/results/R", wait=20)
    api.post("/stop", sandbox_id=first)
    until(lambda: api.node.held)
    api.node.vanish()
    thread.join(5)
    assert results[0]["result"]["kind"] == "node_lost"


def test_more_than_any_node_has_is_refused_at_once(full):
    """A07"""
    api, _ = full
    for route in ("/start", "/start_async"):
        failed = api.post(route, image="x", memory="1g", cpus=2)
        assert (failed["result"]["code"], failed["result"]["kind"]) == (4000, "bad_request")
        assert "cpus: 2 is more than any node has (at most 1)" in failed["error"]
    failed = api.post("/start_async", image="x", memory="20g", cpus=0.1, request_id="R")
    assert "memory" in failed["error"] and not failed["result"]["retryable"]
    assert api.get("/results/R")["result"]["kind"] == "not_found"


def test_no_node(make_api):
    api = make_api()
    failed = api.post("/start_async", image="x")
    assert (failed["result"]["kind"], "no node is alive" in failed["error"]) == ("no_capacity", True)


def test_a_command_runs_once(api):
    sandbox_id = api.start()
    call = {"sandbox_id": sandbox_id, "command": "sleep 0.3", "request_id": "R"}
    threads = [in_thread(api_of(api).post, "/run_in_session", call) for _ in range(4)]
    for thread, results in threads:
        thread.join(5)
        assert results[0]["result"]["exit_code"] == 0
    assert len(api.node.ran) == 2
    assert api.post("/run_in_session", call)["result"]["exit_code"] == 0
    assert api.get("/results/R")["result"]["exit_code"] == 0
    assert len(api.node.ran) == 2
    for other in ({"command": "x"}, {"sandbox_id": "other"}):
        assert api.post("/run_in_session", {**call, **other})["result"]["kind"] == "bad_request"
    assert api.post("/execute", call)["result"]["kind"] == "bad_request"


def test_the_request_id_may_come_as_a_header(api):
    sandbox_id = api.start()
    api.post("/run_in_session", sandbox_id=sandbox_id, command="echo hi", headers={"X-Request-Id": "H"})
    assert api.get("/results/H")["result"]["output"] == "hi"
    failed = api.post("/run_in_session", sandbox_id=sandbox_id, command="x", headers={"X-Request-Id": "x" * 201})
    assert "X-Request-Id" in failed["error"]


def test_wait_and_poll(api):
    sandbox_id = api.start()
    call = {"sandbox_id": sandbox_id, "command": "sleep 0.5", "request_id": "R", "wait": 0}
    assert api.post("/run_in_session", call)["result"] == {"request_id": "R", "state": "running"}
    assert api.get("/results/R")["result"]["state"] == "running"
    assert api.post("/run_in_session", {**call, "wait": 0.1})["result"]["state"] == "running"
    assert api.get("/results/R", wait=10)["result"]["exit_code"] == 0
    assert api.get("/results/unknown")["result"]["kind"] == "not_found"
    assert "wait" in api.get("/results/R", wait="soon")["error"]
    assert "wait" in api.get("/results/R", wait="nan")["error"]


def test_cancel(api):
    sandbox_id = api.start()
    thread, results = in_thread(
        api_of(api).post, "/run_in_session", sandbox_id=sandbox_id, command="hang", request_id="R"
    )
    until(lambda: len(api.node.ran) == 2)
    assert api.post("/results/R/cancel")["result"] == {"request_id": "R", "state": "done"}
    thread.join(5)
    assert (results[0]["result"]["code"], results[0]["result"]["kind"]) == (6000, "cancelled")
    assert api.post("/results/R/cancel")["result"]["state"] == "done"


def test_cancel_of_a_start(api):
    thread, results = in_thread(api_of(api).post, "/start", image="slow", memory="1g", request_id="R")
    until(lambda: api.node.held)
    assert api.post("/results/R/cancel")["result"]["state"] == "done"
    thread.join(5)
    assert results[0]["result"]["kind"] == "cancelled"
    api.node.release()
    assert used(api) == (0, 0)


def test_a_commands_failure_is_told_as_the_node_told_it(api):
    sandbox_id = api.start()
    result = api.post("/run_in_session", sandbox_id=sandbox_id, command="exit 7")["result"]
    assert (result["code"], result["kind"], result["exit_code"], result["output"]) == (6000, "command_failed", 7, "out")


def test_a_node_is_lost_under_a_call(api, monkeypatch):
    services = api.client.application.extensions["rock"]
    monkeypatch.setattr(services.watch, "_tick", 0.1)
    sandbox_id = api.start()
    thread, results = in_thread(api_of(api).post, "/run_in_session", sandbox_id=sandbox_id, command="hang")
    until(lambda: len(api.node.ran) == 2)
    api.node.vanish()
    thread.join(5)
    assert (results[0]["result"]["code"], results[0]["result"]["kind"]) == (5000, "node_lost")
    assert api.post("/run_in_session", sandbox_id=sandbox_id, command="x")["result"]["kind"] == "node_lost"
    alive = api.get("/is_alive", sandbox_id=sandbox_id)["result"]
    assert (alive["is_alive"], "node lost" in alive["message"]) == (False, True)
    assert api.post("/start_async", image="x")["result"]["kind"] == "no_capacity"
    api.node.join()
    assert api.get("/is_alive", sandbox_id=sandbox_id)["result"]["is_alive"] is True
    assert api.post("/run_in_session", sandbox_id=sandbox_id, command="echo ok")["result"]["output"] == "ok"
    api.node.vanish()
    assert api.post("/stop", sandbox_id=sandbox_id)["status"] == "Success"
    assert used(api) == (0, 0)


def test_C09_a_call_that_no_node_takes_is_answered_and_never_runs(api, monkeypatch):
    """Its message may wait in a queue until a worker is back, long after its caller has gone."""
    monkeypatch.setattr("app.commands.TAKE_MARGIN", 0.2)
    sandbox_id = api.start()
    monkeypatch.setattr(api.client.application.extensions["rock"].dispatch._nodes, "send", lambda *args: None)
    failed = api.post("/run_in_session", sandbox_id=sandbox_id, command="x", timeout=0.1, request_id="R")
    assert (failed["result"]["kind"], "not run" in failed["error"]) == ("unavailable", True)
    ran = list(api.node.ran)
    api.node.call(call_id("", "R"))
    assert api.node.ran == ran
    assert api.leftovers() <= {f"sandbox:{sandbox_id}", "node:n1:sandboxes", "node:n1:leases"}


def test_L07_a_lease_is_renewed_by_whichever_process_is_called(api, make_api):
    other, sandbox_id = make_api(prefix=api.prefix), api.start(auto_clear_seconds=100)
    record = api.node.stores.sandboxes.get(sandbox_id)
    for one in (api, other, api):
        api.redis.hset(f"{api.prefix}sandbox:{sandbox_id}", "expires", record.expires - 99)
        assert one.post("/run_in_session", sandbox_id=sandbox_id, command="true")["status"] == "Success"
        renewed = api.node.stores.sandboxes.get(sandbox_id).expires
        assert renewed >= record.expires
        lease = api.redis.zscore(f"{api.prefix}node:n1:leases", sandbox_id)
        assert lease == pytest.approx(renewed, abs=0.01), "what the node's reaper reads"


def test_calls_renew_the_lease_and_lists_of_keys_stay_small(api):
    sandbox_id = api.start(auto_clear_seconds=100)
    record = api.node.stores.sandboxes.get(sandbox_id)
    for read in ("/is_alive", "/get_status"):
        api.redis.hset(f"{api.prefix}sandbox:{sandbox_id}", "expires", record.expires - 50)
        api.get(read, sandbox_id=sandbox_id)
        assert api.node.stores.sandboxes.get(sandbox_id).expires >= record.expires
    assert api.leftovers() == {f"sandbox:{sandbox_id}", "node:n1:sandboxes", "node:n1:leases"}


def test_an_ending_process_tells_its_callers_how_to_go_on(api, make_api):
    sandbox_id = api.start()
    body = {"sandbox_id": sandbox_id, "command": "sleep 0.5", "request_id": "R"}
    thread, results = in_thread(api_of(api).client.post, f"{PREFIX}/run_in_session", json=body)
    until(lambda: len(api.node.ran) == 2)
    api.client.application.extensions["rock"].drain()
    thread.join(5)
    failed = envelope(results[0])
    assert (results[0].status_code, failed["result"]["request_id"]) == (503, "R")
    next_process = make_api(prefix=api.prefix)
    assert next_process.post("/run_in_session", body)["result"]["exit_code"] == 0
    assert len(api.node.ran) == 2
