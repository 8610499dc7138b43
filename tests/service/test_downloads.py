"""Files out of a sandbox, streamed: what arrives, what is refused, and that nobody waits for one that was left."""

import asyncio
import json
import os
import urllib.request
from urllib.parse import urlencode

import pytest

from rock import errors
from rock.actions import Command
from rock.sdk.sandbox.client import Sandbox
from rock.sdk.sandbox.config import SandboxConfig
from rock.sdk.sandbox.sync import Sandbox as SyncSandbox
from tests.trees import make_tree


@pytest.fixture(scope="module")
def sandbox(server):
    with SyncSandbox(SandboxConfig(base_url=server.url, memory="256m", cpus=0.1)) as started:
        yield started


@pytest.mark.parametrize("size", [0, 1, 524_288, 7_000_001])
def test_a_file_comes_whole(sandbox, tmp_path, size):
    there, here, seen = tmp_path / "in" / "a b'c", tmp_path / "out" / "file", []
    there.parent.mkdir()
    there.write_bytes(os.urandom(size))
    sandbox.fs.download_file(str(there), here, on_progress=lambda done, total: seen.append((done, total)))
    assert here.read_bytes() == there.read_bytes()
    assert seen[-1:] == ([(size, None)] if size else [])


def test_a_folder_comes_whole_but_for_what_leads_out_of_it(sandbox, tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    make_tree(there)
    (there / "out").symlink_to("/etc/passwd")
    done = sandbox.fs.download_dir(str(there), tmp_path / "here")
    wanted = {path.relative_to(there) for path in there.rglob("*") if not path.is_socket()}
    got = {path.relative_to(tmp_path / "here") for path in (tmp_path / "here").rglob("*")}
    assert {str(path) for path in wanted - got} == {"out", "dangling"} and not got - wanted
    assert "'./out' is a link to an absolute path" in done.message


def test_what_cannot_be_fetched_is_named_and_leaves_nothing_here(sandbox, tmp_path):
    with pytest.raises(errors.NotFound, match="absent"):
        sandbox.fs.download_file(str(tmp_path / "absent"), tmp_path / "x")
    with pytest.raises(errors.BadRequest, match="is a folder"):
        sandbox.fs.download_file(str(tmp_path), tmp_path / "x")
    with pytest.raises(errors.BadRequest, match="not a regular file"):
        sandbox.fs.download_file("/dev/zero", tmp_path / "x")
    with pytest.raises(errors.NotFound, match="absent"):
        sandbox.fs.download_dir(str(tmp_path / "absent"), tmp_path / "y")
    assert list(tmp_path.iterdir()) == []


def test_one_that_is_left_ends_in_the_sandbox_too(server, sandbox, tmp_path):
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(2_000_000_000)
    query = urlencode({"path": str(large)})
    url = f"{server.url}/apis/envs/sandbox/v1/sandboxes/{sandbox.sandbox_id}/download?{query}"
    request = urllib.request.Request(url, headers={"X-Request-Id": "left"})
    with urllib.request.urlopen(request, timeout=30) as response:
        assert len(response.read(1000)) == 1000
    left = server.get("/apis/envs/sandbox/v1/results/left?wait=20")
    assert (left["status"], left["result"]["kind"]) == ("Failed", "cancelled")
    with urllib.request.urlopen(request, timeout=30) as response:
        assert "under a new request_id" in json.load(response)["error"]

    async def cat_is_gone():
        async with asyncio.timeout(20):
            other = Sandbox(SandboxConfig(base_url=server.url))
            await other.attach(sandbox.sandbox_id)
            while (await other.execute(Command(command=f"pgrep -f 'cat -- {large}$'"))).stdout:
                await asyncio.sleep(0.1)

    asyncio.run(cat_is_gone())
