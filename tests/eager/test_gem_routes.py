"""GEM's routes in process: what is refused and how (A08: never by a bare 500), and what a make that fails leaves (nothing)."""

import json

import pytest

PREFIX = "/apis/v1/envs/gem"


@pytest.fixture
def api(make_api):
    made = make_api(ROCK_ENVHUB__ENABLE="false", ROCK_ENVHUB_DEFAULT_DOCKER_IMAGE="my/python:1")
    made.node.join()
    return made


def post(api, verb, status, headers=None, data=None, **fields):
    body = json.dumps(fields) if data is None else data
    answer = api.client.post(f"{PREFIX}/{verb}", data=body, headers=headers)
    assert answer.status_code == status, answer.data
    value = answer.get_json()
    assert "status" not in value and "Traceback" not in answer.text
    return value if status == 200 else value["error"]


@pytest.mark.parametrize(
    ("verb", "fields", "word"),
    [
        ("make", {}, "env_id"), ("make", {"env_id": ""}, "env_id"), ("make", {"env_id": 1}, "env_id"),
        ("make", {"env_id": "a\nb"}, "env_id"), ("reset", {}, "sandbox_id"), ("step", {"sandbox_id": "s"}, "action"),
        ("reset", {"sandbox_id": "s", "seed": "x"}, "seed"), ("reset", {"sandbox_id": "s", "seed": 1.5}, "seed"),
        ("reset", {"sandbox_id": "../s"}, "sandbox_id"), ("list", {}, "sandbox_id"), ("close", {}, "sandbox_id"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(api, verb, fields, word):
    assert word in post(api, verb, 400, **fields)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"x"', b"\xff", b"[" * 10_000])
def test_a03_a_bad_body_is_no_server_error(api, data):
    assert post(api, "step", 400, data=data)


def test_unknown_sandboxes_routes_and_methods(api):
    for verb, fields in (("reset", {}), ("step", {"action": "x"}), ("close", {}), ("list", {})):
        assert "s1" in post(api, verb, 404, sandbox_id="s1", **fields)
    unknown = api.client.post(f"{PREFIX}/nope", data="{}")
    assert unknown.status_code == 404 and unknown.get_json()["error"]
    assert api.client.get(f"{PREFIX}/make").status_code == 405
    large = api.client.post(f"{PREFIX}/step", data=b" " * (api.config.server.json_limit + 1))
    assert large.status_code == 413 and "larger" in large.get_json()["error"]


def test_a_huge_action_is_refused_before_it_is_sent(api):
    assert "action" in post(api, "step", 400, sandbox_id="s1", action="x" * 9_000_000)


def test_a_make_that_fails_leaves_no_sandbox(api):
    """The node of these tests answers with what is no environment's answer: as a sandbox that lies would."""
    assert "no proper answer" in post(api, "make", 500, env_id="game:Sokoban-v0-easy")
    listed = [api.redis.hgetall(key) for key in api.redis.scan_iter(f"{api.prefix}sandbox:*")]
    assert [json.loads(record["spec"])["image"] for record in listed] == ["my/python:1"]
    assert {record["state"] for record in listed} == {"stopped"}


def test_A09_a_reset_that_fails_frees_its_sandbox(api):
    sandbox_id = api.start()
    answer = api.client.post(f"{PREFIX}/reset", data=json.dumps({"sandbox_id": sandbox_id}))
    assert answer.status_code == 500 and "make another one" in answer.get_json()["error"]
    assert api.get("/get_status", sandbox_id=sandbox_id, include_all_states="true")["result"]["state"] == "stopped"


def test_a_start_that_fails_says_why(make_api):
    api = make_api(ROCK_ENVHUB__ENABLE="false", ROCK_ENVHUB_DEFAULT_DOCKER_IMAGE="missing")
    api.node.join()
    answer = api.client.post(f"{PREFIX}/make", data=json.dumps({"env_id": "e"}))
    assert answer.status_code == 500 and answer.get_json()["kind"] == "image_not_found"
    assert "no such image" in answer.get_json()["error"]


def test_a_sandbox_that_is_stopped_is_not_there(api):
    sandbox_id = api.start()
    api.post("/stop", sandbox_id=sandbox_id)
    assert sandbox_id in post(api, "step", 404, sandbox_id=sandbox_id, action="x")
    assert post(api, "close", 200, sandbox_id=sandbox_id) == {"sandbox_id": sandbox_id}


def test_an_envhub_that_does_not_answer_is_no_default(make_api, monkeypatch):
    monkeypatch.setattr("app.gem.recipes.PATIENCE_SECONDS", 0.0)
    api = make_api(ROCK_ENVHUB_BASE_URL="http://127.0.0.1:9")
    api.node.join()
    answer = api.client.post(f"{PREFIX}/make", data=json.dumps({"env_id": "e"}))
    assert answer.status_code == 503 and answer.headers["Retry-After"]
    assert "127.0.0.1:9" in answer.get_json()["error"] and "envhub" in answer.get_json()["error"]


def test_keys(make_api):
    api = make_api(ROCK_API_KEYS="k-ann=ann,k-bob=bob", ROCK_ENVHUB__ENABLE="false")
    api.node.join()
    assert "key" in post(api, "make", 401, env_id="e")
    sandbox_id = api.start(headers={"X-API-Key": "k-ann"})
    bob = {"X-API-Key": "k-bob"}
    assert "not found" in post(api, "step", 404, headers=bob, sandbox_id=sandbox_id, action="x")
    assert "not found" in post(api, "close", 404, headers=bob, sandbox_id=sandbox_id)
