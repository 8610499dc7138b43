"""EnvHub in process: its routes on a real SQLite file, keys, hostile requests, writers at once."""

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest

from app.config import load
from app.envhub import create_envhub
from app.envhub.entries import Entries
from app.sections import ConfigError
from rock.actions import RegisterEnvRequest
from rock.errors import Unavailable

ENTRY = {"env_name": "game:Sokoban-v0-easy", "image": "gem:1", "owner": "ann", "description": "d", "tags": ["game"]}


@pytest.fixture
def make_hub(tmp_path):
    def make(**environ):
        config = load(environ={"ROCK_ENVHUB_DB_URL": f"sqlite:///{tmp_path}/deep/envs.db", **environ})
        return create_envhub(config).test_client()

    return make


@pytest.fixture
def hub(make_hub):
    return make_hub()


def post(hub, route, body, status=200, **headers):
    answer = hub.post(f"/env/{route}", data=json.dumps(body), headers=headers)
    assert answer.status_code == status, answer.data
    return answer.get_json()


def test_register_get_list_delete(hub):
    assert hub.get("/health").get_json() == {"status": "ok"}
    made = post(hub, "register", {**ENTRY, "extra_spec": {"cpus": 1, "deep": [{"a": None}]}, "unknown": 1})
    assert made == {
        **ENTRY, "extra_spec": {"cpus": 1, "deep": [{"a": None}]},
        "create_at": made["create_at"], "update_at": made["create_at"],
    }  # fmt: skip
    assert datetime.fromisoformat(made["create_at"]).tzinfo is not None
    again = post(hub, "register", {"env_name": ENTRY["env_name"], "image": "gem:2", "owner": "bob"})
    assert (again["image"], again["owner"], again["tags"], again["extra_spec"]) == ("gem:2", "bob", [], None)
    assert again["create_at"] == made["create_at"] < again["update_at"]
    assert post(hub, "get", {"env_name": ENTRY["env_name"]}) == again
    post(hub, "register", {**ENTRY, "env_name": "other", "tags": ["x", "y"]})
    names = lambda **query: [entry["env_name"] for entry in post(hub, "list", query)["envs"]]  # noqa: E731
    assert names() == names(owner=None, tags=None) == names(owner="", tags=[]) == [ENTRY["env_name"], "other"]
    assert (names(owner="bob"), names(tags=["y", "z"]), names(owner="bob", tags=["y"])) == (
        [ENTRY["env_name"]], ["other"], [],
    )  # fmt: skip
    assert post(hub, "delete", {"env_name": "other"}) is True
    assert "not registered" in post(hub, "delete", {"env_name": "other"}, 404)["error"]
    assert "'other'" in post(hub, "get", {"env_name": "other"}, 404)["error"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"env_name": ""}, "env_name"), ({"env_name": "a\nb"}, "env_name"), ({"image": ""}, "image"),
        ({"image": None}, "image"), ({"tags": "game"}, "tags"), ({"tags": [1]}, "tags"), ({"owner": 1}, "owner"),
        ({"extra_spec": [1]}, "extra_spec"), ({"extra_spec": {"a": "x" * 70_000}}, "extra_spec"),
        ({"extra_spec": {"a": "\ud800"}}, "extra_spec"), ({"extra_spec": {"a": float("nan")}}, "extra_spec"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(hub, change, word):
    assert word in post(hub, "register", {**ENTRY, **change}, 400)["error"]
    assert post(hub, "list", {}) == {"envs": []}


def test_names_are_data(hub):
    for name in ("'; DROP TABLE environments; --", "ü\u2028 %s", "a" * 256):
        assert post(hub, "register", {**ENTRY, "env_name": name})["env_name"] == name
        assert post(hub, "get", {"env_name": name})["env_name"] == name
    assert len(post(hub, "list", {"owner": "ann"})["envs"]) == 3


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff", b"[" * 10_000, b"null"])
def test_a_bad_body_is_no_server_error(hub, body):
    answer = hub.post("/env/register", data=body)
    assert answer.status_code == 400 and answer.get_json()["error"]


def test_unknown_routes_methods_and_sizes(hub):
    assert hub.get("/env/get").status_code == 405 and hub.get("/env/get").get_json()["error"]
    assert hub.post("/nope").status_code == 404 and "/nope" in hub.post("/nope").get_json()["error"]
    assert hub.post("/env/get", data=b" " * 2_000_000).status_code == 413


def test_keys_are_needed_and_entries_belong_to_who_registered_them(make_hub):
    hub = make_hub(ROCK_API_KEYS="k-ann=ann,k-bob=bob,k-root=ops:admin")
    assert hub.get("/health").status_code == 200
    post(hub, "list", {}, 401)
    post(hub, "list", {}, 401, X_API_Key="wrong")
    post(hub, "register", ENTRY, X_API_Key="k-ann")
    assert post(hub, "get", {"env_name": ENTRY["env_name"]}, X_API_Key="k-bob")["owner"] == "ann"
    assert "another API key" in post(hub, "register", {**ENTRY, "image": "evil"}, 403, X_API_Key="k-bob")["error"]
    post(hub, "delete", {"env_name": ENTRY["env_name"]}, 403, X_API_Key="k-bob")
    assert post(hub, "get", {"env_name": ENTRY["env_name"]}, X_API_Key="k-ann")["image"] == "gem:1"
    post(hub, "register", {**ENTRY, "image": "gem:3"}, Authorization="Bearer k-root")
    assert post(hub, "delete", {"env_name": ENTRY["env_name"]}, X_API_Key="k-ann") is True


def test_many_writers_on_one_file(tmp_path):
    """As of several processes: each has connections of its own."""

    def write(writer):
        entries = Entries(str(tmp_path / "envs.db"))
        for number in range(8):
            request = RegisterEnvRequest(env_name=f"{writer}-{number}", image=str(writer))
            entries.register(request, "", False)
            entries.register(RegisterEnvRequest(env_name="shared", image=str(writer)), "", False)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert len(Entries(str(tmp_path / "envs.db")).list(None, None)) == 33


def test_a_file_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "broken.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(Unavailable, match=r"broken\.db"):
        Entries(str(tmp_path / "broken.db"))
    entries = Entries(str(tmp_path / "envs.db"))
    holder = sqlite3.connect(tmp_path / "envs.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    assert entries.list(None, None) == [], "a reader does not wait for a writer"
    holder.close()


@pytest.mark.parametrize("url", ["postgresql://u@h/db", "sqlite:///", "sqlite:///:memory:"])
def test_other_databases_are_refused(url):
    with pytest.raises(ConfigError, match=r"envhub\.db_url"):
        load(environ={"ROCK_ENVHUB_DB_URL": url})


def test_where_it_is():
    assert load(environ={}).envhub.is_here()
    assert load(environ={"ROCK_ENVHUB__PORT": "9"}).envhub.base_url == "http://127.0.0.1:9"
    assert load(environ={"ROCK_ENVHUB_BASE_URL": "http://localhost:8081/"}).envhub.is_here()
    assert not load(environ={"ROCK_ENVHUB_BASE_URL": "http://hub.example:8081"}).envhub.is_here()
    assert not load(environ={"ROCK_ENVHUB__ENABLE": "no"}).envhub.is_here()
