"""What the rollout's thin client sends, sends again, and gives up."""

import asyncio
import io
import logging
import subprocess
import sys
import tarfile

import pytest

from rock import errors
from rock.rollout.breaker import Breaker, NotAsked
from rock.rollout.sandbox import RockSandbox
from rock.rollout.service import NoAnswer, Service
from tests.unit.sdk.fake_service import HANG_UP, FakeService, observation, started, success, unfinished


class Time:
    """A clock that only the test moves, and a sleep that moves it."""

    def __init__(self):
        self.now = 1000.0
        self.slept = []

    def clock(self):
        return self.now

    async def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


def with_rollout(test):
    """Run an async test with a service, a RockSandbox for it and its time."""

    def run(**fixtures):
        async def body():
            time = Time()
            async with FakeService() as fake:
                fake.on("/start", started())
                fake.on("/stop", success("stopped"))
                fake.on("/create_session", success({"output": "", "session_type": "bash"}))
                fake.on("/run_in_session", observation("out"))
                sandbox = RockSandbox(fake.url, breaker=Breaker(clock=time.clock), sleep=time.sleep)
                async with sandbox:
                    await test(fake, sandbox, time, **fixtures)

        asyncio.run(body())

    run.__name__ = test.__name__
    return run


def failed(error):
    return error.to_envelope()


