"""EnvHub's client: what it sends, what it makes of the answers."""

import pytest
from aiohttp import web

from rock import errors
from rock.sdk import loop
from rock.sdk.envhub import EnvHubClient, EnvHubClientConfig, RockEnvInfo

ENTRY = {"env_name": "e", "image": "i", "owner": "o", "description": "", "tags": ["t"], "extra_spec": None,
         "create_at": "2026-01-01T00:00:00+00:00", "update_at": "2026-01-01T00:00:00+00:00"}  # fmt: skip


@pytest.fixture
def hub(service):
    return EnvHubClient(EnvHubClientConfig(service.url, "k"))


def test_each_verb(service, hub):
    service.on("/env/register", ENTRY)
    service.on("/env/get", ENTRY)
    service.on("/env/list", {"envs": [ENTRY]})
    service.on("/env/delete", web.json_response(True))
    service.on("/health", {"status": "ok"})
    assert loop.run(hub.register("e", "i", "o", tags=["t"], extra_spec={"a": 1})) == RockEnvInfo(**ENTRY)
    assert loop.run(hub.get_env("e")).image == "i"
    assert [entry.env_name for entry in loop.run(hub.list_envs(owner="o"))] == ["e"]
    assert loop.run(hub.delete_env("e")) is True
    assert loop.run(hub.health_check()) == {"status": "ok"}
    assert service.seen[0].body == {
        "env_name": "e", "image": "i", "owner": "o", "description": "", "tags": ["t"], "extra_spec": {"a": 1}
    }  # fmt: skip
    assert {seen.headers["X-API-Key"] for seen in service.seen} == {"k"}


def test_absent_and_refused(service, hub):
    absent = web.json_response({"error": "'e' is not registered", "kind": "not_found", "code": 4000}, status=404)
    service.on("/env/delete", absent)
    assert loop.run(hub.delete_env("e")) is False
    service.on("/env/get", web.json_response({"error": "'e' is not registered"}, status=404))
    with pytest.raises(errors.NotFound, match="not registered"):
        loop.run(hub.get_env("e"))
    service.on(
        "/env/register", web.json_response({"error": "not yours", "kind": "forbidden", "code": 4000}, status=403)
    )
    with pytest.raises(errors.Forbidden, match="not yours"):
        loop.run(hub.register("e", "i"))


def test_a_service_that_is_away_is_asked_again(service, hub):
    service.on("/env/get", web.json_response({"error": "away"}, status=503), ENTRY)
    assert loop.run(hub.get_env("e")).image == "i"
