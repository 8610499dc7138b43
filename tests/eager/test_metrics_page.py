"""/metrics: what is counted, what is read of the fleet, and who may see it."""

import time

import pytest
from flask import Response
from prometheus_client.parser import text_string_to_metric_families

from app.api.metrics import outcome
from rock.actions import StartRequest

ON = {"ROCK_MONITOR_ENABLE": "1"}


@pytest.fixture
def api(make_api):
    made = make_api(**ON)
    made.node.join()
    return made


def numbers(api, headers=None):
    """Return a function (sample, label values in any order) -> value on the page, None if absent; read by the library's own parser."""
    api.client.application.extensions["rock"].metrics.tally.flush()
    api.tally.flush()
    answer = api.client.get("/metrics", headers=headers)
    assert answer.status_code == 200, answer.data
    assert answer.content_type.startswith("text/plain")
    families = text_string_to_metric_families(answer.text)
    samples = [sample for family in families for sample in family.samples]
    found = {(sample.name, frozenset(sample.labels.values())): sample.value for sample in samples}
    return lambda name, *labels: found.get((name, frozenset(labels)))


def numbers_with(api, count, name, *labels):
    """Return `numbers` once one of them is `count`: a node counts a call just after it has answered it."""
    deadline = time.monotonic() + 5
    while (found := numbers(api))(name, *labels) != count:
        assert time.monotonic() < deadline, (name, labels, found(name, *labels))
    return found


def test_requests_and_calls_are_counted_by_route_and_outcome(api):
    sandbox_id = api.start()
    api.post("/create_session", sandbox_id=sandbox_id)
    for _ in range(3):
        assert api.post("/run_in_session", sandbox_id=sandbox_id, command="true")["status"] == "Success"
    api.post("/start", image="missing")
    api.post("/run_in_session", sandbox_id="nobody", command="true")
    api.client.get("/no/such/place")
    numbers_with(api, 3, "rock_call_wait_seconds_count", "run_in_session")
    found = numbers_with(api, 1, "rock_calls_total", "start", "image_not_found")
    route = "/apis/envs/sandbox/v1/run_in_session"
    assert found("rock_http_requests_total", "POST", route, "ok") == 3
    assert found("rock_http_requests_total", "POST", route, "not_found") == 1
    assert found("rock_http_requests_total", "-", "unknown", "route_not_found") == 1
    assert found("rock_http_request_seconds_count", "POST", route) == 4
    assert found("rock_calls_total", "run_in_session", "ok") == 3
    assert found("rock_call_seconds_count", "run_in_session") == 3
    assert found("rock_call_seconds_bucket", "run_in_session", "+Inf") == 3
    assert found("rock_call_wait_seconds_count", "run_in_session") == 3
    assert 0 <= found("rock_call_seconds_sum", "run_in_session") < 60
    assert found("rock_start_phase_seconds_count", "image_pull", "failed") == 1
    assert found("rock_calls_total", "start", "image_not_found") == 1
    assert found("rock_sandbox_events_total", "started") == 1


def test_an_answer_that_comes_twice_is_counted_once(api):
    sandbox_id = api.start()
    for _ in range(2):
        api.post("/execute", sandbox_id=sandbox_id, command="true", request_id="again")
    assert numbers_with(api, 1, "rock_calls_total", "execute", "ok")


def test_what_the_pool_has_and_gives_is_counted(api):
    stock, node = api.node.stores.stock, api.node.stores.nodes.get("n1")
    wished = StartRequest(image="x", memory="1g", cpus=1)
    for _ in range(2):
        api.node.start(stock.begin(wished, node, 60.0, time.time()).call_id)
    api.start()
    found = numbers_with(api, 1, "rock_sandbox_events_total", "taken_from_pool")
    assert found("rock_node_pooled", "n1") == 1 and found("rock_sandbox_events_total", "taken_from_pool") == 1


def test_the_fleet_is_shown_as_it_is(api):
    before = numbers(api)
    sandbox_id = api.start(cpus=1, memory="1g")
    found = numbers(api)
    assert found("rock_node_up", "n1") == 1 and found("rock_node_draining", "n1") == 0
    assert found("rock_node_reserved_cpus", "n1") == before("rock_node_reserved_cpus", "n1") + 1
    assert found("rock_node_reserved_memory_bytes", "n1") == 2**30
    assert found("rock_node_sandboxes", "n1") == 1 and found("rock_node_cpus", "n1") > 1
    assert found("rock_node_calls_in_flight", "n1") == 0
    assert found("rock_node_queue_length", "n1", "session") == found("rock_node_queue_length", "n1", "lifecycle") == 0
    assert found("rock_starts_waiting", "") == 0
    api.node.vanish()
    assert numbers(api)("rock_node_up", "n1") == 0
    assert sandbox_id


