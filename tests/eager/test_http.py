"""What arrives over HTTP, however broken, and who may send it."""

import dataclasses
import json
import threading

import pytest

from app.api import ENDPOINTS
from tests.eager.conftest import PREFIX, envelope


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "not valid JSON"),
        (b"", "empty"),
        (b" \n", "empty"),
        (b"[]", "JSON object"),
        (b'"x"', "JSON object"),
        (b"null", "JSON object"),
        ('{"image":"ü"}'.encode("latin-1"), "not UTF-8"),
        (b"[" * 10_000 + b"]" * 10_000, "nested"),
        (b'{"image":' + b"[" * 10_000 + b"]" * 10_000 + b"}", "nested"),
        (b'{"image": NaN}', "image"),
        (b'{"image": "x", "cpus": NaN}', "cpus"),
        (b'{"image": "x", "cpus": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"image": ""}', "image"),
        (b'{"image": " "}', "image"),
        (b'{"image": 123}', "image"),
        (b'{"image": null}', "image"),
        (b"{}", "image"),
        (b'{"image": "x", "sandbox_id": "../x"}', "sandbox_id"),
        (b'{"image": "x", "sandbox_id": "a:b"}', "sandbox_id"),
        (b'{"image": "x", "memory": "8x"}', "memory"),
        (b'{"image": "x", "memory": "0"}', "memory"),
        (b'{"image": "x", "cpus": 0}', "cpus"),
        (b'{"image": "x", "cpus": 1000}', "cpus"),
        (b'{"image": "x", "memory": "900g"}', "memory"),
        (b'{"image": "x", "auto_clear_time_minutes": 0}', "auto_clear_time_minutes"),
    ],
)
def test_bad_starts_name_what_is_wrong(api, body, text):
    for content_type in ("application/json", "text/plain", None):
        answer = api.client.post(f"{PREFIX}/start", data=body, content_type=content_type)
        failed = envelope(answer)
        assert (answer.status_code, failed["result"]["code"]) == (200, 4000), failed
        assert text in failed["error"]
    assert api.leftovers() == set()


@pytest.mark.parametrize("timeout", [0, -1, "5", float("nan"), float("inf"), True])
def test_bad_timeouts(api, timeout):
    sandbox_id = api.start()
    for path in ("/run_in_session", "/execute"):
        failed = api.post(path, sandbox_id=sandbox_id, command="x", timeout=timeout)
        assert (failed["result"]["code"], "timeout" in failed["error"]) == (4000, True)


def test_unknown_fields_are_ignored(api):
    assert api.start(whatever=1, xrl_authorization="x")


def test_other_paths_and_methods(api):
    for path in ("/nope", f"{PREFIX}/nope", f"{PREFIX}/start/"):
        answer = api.client.post(path, data="{}")
        assert (answer.status_code, envelope(answer)["result"]["kind"]) == (404, "route_not_found")
    answer = api.client.get(f"{PREFIX}/start")
    assert (answer.status_code, envelope(answer)["result"]["kind"]) == (405, "method_not_allowed")
    assert "POST" in answer.headers["Allow"]


def test_too_large(make_api):
    api = make_api(ROCK_SERVER__JSON_LIMIT="1m", ROCK_SERVER__UPLOAD_LIMIT="2m")
    api.node.join()
    sandbox_id = api.start()
    answer = api.client.post(f"{PREFIX}/write_file", data=b"x" * (1024**2 + 1))
    assert (answer.status_code, envelope(answer)["result"]["kind"]) == (413, "too_large")
    form = {"sandbox_id": sandbox_id, "target_path": "/x", "file": (b"x" * 3 * 1024**2, "x")}
    answer = api.upload(form)
    assert (answer.status_code, envelope(answer)["result"]["kind"]) == (413, "too_large")
    assert api.post("/run_in_session", sandbox_id=sandbox_id, command="echo ok")["result"]["output"] == "ok"


def test_ten_megabytes_of_json(api):
    sandbox_id = api.start()
    answer = api.post("/write_file", sandbox_id=sandbox_id, path="/x", content="x" * 10_000_000)
    assert answer["status"] == "Success"
    failed = api.post("/run_in_session", body=["x" * 10_000_000])
    assert failed["result"]["code"] == 4000


def test_answers_are_utf8_whatever_is_in_them(api):
    sandbox_id = api.start()
    for size in (1, 100_000):
        content = api.post("/read_file", sandbox_id=sandbox_id, path=f"/f/{size}")["result"]["content"]
        assert content == "ü\ud800\x00" + "x" * size


def test_lone_surrogates_and_nuls_are_refused_where_they_cannot_pass(api):
    sandbox_id = api.start()
    failed = api.post("/write_file", sandbox_id=sandbox_id, path="/x", content="\ud800")
    assert "content" in failed["error"]
    failed = api.post("/write_file", sandbox_id=sandbox_id, path="/a\0b", content="")
    assert "path" in failed["error"]


