"""What `Sandbox` and `SandboxGroup` send, and what they make of the answers."""

import asyncio
import io
import tarfile
from types import SimpleNamespace

import pytest

from rock import errors
from rock.actions import ChmodRequest, ChownRequest, Command, CreateBashSessionRequest, ReadFileRequest, UploadRequest
from rock.sdk.sandbox import client as client_module
from rock.sdk.sandbox.client import Sandbox, SandboxGroup
from rock.sdk.sandbox.config import SandboxConfig, SandboxGroupConfig
from tests.unit.sdk.fake_service import FakeService, observation, started, success


def with_sandbox(test):
    """Run an async test with a service and a Sandbox that is started there."""

    def run():
        async def body():
            async with FakeService() as fake:
                fake.on("/start", started())
                fake.on("/stop", success("stopped"))
                fake.on("/create_session", success({"output": "", "session_type": "bash"}))
                sandbox = Sandbox(SandboxConfig(base_url=fake.url))
                await sandbox.start()
                await test(fake, sandbox)

        asyncio.run(body())

    run.__name__ = test.__name__
    return run


def test_the_smoke_test_of_the_seed(monkeypatch):
    async def body():
        async with FakeService() as fake:
            monkeypatch.setenv("ROCK_BASE_URL", fake.url)
            fake.on("/start", started())
            fake.on("/create_session", success({"output": "", "session_type": "bash"}))
            fake.on("/run_in_session", observation("Hello Rock"))
            fake.on("/stop", success("stopped"))
            cfg = SandboxConfig(image="python:3.11", memory="8g", cpus=2.0)
            sb = Sandbox(cfg)
            await sb.start()
            await sb.create_session(CreateBashSessionRequest(session="bash-1"))
            r = await sb.arun(cmd="echo Hello Rock", session="bash-1")
            await sb.stop()
            assert (r.output, r.exit_code) == ("Hello Rock", 0)
            assert [seen.path for seen in fake.seen] == ["/start", "/create_session", "/run_in_session", "/stop"]
            assert len({seen.body["request_id"] for seen in fake.seen}) == 4

    asyncio.run(body())


def test_config_defaults_come_from_the_environment_when_it_is_made(monkeypatch):
    monkeypatch.delenv("ROCK_BASE_URL", raising=False)
    config = SandboxConfig()
    assert (config.image, config.memory, config.cpus) == ("python:3.11", "8g", 2)
    assert (config.startup_timeout, config.auto_clear_seconds, config.cluster) == (180, 14_400, "zb")
    assert (config.base_url, config.route_key) == ("http://localhost:8080", None)
    group = SandboxGroupConfig()
    assert (group.size, group.start_concurrency, group.start_retry_times) == (2, 2, 3)
    monkeypatch.setenv("ROCK_BASE_URL", "http://elsewhere:1")
    monkeypatch.setenv("ROCK_SANDBOX_STARTUP_TIMEOUT_SECONDS", "7")
    assert SandboxConfig().base_url == "http://elsewhere:1"
    assert SandboxConfig().to_request().startup_timeout == 7


def test_identity_goes_in_headers_and_secrets_out_of_repr():
    config = SandboxConfig(
        user_id="u", experiment_id="e", namespace="n", api_key="hunter2", extra_headers={"X-Cluster": "c"}
    )
    assert config.headers() == {
        "X-Cluster": "c", "X-User-Id": "u", "X-Experiment-Id": "e", "X-Namespace": "n", "X-API-Key": "hunter2",
    }  # fmt: skip
    assert "hunter2" not in repr(config)


@with_sandbox
async def test_start_sends_the_config_and_learns_the_place(fake, sandbox):
    body = fake.seen[0].body
    assert body["image"] == "python:3.11"
    assert body["auto_clear_seconds"] == 14_400
    assert not {"base_url", "api_key", "extra_headers"} & set(body)
    assert (sandbox.sandbox_id, sandbox.host_name, sandbox.host_ip) == ("s1", "h", "127.0.0.1")
    with pytest.raises(errors.AlreadyExists):
        await sandbox.start()


def test_nothing_can_be_asked_before_start():
    async def body():
        sandbox = Sandbox(SandboxConfig(base_url="http://127.0.0.1:9"))
        await sandbox.stop()
        with pytest.raises(errors.NotRunning, match="start"):
            await sandbox.execute(Command(command="true"))

    asyncio.run(body())


