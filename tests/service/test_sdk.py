"""The SDK against the real service: what the unit tests assume of the service's answers is true."""

import asyncio
import os
from pathlib import Path

import pytest

from rock import errors
from rock.actions import (
    BashAction,
    ChmodRequest,
    ChownRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    State,
)
from rock.sdk.sandbox import sync
from rock.sdk.sandbox.client import Sandbox, SandboxGroup
from rock.sdk.sandbox.config import SandboxConfig, SandboxGroupConfig


def with_sandbox(test):
    """Run an async test in a sandbox of its own."""

    def run(server, tmp_path):
        async def body():
            async with Sandbox(SandboxConfig(base_url=server.url, memory="256m", cpus=0.1)) as sandbox:
                await test(sandbox, tmp_path)

        asyncio.run(body())

    run.__name__ = test.__name__
    return run


@with_sandbox
async def test_sessions(sandbox, _):
    await sandbox.create_session(CreateBashSessionRequest(session="s"))
    with pytest.raises(errors.AlreadyExists):
        await sandbox.create_session(CreateBashSessionRequest(session="s"))
    seen = await sandbox.arun("echo hi; false", session="s")
    assert (seen.output, seen.exit_code) == ("hi", 1)
    with pytest.raises(errors.CommandFailed) as failed:
        await sandbox.run_in_session(BashAction(command="echo hi; (exit 4)", session="s"))
    assert (failed.value.exit_code, failed.value.details["output"]) == (4, "hi")
    with pytest.raises(errors.CommandTimeout) as late:
        await sandbox.arun("echo hi; sleep 60", session="s", wait_timeout=0.5)
    assert late.value.details["output"] == "hi"
    with pytest.raises(errors.NotFound, match="nowhere"):
        await sandbox.arun("true", session="nowhere")


@with_sandbox
async def test_output_is_heard_while_it_comes(sandbox, tmp_path):
    await sandbox.create_session(CreateBashSessionRequest(session="s"))
    heard, go = [], tmp_path / "go"

    def hear(stream, text):
        heard.append((stream, text))
        go.touch()  # the command goes on only once it was heard

    wait = f"until [ -e {go} ]; do sleep 0.05; done"
    seen = await sandbox.run_in_session(BashAction(command=f"echo one; {wait}; echo two", session="s"), hear)
    assert seen.output == "one\ntwo" and "".join(text for _, text in heard) == "one\ntwo\n"
    heard.clear()
    go.unlink()
    done = await sandbox.execute(Command(command=f"echo out; echo err >&2; {wait}; exit 4"), hear)
    assert (done.exit_code, sorted(heard)) == (4, [("stderr", "err\n"), ("stdout", "out\n")])
    heard.clear()
    await sandbox.execute(Command(command="echo quick"), hear)
    assert heard == [("stdout", "quick\n")]


@with_sandbox
async def test_arun_goes_on_after_a_command_that_says_exit(sandbox, _):
    await sandbox.arun("cd /tmp")
    assert (await sandbox.arun("pwd")).output == "/tmp"
    assert (await sandbox.arun("exit 3")).exit_code == 3
    assert (await sandbox.arun("echo alive")).output == "alive"


@with_sandbox
async def test_A14_nohup_has_the_commands_own_exit_code(sandbox, tmp_path):
    target = tmp_path / "a b" / "out.txt"
    seen = await sandbox.arun("seq 5; exit 3", mode="nohup", output_file=str(target), response_limited_bytes_in_nohup=3)
    assert (seen.output, seen.exit_code) == ("1\n2", 3)  # as of any command, one newline at the end is taken off
    assert target.read_text() == "1\n2\n3\n4\n5\n"
    late = await sandbox.arun("echo begun; sleep 60", mode="nohup", wait_timeout=0.5)
    assert (late.output, late.exit_code) == ("begun", 124)
    assert "timeout" in late.failure_reason
    assert not (await sandbox.run_nohup_and_wait("false")).success
    assert (await sandbox.process.execute_script("exit 9")).exit_code == 9


@with_sandbox
async def test_files(sandbox, tmp_path):
    local, remote, back = tmp_path / "l.bin", str(tmp_path / "in" / "r.bin"), tmp_path / "b.bin"
    local.write_bytes(os.urandom(7_000_000))
    assert (await sandbox.upload_by_path(local, remote)).success
    await sandbox.fs.download_file(remote, back)
    assert back.read_bytes() == local.read_bytes()
    with pytest.raises(errors.NotFound, match="absent"):
        await sandbox.fs.download_file(str(tmp_path / "absent"), back)
    text = "ünï\r\n\0 end"
    await sandbox.write_file_by_path(text, str(tmp_path / "t"))
    assert (await sandbox.read_file(ReadFileRequest(path=str(tmp_path / "t")))).content == text
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "f").write_text("x")
    await sandbox.fs.upload_dir(tmp_path / "folder", str(tmp_path / "there"))
    await sandbox.fs.chmod(ChmodRequest(paths=[str(tmp_path / "there")], mode="700", recursive=True))
    listed = await sandbox.execute(Command(command=["stat", "-c", "%a %n", "there/f"], cwd=str(tmp_path)))
    assert listed.stdout == "700 there/f\n"
    await sandbox.write_file_by_path("1\n2\n3\n4", str(tmp_path / "lines"))
    read = sandbox.read_file_by_line_range
    assert (await read(str(tmp_path / "lines"), 2, 3)).content == "2\n3\n"
    assert (
        (await read(str(tmp_path / "lines"), 3)).content
        == (await read(str(tmp_path / "lines"), 3, 4)).content
        == "3\n4"
    )
    assert (await read(str(tmp_path / "lines"))).content == "1\n2\n3\n4"
    with pytest.raises(errors.BadRequest, match="lines 3 to 2"):
        await read(str(tmp_path / "lines"), 3, 2)
    with pytest.raises(errors.CommandFailed, match="absent"):
        await read(str(tmp_path / "absent"))