def test_upload_small_and_large_whatever_the_order(api):
    sandbox_id = api.start()
    for size in (0, 5, 3_000_000):
        data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        for first in ("file", "sandbox_id"):
            form = {"sandbox_id": sandbox_id, "target_path": f"/w/{size}", "file": (data, "ü n.bin")}
            form = dict(sorted(form.items(), key=lambda item: item[0] != first))
            answer = envelope(api.upload(form))
            assert answer["result"] == {"success": True, "message": "", "file_name": "ü n.bin"}
            assert api.node.uploads.pop(f"/w/{size}") == data
    assert not list(api.redis.scan_iter(f"{api.prefix}blob*"))


@pytest.mark.parametrize("data, as_blob", [(b"x" * 100_000, False), (bytes(2000), False), (bytes(2001), True)])
def test_what_is_hard_for_bash_goes_beside_the_keeper(api, data, as_blob):
    sandbox_id = api.start()
    form = {"sandbox_id": sandbox_id, "target_path": "/w/x", "file": (data, "x")}
    assert envelope(api.upload(form))["status"] == "Success"
    assert api.node.uploads.pop("/w/x") == data
    assert bool(api.node.moved) == as_blob


def test_a_refused_large_upload_answers_at_once(api):
    sandbox_id = api.start()
    form = {"sandbox_id": sandbox_id, "target_path": "/refused", "file": (b"x" * 20_000_000, "x")}
    failed = envelope(api.upload(form))
    assert "Read-only" in failed["error"]
    assert not list(api.redis.scan_iter(f"{api.prefix}blob*"))


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        ("application/json", b"{}", "multipart"),
        ("multipart/form-data", b"x", ""),
        ("multipart/form-data; boundary=b", b"--b\r\nContent-Disposition: form-data; name=", ""),
        ("multipart/form-data; boundary=b", b"garbage", ""),
        ("multipart/form-data; boundary=b", b"", ""),
    ],
)
def test_broken_uploads(api, content_type, body, text):
    failed = envelope(api.client.post(f"{PREFIX}/upload", data=body, content_type=content_type))
    assert failed["result"]["code"] == 4000
    assert text in failed["error"]


def test_upload_names_the_missing_part(api):
    sandbox_id = api.start()
    for missing in ("file", "target_path", "sandbox_id"):
        form = {"sandbox_id": sandbox_id, "target_path": "/x", "file": (b"", "x")}
        del form[missing]
        failed = envelope(api.upload(form))
        assert (failed["result"]["code"], missing in failed["error"]) == (4000, True)


def test_keys(make_api):
    api = make_api(ROCK_API_KEYS="alpha-key=alice,beta-key=bob,root-key=ops:admin")
    api.node.join()
    for headers in ({}, {"X-API-Key": "wrong"}):
        answer = api.client.post(f"{PREFIX}/start", data="{}", headers=headers)
        assert (answer.status_code, envelope(answer)["result"]["kind"]) == (401, "unauthorized")
    assert api.client.get("/healthz").status_code == 200
    alice, bob, root = ({"X-API-Key": f"{name}-key"} for name in ("alpha", "beta", "root"))
    sandbox_id = api.start(headers=alice, sandbox_id="mine")
    call = {"sandbox_id": sandbox_id, "command": "echo hi", "request_id": "R"}
    assert api.post("/run_in_session", call, headers=alice)["result"]["output"] == "hi"
    unknown = "Sandbox mine not found"
    assert api.post("/run_in_session", call, headers=bob)["error"] == unknown
    assert api.post("/stop", sandbox_id=sandbox_id, headers=bob)["error"] == unknown
    assert api.get("/get_status", sandbox_id=sandbox_id, headers=bob)["error"] == unknown
    assert api.get("/is_alive", sandbox_id=sandbox_id, headers=bob)["result"] == {"is_alive": False, "message": unknown}
    assert api.get("/results/R", headers=bob)["result"]["kind"] == "not_found"
    assert api.post("/results/R/cancel", headers=bob)["result"]["kind"] == "not_found"
    assert (
        api.post("/start", headers=bob, image="x", memory="1g", sandbox_id="mine")["result"]["kind"] == "already_exists"
    )
    assert api.get("/get_status", sandbox_id=sandbox_id, headers=root)["result"]["is_alive"]
    assert api.post("/stop", sandbox_id=sandbox_id, headers=root)["status"] == "Success"


# What a request needs beside its sandbox.
NEEDED = {
    "/run_in_session": {"command": "x"}, "/execute": {"command": "x"}, "/read_file": {"path": "/x"},
    "/write_file": {"path": "/x", "content": ""}, "/commit": {"image_tag": "a:1"}, "/step": {"action": "x"},
}  # fmt: skip


def _about_a_sandbox():
    """Return every endpoint that names a sandbox, in its path, query or body; uploads have their own test."""

    def names(one) -> bool:
        fields = [field.name for field in dataclasses.fields(one.request)] if one.request else []
        return "sandbox_id" in (*one.query, *fields) or "<sandbox_id>" in one.path

    return [one for one in ENDPOINTS if names(one) and one.path not in ("/start", "/start_async") and not one.multipart]


