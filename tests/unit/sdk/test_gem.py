"""`rock.make`: a gymnasium-like environment over the GEM routes."""

import asyncio
import os
import signal

import pytest
from aiohttp import web

import rock
from rock import errors
from rock.sdk.gem import PREFIX
from tests.unit.sdk.fake_service import HANG_UP, started, success


def test_an_episode(service, monkeypatch):
    monkeypatch.setenv("ROCK_BASE_URL", service.url)
    service.on(f"{PREFIX}/make", {"sandbox_id": "s1"})
    service.on(f"{PREFIX}/reset", {"observation": "o", "info": {"i": 1}})
    step = {"observation": "p", "reward": 0.5, "terminated": False, "truncated": True, "info": {}}
    service.on(f"{PREFIX}/step", step)
    service.on(f"{PREFIX}/close", {"sandbox_id": "s1"})
    with rock.make("game:Sokoban-v0-easy", api_key="k") as environment:
        assert environment.reset(seed=42) == ("o", {"i": 1})
        assert environment.step("up") == ("p", 0.5, False, True, {})
    environment.close()
    assert [seen.body for seen in service.seen] == [
        {"env_id": "game:Sokoban-v0-easy"},
        {"sandbox_id": "s1", "seed": 42},
        {"sandbox_id": "s1", "action": "up"},
        {"sandbox_id": "s1"},
    ]
    assert {seen.headers["X-API-Key"] for seen in service.seen} == {"k"}
    with pytest.raises(errors.NotRunning, match="closed"):
        environment.step("up")


@pytest.mark.parametrize(("status", "cls"), [(400, errors.BadRequest), (404, errors.NotFound), (500, errors.Internal)])
def test_an_http_error_is_its_class(service, status, cls):
    service.on(f"{PREFIX}/make", web.json_response({"error": "no environment 'x'"}, status=status))
    with pytest.raises(cls, match="no environment 'x'"):
        rock.make("x", base_url=service.url)


def test_the_kind_tells_the_environments_fault_from_the_services(service):
    failed = {"error": "the environment raised ValueError: x", "kind": "command_failed", "code": 6000}
    service.on(f"{PREFIX}/make", web.json_response(failed, status=500))
    with pytest.raises(errors.CommandFailed, match="ValueError: x"):
        rock.make("x", base_url=service.url)


def test_a_call_is_sent_again_under_its_id(service):
    service.on(f"{PREFIX}/make", HANG_UP, web.json_response({"error": "away"}, status=503), {"sandbox_id": "s1"})
    assert rock.make("x", base_url=service.url).sandbox_id == "s1"
    ids = [value for seen in service.seen for name, value in seen.headers.items() if name.lower() == "x-request-id"]
    assert len(ids) == 3 and len(set(ids)) == 1


async def _late(seen):
    await asyncio.sleep(0.6)
    return {"sandbox_id": "too late"}


def test_A18_a_call_may_take_longer_than_one_request(service, monkeypatch):
    monkeypatch.setattr("rock.sdk.gem.ANSWER_SECONDS", 0.2)
    service.on(f"{PREFIX}/make", _late, {"sandbox_id": "s1"})
    assert rock.make("x", base_url=service.url, patience=0).sandbox_id == "s1"
    ids = [value for seen in service.seen for name, value in seen.headers.items() if name.lower() == "x-request-id"]
    assert len(ids) == 2 and len(set(ids)) == 1, "it attaches to the first"


def test_a_service_that_never_answers_is_given_up(service, monkeypatch):
    monkeypatch.setattr("rock.sdk.gem.ANSWER_SECONDS", 0.1)
    monkeypatch.setattr("rock.sdk.gem.LONGEST_SECONDS", 0.3)
    service.on(f"{PREFIX}/make", _late)
    with pytest.raises(errors.Unavailable, match="no answer in time"):
        rock.make("x", base_url=service.url)


def test_A09_an_interrupted_make_leaves_no_sandbox(service):
    """Ctrl-C while the environment is made: its start is withdrawn, and what it brought up is stopped."""

    async def interrupt(seen):
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(1)

    service.on(f"{PREFIX}/make", interrupt)
    service.on("/results/*", started("s1"))
    service.on("/stop", success("ok"))
    with pytest.raises(KeyboardInterrupt):
        rock.make("x", base_url=service.url, api_key="k")
    (made,) = service.requests(f"{PREFIX}/make")
    (name,) = [value for header, value in made.headers.items() if header.lower() == "x-request-id"]
    assert [seen.path for seen in service.seen[1:]] == [f"/results/{name}/cancel", f"/results/{name}", "/stop"]
    assert service.seen[-1].body["sandbox_id"] == "s1"
    assert {seen.headers["X-API-Key"] for seen in service.seen} == {"k"}


def test_nobody_there(monkeypatch):
    monkeypatch.setattr("rock.sdk.plain.PATIENCE_SECONDS", 0.0)
    with pytest.raises(errors.Unavailable):
        rock.make("x", base_url="http://127.0.0.1:9")