@with_sandbox
async def test_arun_keeps_one_session_and_opens_it_once(fake, sandbox):
    fake.on("/run_in_session", observation("x", 3))
    seen = await asyncio.gather(*(sandbox.arun("false") for _ in range(5)))
    assert {item.exit_code for item in seen} == {3}
    assert len(fake.requests("/create_session")) == 1
    bodies = [item.body for item in fake.requests("/run_in_session")]
    assert {body["session"] for body in bodies} == {fake.requests("/create_session")[0].body["session"]}
    assert {(body["check"], body["timeout"], body["sandbox_id"]) for body in bodies} == {("silent", 300, "s1")}


@with_sandbox
async def test_arun_opens_another_session_when_its_own_has_ended(fake, sandbox):
    fake.on("/run_in_session", observation("a"), errors.NotFound("no session").to_envelope(), observation("b"))
    assert (await sandbox.arun("exit")).output == "a"
    assert (await sandbox.arun("echo b")).output == "b"
    assert len({seen.body["session"] for seen in fake.requests("/create_session")}) == 2


@with_sandbox
async def test_arun_does_not_replace_a_session_that_the_caller_named(fake, sandbox):
    fake.on("/run_in_session", errors.NotFound("no session 'mine'").to_envelope())
    with pytest.raises(errors.NotFound, match="mine"):
        await sandbox.arun("true", session="mine")


@with_sandbox
async def test_nohup_makes_data_of_a_timeout(fake, sandbox):
    fake.on("/run_in_session", errors.CommandTimeout("over", exit_code=130, output="some").to_envelope())
    seen = await sandbox.arun("sleep 9", session="s", mode="nohup", wait_timeout=1)
    assert (seen.output, seen.exit_code, seen.failure_reason) == ("some", 130, "over")
    with pytest.raises(errors.CommandTimeout):
        await sandbox.arun("sleep 9", session="s", wait_timeout=1)
    with pytest.raises(errors.BadRequest, match="mode"):
        await sandbox.arun("true", mode="later")


@with_sandbox
async def test_nohup_limits_and_files(fake, sandbox):
    fake.on("/run_in_session", observation("ünï" * 10))
    limited = await sandbox.arun("x", session="s", mode="nohup", response_limited_bytes_in_nohup=3)
    assert limited.output == "ün"
    hidden = await sandbox.arun("x", session="s", mode="nohup", ignore_output=True, output_file="/out/a b.txt")
    assert "/out/a b.txt" in hidden.output
    script = fake.requests("/run_in_session")[-1].body["command"]
    assert script == "mkdir -p -- /out && ( eval x ) < /dev/null > '/out/a b.txt' 2>&1"
    await sandbox.arun("x", session="s", mode="nohup", output_file="o", response_limited_bytes_in_nohup=9)
    assert fake.requests("/run_in_session")[-1].body["command"] == "head -c 9 -- o"


@with_sandbox
async def test_run_nohup_and_wait_says_how_it_ended(fake, sandbox):
    fake.on("/run_in_session", observation("", 0), observation("", 2))
    assert (await sandbox.run_nohup_and_wait("true")).success
    failed = await sandbox.run_nohup_and_wait("false")
    assert not failed.success
    assert "exit code 2" in failed.message


@with_sandbox
async def test_status_and_life(fake, sandbox):
    fake.on("/get_status", success({"sandbox_id": "s1", "state": "running", "is_alive": True, "image": "i"}))
    fake.on("/is_alive", success({"is_alive": False, "message": "unknown"}))
    assert (await sandbox.get_status(include_all_states=True)).is_alive
    assert fake.seen[-1].query == {"sandbox_id": "s1", "include_all_states": "true"}
    assert not await sandbox.is_alive()


@with_sandbox
async def test_attach_takes_over(fake, _):
    answer = {"sandbox_id": "other", "state": "running", "is_alive": True, "image": "i", "cpus": 1, "memory": "1g"}
    fake.on("/get_status", success(answer | {"host_name": "n", "user_id": "u"}))
    sandbox = Sandbox(SandboxConfig(base_url=fake.url))
    await sandbox.attach("other")
    assert (sandbox.sandbox_id, sandbox.host_name, sandbox.config.image, sandbox.config.cpus) == ("other", "n", "i", 1)
    fake.on("/get_status", errors.NotFound("Sandbox x not found").to_envelope())
    fresh = Sandbox(SandboxConfig(base_url=fake.url))
    with pytest.raises(errors.NotFound):
        await fresh.attach("x")
    assert fresh.sandbox_id is None