@with_sandbox
async def test_X04_F15_what_the_helpers_are_given_is_data(sandbox, tmp_path):
    """Names, modes, users: none of it is read by a shell, by the service or by the sandbox's."""
    name = str(tmp_path / "w" / "-x '$(touch pwned)' \"a\"; touch pwned\n`touch pwned`")
    injection = f"; touch pwned {tmp_path}/pwned"
    await sandbox.write_file_by_path("content", name)
    await sandbox.fs.chmod(ChmodRequest(paths=[name], mode="600"))
    assert Path(name).stat().st_mode & 0o777 == 0o600
    for call in (
        sandbox.fs.chmod(ChmodRequest(paths=[name], mode=f"755{injection}")),
        sandbox.fs.chmod(ChmodRequest(paths=[f"/nope{injection}"], mode="755")),
        sandbox.fs.chown(ChownRequest(paths=[name], remote_user=f"root{injection}")),
    ):
        with pytest.raises(errors.RockError):
            await call
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "f").write_text("x")
    await sandbox.fs.upload_dir(tmp_path / "folder", f"{name}-folder")
    await sandbox.fs.download_dir(f"{name}-folder", tmp_path / "back")
    assert (tmp_path / "back" / "f").read_text() == "x"
    await sandbox.fs.download_file(name, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "content"
    seen = await sandbox.arun("echo out", mode="nohup", output_file=f"{name}.out")
    assert seen.output == "out" and Path(f"{name}.out").read_text() == "out\n"
    assert (await sandbox.read_file_by_line_range(name, 1, 1)).content == "content"
    with pytest.raises(errors.RockError):
        await sandbox.create_session(CreateBashSessionRequest(session="u", remote_user=f"root{injection}"))
    assert not list(tmp_path.rglob("pwned"))
    assert "pwned" not in (await sandbox.execute(Command(command="ls -A . ~"))).stdout


@with_sandbox
async def test_status_and_attach(sandbox, _):
    status = await sandbox.get_status()
    assert (status.state, status.is_alive, status.cpus) == (State.RUNNING, True, 0.1)
    other = Sandbox(SandboxConfig(base_url=sandbox.config.base_url))
    await other.attach(sandbox.sandbox_id)
    await other.stop()
    assert not await sandbox.is_alive()
    with pytest.raises(errors.NotRunning):
        await sandbox.execute(Command(command="true"))
    assert (await sandbox.get_status(include_all_states=True)).state is State.STOPPED


@with_sandbox
async def test_cancelling_the_waiter_ends_the_command(sandbox, _):
    await sandbox.create_session(CreateBashSessionRequest(session="s"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await sandbox.arun("sleep 60", session="s", wait_timeout=None)
    async with asyncio.timeout(10):
        assert (await sandbox.arun("echo free", session="s")).output == "free"


def test_a_cancelled_start_leaves_no_sandbox(server):
    async def body():
        sandbox = Sandbox(SandboxConfig(base_url=server.url, sandbox_id="cancelled-start", memory="64m", cpus=0.1))
        start = asyncio.create_task(sandbox.start())
        await asyncio.sleep(0.03)
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        other = Sandbox(SandboxConfig(base_url=server.url))
        try:
            await other.attach("cancelled-start")
        except errors.NotFound:
            return  # the cancellation came before the service had heard of it
        assert not await other.is_alive()

    asyncio.run(body())


def test_a_terminal_without_a_loop(server):
    with sync.Sandbox(SandboxConfig(base_url=server.url, memory="64m", cpus=0.05)) as sandbox:
        sandbox.create_session(CreateBashSessionRequest(session="s"))
        terminal = sync.Terminal.open(sandbox, "s", rows=30, cols=100)
        terminal.type(b"stty size; exit 5\n")
        screen = b"".join(terminal)
        assert b"30 100" in screen and terminal.exit_code == 5
        terminal.close()


def test_a_group_and_the_synchronous_twin(server):
    async def body():
        config = SandboxGroupConfig(base_url=server.url, size=3, memory="64m", cpus=0.05)
        async with SandboxGroup(config) as group:
            seen = await asyncio.gather(*(sandbox.arun("echo here") for sandbox in group.sandbox_list))
            assert [item.output for item in seen] == ["here"] * 3

    asyncio.run(body())
    with sync.Sandbox(SandboxConfig(base_url=server.url, memory="64m", cpus=0.05)) as sandbox:
        assert sandbox.arun("echo here").output == "here"