@pytest.mark.parametrize("endpoint", _about_a_sandbox(), ids=lambda one: one.path)
def test_X07_anothers_sandbox_is_answered_as_an_unknown_one(make_api, endpoint):
    """Word for word, whatever is asked; and its owner notices nothing."""
    api = make_api(ROCK_API_KEYS="alpha-key=alice,beta-key=bob", ROCK_ENVHUB__ENABLE="false")
    api.node.join()
    alice, bob = {"X-API-Key": "alpha-key"}, {"X-API-Key": "beta-key"}
    api.start(headers=alice, sandbox_id="mine")
    ran = list(api.node.ran)

    def ask(sandbox_id):
        path = endpoint.prefix + endpoint.path.replace("<sandbox_id>", sandbox_id)
        if endpoint.method == "GET":
            answer = api.client.get(path, query_string={"sandbox_id": sandbox_id, "path": "/x"}, headers=bob)
        else:
            body = {"sandbox_id": sandbox_id, **NEEDED.get(endpoint.path, {})}
            answer = api.client.post(path, data=json.dumps(body), headers=bob)
        return answer.status_code, answer.text.replace(sandbox_id, "ID")

    assert ask("mine") == ask("nobodys")
    assert api.node.ran == ran
    assert api.get("/is_alive", sandbox_id="mine", headers=alice)["result"]["is_alive"]


def test_X07_uploads_into_anothers_sandbox(make_api):
    api = make_api(ROCK_API_KEYS="alpha-key=alice,beta-key=bob")
    api.node.join()
    api.start(headers={"X-API-Key": "alpha-key"}, sandbox_id="mine")
    form = {"sandbox_id": "mine", "target_path": "/x", "file": (b"x", "x")}
    assert envelope(api.upload(form, headers={"X-API-Key": "beta-key"}))["error"] == "Sandbox mine not found"


def test_A19_more_starts_than_may_wait_are_503(make_api):
    api = make_api(ROCK_RUNTIME__WAITING_LIMIT="1")
    api.node.join(cpus=1.0)
    first = api.start()
    assert api.post("/start_async", image="x", memory="1g", cpus=1)["status"] == "Success"
    body = json.dumps({"image": "x", "memory": "1g", "cpus": 1})
    for route in ("/start", "/start_async"):
        answer = api.client.post(PREFIX + route, data=body)
        assert answer.status_code == 503 and int(answer.headers["Retry-After"]) > 0
        result = envelope(answer)["result"]
        assert (result["code"], result["kind"], result["retryable"]) == (5000, "unavailable", True)
    api.post("/stop", sandbox_id=first)


def test_secrets_stay_out_of_records_answers_and_logs(api, caplog):
    caplog.set_level("DEBUG")
    sandbox_id = api.start(registry_username="robot", registry_password="hunter2secret", env={"A": "hunter2secret"})
    api.post("/start", image="missing", registry_password="hunter2secret", memory="1g")
    shown = json.dumps(api.get("/get_status", sandbox_id=sandbox_id))
    kept = "".join(str(api.redis.hgetall(key)) for key in api.redis.scan_iter(f"{api.prefix}[cs]*:*"))
    for text in (shown, kept, caplog.text):
        assert "hunter2secret" not in text


def test_health_docs_and_openapi(make_api):
    api = make_api()
    assert json.loads(api.client.get("/healthz").data)["status"] == "no node is alive"
    api.node.join()
    for path in ("/", "/healthz"):
        state = json.loads(api.client.get(path).data)
        assert (state["nodes"], state["runtime"], state["redis"]) == ({"alive": 1, "total": 1}, ["local"], True)
        assert state["version"] and state["subscription"] == "idle"
    sandbox_id = api.start()
    api.post("/run_in_session", sandbox_id=sandbox_id, command="echo hi")
    assert json.loads(api.client.get("/healthz").data)["subscription"] == "up"
    spec = json.loads(api.client.get("/openapi.json").data)
    assert spec["paths"][f"{PREFIX}/run_in_session"]["post"]["requestBody"]
    assert set(spec["components"]["schemas"]["BashAction"]["required"]) == {"command", "sandbox_id"}
    assert "{request_id}" in "".join(spec["paths"])
    page = api.client.get("/docs")
    assert page.mimetype == "text/html"
    assert b"http" not in page.data


def test_redis_away(make_api):
    api = make_api(ROCK_REDIS_URL="redis://127.0.0.1:1/0")
    calls = [("POST", "/start", '{"image":"x","memory":"1g"}'), ("POST", "/stop", '{"sandbox_id":"a"}')]
    for method, path, body in calls:
        answer = api.client.open(PREFIX + path, method=method, data=body)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
        assert envelope(answer)["result"]["retryable"] is True
    assert api.client.get("/").status_code == 200
    assert api.client.get("/healthz").status_code == 503


def test_many_at_once_get_their_own_answers(api):
    sandbox_id, answers = api.start(), {}

    def ask(index):
        client = api.client.application.test_client()
        body = json.dumps({"sandbox_id": sandbox_id, "command": f"echo {index}"})
        answers[index] = json.loads(client.post(f"{PREFIX}/run_in_session", data=body).data)["result"]["output"]

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {index: str(index) for index in range(50)}