@with_sandbox
async def test_commit_waits_for_its_end(fake, sandbox):
    running = {"sandbox_id": "s1", "image_tag": "t", "phase": "RUNNING", "started_at": "t0"}
    fake.on("/commit", success(running))
    fake.on("/commit/s1", success(running), success(running | {"phase": "SUCCEEDED", "exit_code": 0}))
    status = await sandbox.commit("t", "u", "p", interval=0.01)
    assert (status.phase, status.exit_code) == ("SUCCEEDED", 0)
    fake.on("/commit/s1", success(running))
    with pytest.raises(TimeoutError):
        await sandbox.commit("t", timeout=0.1, interval=0.01)


def test_upload_streams_the_fields_first_and_again_after_a_lost_connection(tmp_path):
    @with_sandbox
    async def body(fake, sandbox):
        local = tmp_path / "ünï.bin"
        local.write_bytes(bytes(range(256)) * 1000)
        fake.on("/upload", "hang up", success({"success": True, "message": "", "file_name": local.name}))
        done = await sandbox.upload(UploadRequest(source_path=str(local), target_path="/a/b"))
        assert done.success
        first, second = fake.requests("/upload")
        assert list(second.parts) == ["sandbox_id", "target_path", "request_id", "file"]
        assert second.parts["file"] == local.read_bytes()
        assert first.parts["request_id"] == second.parts["request_id"]
        with pytest.raises(FileNotFoundError):
            await sandbox.upload_by_path(tmp_path / "absent", "/a")

    body()


def test_upload_dir_sends_one_archive(tmp_path):
    @with_sandbox
    async def body(fake, sandbox):
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "f").write_text("x")
        fake.on("/upload", success({"success": True}))
        fake.on("/execute", success({"stdout": "", "stderr": "", "exit_code": 0}))
        await sandbox.fs.upload_dir(tmp_path, "/data/it's")
        archive = fake.requests("/upload")[0].parts
        with tarfile.open(fileobj=io.BytesIO(archive["file"])) as tar:
            assert tar.getnames() == ["sub", "sub/f"]
        command = fake.requests("/execute")[0].body["command"]
        assert command[-2:] == [archive["target_path"].decode(), "/data/it's"]
        for bad in ("/", "relative", "/../"):
            with pytest.raises(errors.BadRequest, match="below /"):
                await sandbox.fs.upload_dir(tmp_path, bad)
        with pytest.raises(NotADirectoryError):
            await sandbox.fs.upload_dir(tmp_path / "sub" / "f", "/data")

    body()


@with_sandbox
async def test_file_helpers_report_what_the_command_said(fake, sandbox):
    fake.on("/execute", success({"stdout": "", "stderr": "chmod: no such file\n", "exit_code": 1}))
    with pytest.raises(errors.CommandFailed, match="no such file"):
        await sandbox.fs.chmod(ChmodRequest(paths=["/absent"], mode="644", recursive=True))
    assert fake.seen[-1].body["command"] == ["chmod", "-R", "--", "644", "/absent"]
    with pytest.raises(errors.BadRequest):
        await sandbox.fs.chown(ChownRequest(remote_user="root"))


@with_sandbox
async def test_reading_what_is_not_there(fake, sandbox):
    fake.on("/read_file", errors.NotFound("/absent: no such file").to_envelope())
    with pytest.raises(errors.NotFound, match="/absent"):
        await sandbox.read_file(ReadFileRequest(path="/absent"))


@with_sandbox
async def test_execute_script_removes_the_script_even_when_it_fails(fake, sandbox):
    fake.on("/write_file", success({"success": True}))
    fake.on("/execute", success({"stdout": "", "stderr": "", "exit_code": 0}))
    fake.on("/run_in_session", observation("", 5))
    assert (await sandbox.process.execute_script("exit 5")).exit_code == 5
    path = fake.requests("/write_file")[0].body["path"]
    assert fake.requests("/execute")[0].body["command"] == ["rm", "-f", "--", path]


