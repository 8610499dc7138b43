"""What a trainer does with the third-party client; run by that client's Python, never by ours.

Prints one JSON object: what each step gave. Arguments: base URL, image, a local file to upload.
"""

import asyncio
import json
import pathlib
import sys
import tempfile

from rock.actions import (
    BashAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)
from rock.sdk.sandbox.client import RunMode, Sandbox, SandboxGroup
from rock.sdk.sandbox.config import SandboxConfig, SandboxGroupConfig


async def refusal(awaitable):
    """Return the text of the exception that awaiting raises."""
    try:
        return f"no exception: {await awaitable}"
    except Exception as error:  # noqa: BLE001  (the client raises bare Exception)
        return f"{type(error).__name__}: {error}"


async def sessions(sandbox, facts):
    """Sessions keep their state; failures come as the client's exceptions."""
    await sandbox.create_session(CreateBashSessionRequest(session="bash-1"))
    facts["again"] = await refusal(sandbox.create_session(CreateBashSessionRequest(session="bash-1")))
    facts["hello"] = (await sandbox.arun(cmd="echo Hello Rock", session="bash-1")).model_dump()
    await sandbox.arun(cmd="cd /tmp && export WORD=kept", session="bash-1")
    facts["state"] = (await sandbox.arun(cmd='echo "$PWD $WORD"', session="bash-1")).output
    facts["own_session"] = (await sandbox.arun(cmd="printf 'a\\n\\n'")).output
    facts["raised"] = await refusal(
        sandbox.arun(cmd="echo seen; exit_code() { return 7; }; exit_code", session="bash-1")
    )
    silent = BashAction(command="echo out; false", session="bash-1", check="silent")
    facts["silent"] = (await sandbox.run_in_session(silent)).model_dump()
    slow = BashAction(command="echo begun; sleep 60", session="bash-1", timeout=1, check="silent")
    facts["timeout"] = await refusal(sandbox.run_in_session(slow))
    facts["after_timeout"] = (await sandbox.arun(cmd="echo $WORD", session="bash-1")).output
    facts["env"] = (
        await sandbox.create_session(CreateBashSessionRequest(session="env", env_enable=True, env={"GIVEN": "x y"}))
    ).session_type
    facts["env_value"] = (await sandbox.arun(cmd='echo "$GIVEN"', session="env")).output
    await sandbox.close_session(CloseBashSessionRequest(session="env"))
    # A local sandbox has one user, so the client may name that one only.
    me = (await sandbox.arun(cmd="id -un", session="bash-1")).output
    await sandbox.create_session(CreateBashSessionRequest(session="user", remote_user=me))
    facts["user"] = [(await sandbox.arun(cmd="id -un", session="user")).output, me]
    facts["no_user"] = await refusal(
        sandbox.create_session(CreateBashSessionRequest(session="no-user", remote_user="nope"))
    )
    facts["closed"] = await refusal(sandbox.arun(cmd="true", session="env"))


async def background(sandbox, facts):
    """Long commands, the way that client runs them."""
    command = "bash -c 'sleep 1; echo done'"
    facts["nohup"] = (await sandbox.arun(cmd=command, mode=RunMode.NOHUP, wait_interval=1)).model_dump()
    script = await sandbox.process.execute_script(script_content="echo from a script\n")
    facts["script"] = script.output


async def processes(sandbox, facts):
    """Single processes outside the sessions."""
    facts["argv"] = (await sandbox.execute(Command(command=["printf", "%s|", "a b", "$HOME"]))).model_dump()
    with_env = Command(command=["bash", "-c", 'echo "$A"; pwd; echo err >&2; exit 4'], env={"A": "1"}, cwd="/tmp")
    facts["execute"] = (await sandbox.execute(with_env)).model_dump()