def test_starts_that_wait_are_told_by_cluster(api):
    api.start(cpus=4)
    sandbox = api.post("/start_async", image="x", cpus=4, memory="1g", headers={"X-Cluster": "gpu"})["result"]
    found = numbers(api)
    assert found("rock_starts_waiting", "gpu") == 1 and found("rock_starts_waiting_seconds", "gpu") < 60
    api.post("/stop", sandbox_id=sandbox["sandbox_id"])
    assert numbers(api)("rock_starts_waiting", "gpu") is None


def test_looking_renews_no_lease(api):
    sandbox_id = api.start(auto_clear_seconds=100)
    key = f"{api.prefix}sandbox:{sandbox_id}"
    before = api.redis.hget(key, "expires")
    numbers(api)
    api.get("/sandboxes")
    api.post("/sandboxes/batch", sandbox_ids=[sandbox_id])
    api.get("/nodes")
    assert api.redis.hget(key, "expires") == before


def test_processes_add_up_and_one_that_was_killed_loses_nothing_it_had_added(make_api):
    first = make_api(**ON)
    first.node.join()
    second = make_api(first.prefix, **ON)
    for one in (first, second, first):
        one.client.get("/healthz")
    numbers(first)
    found = numbers(second)
    assert found("rock_http_requests_total", "GET", "/healthz", "ok") == 3


def test_without_the_setting_there_is_nothing(make_api):
    api = make_api()
    api.node.join()
    api.start()
    answer = api.client.get("/metrics")
    assert answer.status_code == 404 and "ROCK_MONITOR_ENABLE" in answer.text
    assert not api.redis.exists(f"{api.prefix}metrics")


def test_with_keys_an_admin_or_the_scrapers_own_key_opens_it(make_api):
    keys = {"ROCK_API_KEYS": "key-of-alice=alice,key-of-root=root:admin", "ROCK_METRICS__KEY": "key-of-prometheus"}
    api = make_api(**ON, **keys)
    for key, status in {"key-of-alice": 200, "key-of-nobody": 401, "": 401}.items():
        answer = api.client.get("/metrics", headers={"Authorization": f"Bearer {key}"} if key else None)
        # Forbidden is an envelope, as everywhere.
        assert answer.status_code == status and b"rock_" not in answer.data, key
    for key in ("key-of-root", "key-of-prometheus"):
        assert numbers(api, {"Authorization": f"Bearer {key}"})
    refused = api.client.get("/apis/envs/sandbox/v1/sandboxes", headers={"X-API-Key": "key-of-prometheus"})
    assert refused.status_code == 401, "it opens nothing else"


def test_what_callers_and_sandboxes_say_does_not_become_a_label(api):
    """Each value is kept for ever, so there must be few."""
    for number in range(3):
        path = f"/apis/envs/sandbox/v1/sandboxes/nobody-{number}/proxy/x"
        api.client.open(path, method=f"ODD{number}", environ_overrides={"RAW_URI": path})
    api.tally.flush()
    api.client.application.extensions["rock"].metrics.tally.flush()
    labels = " ".join(api.redis.hkeys(f"{api.prefix}metrics"))
    assert '"other"' in labels and "ODD" not in labels and "nobody" not in labels


@pytest.mark.parametrize(
    ("text", "status", "expected"),
    [
        ('{"status": "Success", "result": 1}', 200, "ok"),
        ('{"result":{"output":"x"},"status":"Success"}', 200, "ok"),
        ('{"result":{"kind":"not_found"},"status":"Failed"}', 200, "not_found"),
        ('{"result":{"kind":"made up"},"status":"Failed"}', 200, "ok"),
        ('{"error": "no"}', 404, "http_404"),
        (
            '{"result":{"kind":"command_failed","output":"\\"status\\":\\"Success\\""},"status":"Failed"}',
            200,
            "command_failed",
        ),
    ],
)
def test_outcomes(text, status, expected):
    assert outcome(Response(text, status, mimetype="application/json")) == expected
