"""F16, F22 over the whole way: a folder in a sandbox is the folder that was sent, by either client."""

import asyncio
import subprocess

import pytest

from rock.rollout import RockSandbox
from rock.sdk.sandbox.client import Sandbox
from rock.sdk.sandbox.config import SandboxConfig
from scripts import images
from tests.trees import LONG, make_tree

LOOK = (
    'cd "$1" && stat -c %a . && find . -mindepth 1 -printf "%y %m %p %l\\n" | LC_ALL=C sort && '
    "find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum"
)


def expected(folder):
    return subprocess.run(["bash", "-c", LOOK, "bash", str(folder)], capture_output=True, text=True, check=True).stdout


def test_F16_a_folder_arrives_whole(api, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    make_tree(source)
    source.chmod(0o700)

    async def body():
        async with RockSandbox(api.url) as rollout:
            sandbox = Sandbox(SandboxConfig(base_url=api.url))
            await sandbox.attach(await rollout.start("python:3.11", cpus=1, memory="256m"))
            target = (await rollout.execute("mktemp -d")).stdout.strip()  # its mode is 700
            seen = []
            for upload in (sandbox.fs.upload_dir, rollout.upload_dir):
                await rollout.execute(["touch", f"{target}/old", f"{target}/.old"])
                await upload(source, target)
                seen.append((await rollout.execute(["bash", "-c", LOOK, "bash", target])).stdout)
            await rollout.execute(["rm", "-rf", target])
            return seen

    assert asyncio.run(body()) == [expected(source)] * 2


@pytest.mark.engine
def test_F16_a_userland_of_busybox_is_enough(engine_server, tmp_path):
    make_tree(tmp_path, files=3)

    async def body():
        async with RockSandbox(engine_server.url) as sandbox:
            await sandbox.start(images.ALPINE, cpus=0.5, memory="128m")
            await sandbox.upload_dir(tmp_path, "/data/new")
            looked = f"cd /data/new && ./run.sh && ./link && ./same.sh && ls -A empty && readlink dangling && ls {LONG}"
            return await sandbox.execute_in_session(looked)

    seen = asyncio.run(body())
    assert (seen.exit_code, seen.output.splitlines()[:4]) == (0, ["ran", "ran", "ran", "/nowhere/at all"])
    assert "'quotes'" in seen.output