async def files(sandbox, facts, local):
    """Files in and out."""
    text = "ünï\r\nno newline at the end"
    facts["write"] = (await sandbox.write_file(WriteFileRequest(content=text, path="/tmp/rock compat/a.txt"))).success
    facts["read"] = (await sandbox.read_file(ReadFileRequest(path="/tmp/rock compat/a.txt"))).content == text
    upload = await sandbox.upload(UploadRequest(source_path=local, target_path="/tmp/rock compat/up.bin"))
    facts["upload"] = upload.success
    summed = await sandbox.execute(Command(command=["sha256sum", "/tmp/rock compat/up.bin"]))
    facts["sha256"] = summed.stdout.split()[0]
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a.txt", "b c.txt", "deep/er/d.txt", ".hidden"):
            place = pathlib.Path(folder) / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(name)
        sent = await sandbox.fs.upload_dir(folder, "/tmp/rock-compat-folder")
    facts["folder"] = [sent.exit_code, sent.failure_reason]
    listed = await sandbox.execute(Command(command=["find", "/tmp/rock-compat-folder", "-type", "f"]))
    facts["folder_files"] = sorted(listed.stdout.split("\n"))
    facts["absent_upload"] = (await sandbox.upload_by_path("/no/such/file", "/tmp/x")).success


async def life(sandbox, facts, url):
    """Status, attaching, and the end."""
    alive = await sandbox.is_alive()
    facts["alive"] = alive.is_alive
    status = await sandbox.get_status()
    facts["status"] = {
        "state": status.state.value, "is_alive": status.is_alive, "image": status.image, "cpus": status.cpus,
        "memory": status.memory, "user_id": status.user_id, "experiment_id": status.experiment_id,
        "namespace": status.namespace, "phases": {name: phase["status"] for name, phase in status.status.items()},
        "moves": [item.to_state for item in status.state_history],
    }  # fmt: skip
    second = Sandbox(SandboxConfig(base_url=url))
    await second.attach(sandbox.sandbox_id)
    facts["attached"] = (await second.arun(cmd="echo $WORD", session="bash-1")).output
    await sandbox.stop()
    await sandbox.stop()
    facts["stopped"] = await refusal(sandbox.get_status())
    facts["stopped_all_states"] = (await sandbox.get_status(include_all_states=True)).state.value


async def afterlife(sandbox, facts):
    """A stopped sandbox comes back with its files, and is deleted."""
    await sandbox.restart()
    facts["restarted"] = (await sandbox.is_alive()).is_alive
    facts["old_session"] = await refusal(sandbox.arun(cmd="true", session="bash-1"))
    await sandbox.create_session(CreateBashSessionRequest(session="bash-1"))
    facts["files_after"] = (await sandbox.read_file(ReadFileRequest(path="/tmp/rock compat/a.txt"))).content
    facts["restart_running"] = await refusal(sandbox.restart())
    facts["delete_running"] = await refusal(sandbox.delete())
    await sandbox.stop()
    await sandbox.delete()
    facts["deleted"] = (await sandbox.get_status(include_all_states=True)).state.value
    await sandbox.delete()


async def main(url, image, local):
    """Run everything in one sandbox, then a group of two."""
    facts = {}
    config = SandboxConfig(
        base_url=url,
        image=image,
        memory="512m",
        cpus=0.5,
        user_id="u-1",
        experiment_id="e-1",
        namespace="n-1",
        auto_delete_seconds=300,
    )
    sandbox = Sandbox(config)
    await sandbox.start()
    try:
        facts["ids"] = [sandbox.sandbox_id, sandbox.host_name, sandbox.host_ip]
        await sessions(sandbox, facts)
        await background(sandbox, facts)
        await processes(sandbox, facts)
        await files(sandbox, facts, local)
        await life(sandbox, facts, url)
        await afterlife(sandbox, facts)
    finally:
        await sandbox.stop()
    group = SandboxGroup(
        SandboxGroupConfig(base_url=url, image=image, memory="256m", cpus=0.05, size=8, start_concurrency=4)
    )
    await group.start()
    try:
        facts["group"] = [(await member.arun(cmd="echo here")).output for member in group.sandbox_list]
    finally:
        await group.stop()
    sys.stdout.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
