"""The client's one request path: same id on every try, long polls, typed errors, nothing left open."""

import asyncio
import gc
import subprocess
import sys

import pytest
from aiohttp import web

from rock import errors
from rock.sdk import pool
from rock.sdk.transport import Transport
from tests.unit.sdk.fake_service import HANG_UP, FakeService, observation, success, unfinished


def with_service(test):
    """Run an async test with a service and a transport to it."""

    def run():
        async def body():
            async with FakeService() as fake:
                await test(fake, Transport(fake.url, {"X-Cluster": "zb"}, patience=3))

        asyncio.run(body())

    run.__name__ = test.__name__
    return run


@with_service
async def test_a_lost_connection_is_tried_again_under_the_same_id(fake, transport):
    fake.on("/run_in_session", HANG_UP, HANG_UP, observation("once"))
    assert (await transport.call("/run_in_session", {"command": "x"}))["output"] == "once"
    ids = {seen.body["request_id"] for seen in fake.seen}
    assert len(fake.seen) == 3
    assert len(ids) == 1


@with_service
async def test_503_is_tried_again_after_the_pause_it_names(fake, transport):
    down = web.json_response(
        errors.Unavailable("Redis is down").to_envelope(), status=503, headers={"Retry-After": "0"}
    )
    fake.on("/execute", lambda _: _again(down), success({"stdout": "", "stderr": "", "exit_code": 0}))
    assert await transport.call("/execute", {}) == {"stdout": "", "stderr": "", "exit_code": 0}


async def _again(response):
    return web.Response(status=response.status, body=response.body, headers=response.headers)


@with_service
async def test_A18_an_unfinished_call_is_polled_until_its_end(fake, transport):
    fake.on("/execute", unfinished("mine"))
    fake.on("/results/*", unfinished("mine"), HANG_UP, success({"exit_code": 3}))
    assert await transport.call("/execute", {"request_id": "mine"}) == {"exit_code": 3}
    polls = fake.requests("/results/mine")
    assert len(polls) == 3
    assert {poll.query["wait"] for poll in polls} == {"30"}
    assert len(fake.requests("/execute")) == 1


def test_A18_the_clients_own_limit_is_above_the_services(monkeypatch):
    """Of a call that is answered only when done: what was asked for, and a margin."""
    monkeypatch.setattr("rock.sdk.transport.SLOW_SECONDS", 0.1)
    monkeypatch.setattr("rock.sdk.transport.MARGIN_SECONDS", 5.0)

    @with_service
    async def body(fake, transport):
        fake.on("/create_session", lambda _: _slowly(0.4, success("open")))
        assert await transport.post("/create_session", {}, seconds=0.4) == "open"
        assert len(fake.seen) == 1

    body()


@with_service
async def test_a_failed_envelope_is_its_error(fake, transport):
    fake.on("/execute", errors.CommandTimeout("too long", exit_code=124, output="half").to_envelope())
    with pytest.raises(errors.CommandTimeout) as raised:
        await transport.call("/execute", {})
    assert (raised.value.exit_code, raised.value.details["output"]) == (124, "half")
    fake.on("/stop", web.json_response(errors.Unauthorized("no key").to_envelope(), status=401))
    with pytest.raises(errors.Unauthorized, match="no key"):
        await transport.post("/stop", {})


@with_service
async def test_an_answer_from_some_other_server(fake, transport):
    with pytest.raises(errors.RouteNotFound, match="base_url"):
        await transport.get("/nowhere")
    fake.on("/html", web.Response(text="<html>", content_type="text/html"))
    with pytest.raises(errors.Internal, match="HTTP 200"):
        await transport.get("/html")


@with_service
async def test_a_call_whose_waiter_is_cancelled_is_cancelled_at_the_service(fake, transport):
    fake.on("/execute", unfinished("mine"))
    fake.on("/results/mine", lambda _: _slowly())
    fake.on("/results/mine/cancel", success(None))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await transport.call("/execute", {"request_id": "mine"})
    assert len(fake.requests("/results/mine/cancel")) == 1


async def _slowly(seconds=1.0, answer=None):
    await asyncio.sleep(seconds)
    return answer or unfinished("mine")


def test_nobody_there():
    async def body():
        with pytest.raises(
            errors.Unavailable, match=r"does not answer: Connection refused\. .*ROCK_BASE_URL"
        ) as refused:
            await Transport("http://127.0.0.1:9", {}, patience=0.5).get("/is_alive")
        assert refused.value.__suppress_context__, "a user sees one error, not those of the libraries"
        with pytest.raises(errors.Unavailable, match=r"does not answer: \w.*ROCK_BASE_URL"):
            await Transport("http://no-such-host.invalid", {}, patience=0.1).get("/is_alive")
        with pytest.raises(errors.BadRequest, match="not a URL"):
            await Transport("nonsense", {}, patience=0.5).get("/is_alive")

    asyncio.run(body())


def test_headers_and_body():
    @with_service
    async def body(fake, transport):
        fake.on("/stop", success("ok"))
        assert await transport.post("/stop", {"sandbox_id": "s", "request_id": "r"}) == "ok"
        (seen,) = fake.seen
        assert seen.body == {"sandbox_id": "s", "request_id": "r"}
        assert seen.headers["X-Cluster"] == "zb"

    body()


def test_one_client_per_loop_closed_with_it():
    async def body():
        first, second = await asyncio.gather(pool.client(), pool.client())
        assert first is second
        return first

    one, two = asyncio.run(body()), asyncio.run(body())
    assert one is not two
    assert one.closed
    assert two.closed
    del one, two
    gc.collect()


def test_importing_rock_is_light():
    script = (
        "import sys, rock, rock.errors, rock.settings; "
        "heavy = {'aiohttp', 'marshmallow', 'asyncio', 'click'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": "sdk", "PATH": ""})