def test_a_cancelled_start_leaves_no_sandbox():
    async def body():
        async with FakeService() as fake:
            fake.on("/start", lambda _: asyncio.sleep(1))
            fake.on("/results/*", started("late"))
            fake.on("/stop", success("stopped"))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await Sandbox(SandboxConfig(base_url=fake.url)).start()
            assert [seen.path.rsplit("/", 1)[-1] for seen in fake.requests("/results")][0] == "cancel"
            assert [seen.body["sandbox_id"] for seen in fake.requests("/stop")] == ["late"]

    asyncio.run(body())


@with_sandbox
async def test_forks_are_sandboxes_of_their_own(fake, sandbox):
    sandbox.config.env = {"A": "b"}
    sandbox.config.docker_args = ["--init"]
    two = {"sandboxes": [started(name)["result"] for name in ("f1", "f2")]}
    fake.on("/sandboxes/s1/fork", success(two))
    fake.on("/execute", success({"stdout": "", "stderr": "", "exit_code": 0}))
    forks = await sandbox.fork(2)
    body = fake.requests("/sandboxes/s1/fork")[0].body
    assert (body["count"], body["env"], body["docker_args"], body["startup_timeout"]) == (
        2,
        {"A": "b"},
        ["--init"],
        180,
    )
    assert [(one.sandbox_id, one.host_name) for one in forks] == [("f1", "h"), ("f2", "h")]
    await forks[1].execute(Command(command=["true"]))
    assert fake.seen[-1].body["sandbox_id"] == "f2" and sandbox.sandbox_id == "s1"


@with_sandbox
async def test_a_cancelled_fork_leaves_no_sandbox(fake, sandbox):
    fake.on("/sandboxes/s1/fork", lambda _: asyncio.sleep(1))
    fake.on("/results/*", success({"sandboxes": [{"sandbox_id": "f1"}, {"sandbox_id": "f2"}]}))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await sandbox.fork(2)
    assert [seen.body["sandbox_id"] for seen in fake.requests("/stop")] == ["f1", "f2"]


def group_of(fake, **options):
    return SandboxGroup(SandboxGroupConfig(base_url=fake.url, **options))


def test_a_group_starts_within_its_bound_and_retries_the_services_faults(monkeypatch):
    monkeypatch.setattr(client_module, "RETRY_SECONDS", 0.01)
    running = SimpleNamespace(now=0, most=0, count=0)

    async def start(_):
        running.now += 1
        running.count += 1
        running.most = max(running.most, running.now)
        name = f"s{running.count}"
        await asyncio.sleep(0.05)
        running.now -= 1
        return errors.NoCapacity("full").to_envelope() if running.count % 3 == 0 else started(name)

    async def body():
        async with FakeService() as fake:
            fake.on("/start", start)
            fake.on("/stop", success("stopped"))
            async with group_of(fake, size=6, start_concurrency=2, start_retry_times=5) as group:
                assert len({sandbox.sandbox_id for sandbox in group.sandbox_list}) == 6
            assert running.most == 2
            assert len(fake.requests("/stop")) == 6

    asyncio.run(body())


def test_a_group_that_cannot_start_leaves_nothing(monkeypatch):
    monkeypatch.setattr(client_module, "RETRY_SECONDS", 0.01)

    async def body():
        async with FakeService() as fake:
            broken = errors.ImageNotFound("no such image").to_envelope()
            fake.on("/start", started("a"), started("b"), broken)
            fake.on("/stop", success("stopped"))
            with pytest.raises(errors.ImageNotFound):
                await group_of(fake, size=3, start_concurrency=1, start_retry_times=2).start()
            assert {seen.body["sandbox_id"] for seen in fake.requests("/stop")} == {"a", "b"}

    asyncio.run(body())


def test_a_group_refuses_what_cannot_be():
    fake = SimpleNamespace(url="http://127.0.0.1:9")
    with pytest.raises(errors.BadRequest, match="sandbox_id"):
        group_of(fake, sandbox_id="one", size=2)
    with pytest.raises(errors.BadRequest, match="at least 1"):
        group_of(fake, size=0)
    with pytest.raises(errors.BadRequest, match="request_id"):
        group_of(fake, request_id="one", size=2)