def test_importing_it_loads_neither_the_sdk_nor_a_server():
    script = """
import sys
import aiohttp
before = set(sys.modules)
import rock.rollout
new = sorted(set(sys.modules) - before)
ours = [name for name in new if name.split(".")[0] == "rock"]
others = {name.split(".")[0] for name in new} - {"rock"} - set(sys.stdlib_module_names)
print(" ".join(ours), "|", " ".join(sorted(others)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    ours, _, others = done.stdout.strip().partition("|")
    allowed = {"rock", "rock.archive", "rock.errors", "rock.settings"}
    assert {name for name in ours.split() if not name.startswith("rock.rollout")} == allowed
    assert others.strip() == ""


@with_rollout
async def test_the_seven_verbs(fake, sandbox, time):
    fake.on("/execute", success({"stdout": "a\n", "stderr": "b\n", "exit_code": 3}))
    fake.on("/remove_image", success({"removed": ["n1"], "failed": []}))
    sandbox_id = await sandbox.start("i:1", cpus=4, memory="16g", docker_args=["-v", "/a:/b:ro"])
    sent = fake.seen[0].body
    assert (sent["image"], sent["cpus"], sent["memory"]) == ("i:1", 4, "16g")
    assert sent["docker_args"] == ["-v", "/a:/b:ro"] and "sandbox_id" not in sent and sandbox_id == "s1"
    assert (sent["startup_timeout"], sent["auto_delete_seconds"]) == (300, 0)
    seen = await sandbox.execute_in_session("echo", "s")
    assert (seen.output, seen.exit_code) == ("out", 0)
    await sandbox.execute_in_session("echo", "s")
    assert len(fake.requests("/create_session")) == 1
    assert fake.requests("/run_in_session")[0].body["timeout"] == 120
    done = await sandbox.execute("ls")
    assert (done.stdout, done.stderr, done.exit_code) == ("a\n", "b\n", 3)
    assert fake.requests("/execute")[0].body["shell"] is True
    await sandbox.stop()
    await sandbox.stop()
    assert len(fake.requests("/stop")) == 1
    assert await sandbox.remove_image()
    assert fake.requests("/remove_image")[0].body["image"] == "i:1"
    with pytest.raises(errors.NotRunning):
        await sandbox.execute("ls")


@with_rollout
async def test_a_lost_start_is_sent_again_as_the_same_one(fake, sandbox, time):
    fake.on("/start", HANG_UP, failed(errors.Unavailable("queue down")), unfinished(), started())
    fake.answers["/start"][1] = _http(503, errors.Unavailable("queue down"))
    fake.on("/results/*", HANG_UP)
    await sandbox.start("i:1")
    assert len({seen.body["request_id"] for seen in fake.requests("/start")}) == 1
    assert len(fake.requests("/start")) == 4


@with_rollout
async def test_a_failed_start_is_tried_anew_ten_times(fake, sandbox, time):
    fake.on("/start", *[failed(errors.NoCapacity("full"))] * 9, started())
    await sandbox.start("i:1")
    assert len({seen.body["request_id"] for seen in fake.requests("/start")}) == 10
    assert time.slept == sorted(time.slept[:6]) + time.slept[6:] and 30 < sum(time.slept) < 200
    await sandbox.stop()
    fake.seen.clear()
    fake.on("/start", failed(errors.NoCapacity("full")))
    with pytest.raises(errors.NoCapacity):
        await sandbox.start("i:1")
    assert len(fake.requests("/start")) == 10


@with_rollout
async def test_what_no_try_can_mend_is_not_tried_again(fake, sandbox, time):
    fake.on("/start", failed(errors.ImageNotFound("no such image")))
    with pytest.raises(errors.ImageNotFound):
        await sandbox.start("i:1")
    assert len(fake.seen) == 1 and time.slept == []


@with_rollout
async def test_a_lost_command_is_sent_again_under_its_id(fake, sandbox, time):
    await sandbox.start("i:1")
    fake.on("/run_in_session", HANG_UP, unfinished(), observation("once"))
    fake.on("/results/*", unfinished(), HANG_UP)
    assert (await sandbox.execute_in_session("x")).output == "once"
    assert len({seen.body["request_id"] for seen in fake.requests("/run_in_session")}) == 1


@with_rollout
async def test_faults_of_a_command_are_not_tried_again(fake, sandbox, time):
    await sandbox.start("i:1")
    fake.on("/run_in_session", failed(errors.CommandTimeout("too long", output="so far")))
    with pytest.raises(errors.CommandTimeout) as late:
        await sandbox.execute_in_session("sleep 200")
    assert late.value.details["output"] == "so far"
    assert len(fake.requests("/run_in_session")) == 1


@with_rollout
async def test_five_failures_in_a_row_fail_fast_for_five_minutes(fake, sandbox, time):
    await sandbox.start("i:1")
    fake.on("/run_in_session", failed(errors.NodeLost("node n1 is lost")))
    for _ in range(5):
        with pytest.raises(errors.NodeLost):
            await sandbox.execute_in_session("x")
    asked = len(fake.seen)
    time.now += 299
    with pytest.raises(NotAsked, match="node h failed 5 times .* 1 s; .*node n1 is lost"):
        await sandbox.execute_in_session("x")
    assert len(fake.seen) == asked
    time.now += 2
    with pytest.raises(errors.NodeLost):  # asked again, and at once left alone again
        await sandbox.execute_in_session("x")
    with pytest.raises(NotAsked):
        await sandbox.execute_in_session("x")
    time.now += 301
    fake.on("/run_in_session", observation("well"), failed(errors.NodeLost("lost again")))
    assert (await sandbox.execute_in_session("x")).output == "well"
    for _ in range(4):
        with pytest.raises(errors.NodeLost):
            await sandbox.execute_in_session("x")
    time.now += 301
    await sandbox.stop()


def test_a_service_that_is_away_is_left_alone_but_others_are_asked():
    async def body():
        time = Time()
        breaker = Breaker(clock=time.clock)
        async with Service("http://127.0.0.1:9", {}, breaker, time.sleep) as away, FakeService() as fake:
            for _ in range(5):
                with pytest.raises(NoAnswer):
                    await away.call("/stop", {}, tries=1)
            with pytest.raises(NotAsked):
                await away.call("/stop", {})
            assert time.slept == []
            fake.on("/stop", success("stopped"))
            async with Service(fake.url, {}, breaker, time.sleep) as other:
                assert await other.call("/stop", {}) == "stopped"

    asyncio.run(body())


def test_a_start_at_a_dead_service_has_ten_tries_and_is_one_failure():
    async def body():
        time = Time()
        breaker = Breaker(clock=time.clock)
        for _ in range(5):
            sandbox = RockSandbox("http://127.0.0.1:9", breaker=breaker, sleep=time.sleep)
            with pytest.raises(NoAnswer):
                await sandbox.start("i:1")
        assert len(time.slept) == 5 * 9
        with pytest.raises(NotAsked):
            await sandbox.start("i:1")
        assert len(time.slept) == 5 * 9

    asyncio.run(body())


@with_rollout
async def test_a_full_node_and_a_missing_image_are_no_failures_of_the_service(fake, sandbox, time):
    fake.on("/start", failed(errors.ImageNotFound("no such image")))
    for _ in range(7):
        with pytest.raises(errors.ImageNotFound):
            await sandbox.start("i:1")


def test_an_image_that_stays_is_logged(caplog, monkeypatch):
    @with_rollout
    async def body(fake, sandbox, time):
        fake.on(
            "/remove_image",
            failed(errors.Unavailable("no")),
            success({"removed": [], "failed": ["n2"]}),
            success({"removed": [], "failed": ["n2"]}),
        )
        with caplog.at_level(logging.WARNING, "rock.rollout.sandbox"):
            assert not await sandbox.remove_image("big:1")
        assert "LEAKED IMAGE big:1" in caplog.text and "n2" in caplog.text
        assert len(fake.seen) == 3 and len(time.slept) == 2
        monkeypatch.setenv("STACX_KEEP_IMAGES", "1")
        assert not await sandbox.remove_image("big:1")
        assert len(fake.seen) == 3

    body()


@with_rollout
async def test_the_last_sandbox_of_an_image_removes_it(fake, sandbox, time):
    fake.on("/remove_image", success({"removed": ["n1"], "failed": []}))
    fake.on("/start", started("s1"), started("s2"))
    other = RockSandbox(fake.url)
    await sandbox.start("shared:1")
    await other.start("shared:1")
    await sandbox.stop()
    assert not await sandbox.remove_image() and not fake.requests("/remove_image")
    await other.stop()
    assert await other.remove_image() and len(fake.requests("/remove_image")) == 1


def test_a_cancelled_start_is_withdrawn_and_a_cancelled_command_ended():
    @with_rollout
    async def body(fake, sandbox, time):
        asked, over = asyncio.Event(), asyncio.Event()

        async def hold(seen):
            asked.set()
            await over.wait()
            return HANG_UP

        async def cancelled(call):
            asked.clear()
            task = asyncio.create_task(call)
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        fake.on("/start", hold, started())
        fake.on("/results/*", started("late"))
        await cancelled(sandbox.start("i:1"))
        first = fake.seen[0].body["request_id"]
        assert [seen.path for seen in fake.requests("/results")] == [f"/results/{first}/cancel", f"/results/{first}"]
        assert [seen.body["sandbox_id"] for seen in fake.requests("/stop")] == ["late"]
        await sandbox.start("i:1")
        fake.on("/run_in_session", hold)
        await cancelled(sandbox.execute_in_session("sleep"))
        assert fake.seen[-1].path == f"/results/{fake.requests('/run_in_session')[0].body['request_id']}/cancel"
        over.set()

    body()


def test_upload_dir_sends_one_tar(tmp_path):
    @with_rollout
    async def body(fake, sandbox, time):
        (tmp_path / "f").write_text("x")
        fake.on("/upload", HANG_UP, success({"success": True}))
        fake.on("/execute", success({"stdout": "", "stderr": "", "exit_code": 0}))
        await sandbox.start("i:1")
        await sandbox.upload_dir(tmp_path, "/data/it's")
        first, second = (seen.parts for seen in fake.requests("/upload"))
        assert first["request_id"] == second["request_id"]
        with tarfile.open(fileobj=io.BytesIO(second["file"])) as tar:
            assert tar.getnames() == ["f"]
        assert fake.requests("/execute")[0].body["command"][-2:] == [second["target_path"].decode(), "/data/it's"]
        fake.on("/execute", success({"stdout": "", "stderr": "tar: not found\n", "exit_code": 127}))
        with pytest.raises(errors.CommandFailed, match="tar: not found"):
            await sandbox.upload_dir(tmp_path, "/data")

    body()


@with_rollout
async def test_an_answer_that_is_no_envelope_names_the_address(fake, sandbox, time):
    with pytest.raises(errors.Internal, match="base_url"):
        await sandbox._service.call("/nothing", {})


def _http(status, error):
    from aiohttp import web

    return web.json_response(error.to_envelope(), status=status)
