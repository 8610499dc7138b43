"""Files out of a sandbox, streamed: what arrives, what is refused, and that nobody waits for one that was left."""

import asyncio
import filecmp
import hashlib
import json
import os
import urllib.request
from pathlib import Path
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
def test_F02_a_file_of_any_bytes_comes_whole(sandbox, tmp_path, size):
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


def test_of_much_that_is_left_out_some_is_named(sandbox, tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    for number in range(13):
        (there / f"link-{number}").symlink_to("/etc/passwd")
    done = sandbox.fs.download_dir(str(there), tmp_path / "here")
    assert done.message.count("is a link to an absolute path") == 10 and done.message.endswith("; and 3 more")


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


def test_F12_a_large_file_passes_in_little_memory(make_stack, tmp_path):
    """There and back, in processes of its own: what they ever held of memory grows by far less than the file."""
    server, size = make_stack().start(), 150_000_000
    sent, back = tmp_path / "sent", tmp_path / "back"
    with sent.open("wb") as file:
        for number in range(300):
            file.write(hashlib.sha512(b"%d" % number).digest() * (size // 300 // 64))

    def most(pid: int) -> int:
        """Return the most memory that a process and its children ever held, in MB each."""
        pids = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        lines = [line for one in pids for line in Path(f"/proc/{one}/status").read_text().splitlines()]
        return max(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))

    pids = {name: server.pids()[name].pid for name in ("api", "worker", "lifecycle", "redis")}
    with SyncSandbox(SandboxConfig(base_url=server.url, memory="256m", cpus=0.1)) as sandbox:
        before = {name: most(pid) for name, pid in pids.items()}
        sandbox.upload_by_path(sent, str(tmp_path / "there"))
        sandbox.fs.download_file(str(tmp_path / "there"), back)
        grown = {name: most(pid) - before[name] for name, pid in pids.items()}
    server.stop()
    assert filecmp.cmp(sent, back, shallow=False)
    assert max(grown.values()) < 100, grown


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
