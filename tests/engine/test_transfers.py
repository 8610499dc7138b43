"""Files in and out of containers through the SDK: a userland of GNU and one of busybox."""

import os

import pytest

from rock.sdk.sandbox.config import SandboxConfig
from rock.sdk.sandbox.sync import Sandbox
from scripts.images import ALPINE, DEBIAN
from tests.service_stack import ROOT
from tests.trees import make_tree
from tests.wire import Api


@pytest.fixture(scope="module", params=[DEBIAN, ALPINE])
def sandbox(engine_server, request):
    config = SandboxConfig(base_url=engine_server.url, image=request.param, memory="256m", cpus=0.2, limit_cpus=1)
    with Sandbox(config) as started:
        yield started


@pytest.fixture(scope="module")
def mounted(engine_server):
    """A sandbox with a small tmpfs and a folder that is mounted read-only."""
    args = ["--tmpfs", "/t:size=1m", "-v", f"{ROOT}/sdk/rock/rollout:/ro:ro"]
    box = Api(engine_server.url).start(image=DEBIAN, docker_args=args)
    yield box
    box.stop()


def test_F07_mounts_made_inside_are_seen(mounted):
    for size in (10, 500_000):
        assert mounted.upload(b"x" * size, "/t/a").ok
        assert mounted.execute(["stat", "-c", "%s", "/t/a"]).result["stdout"] == f"{size}\n"
        assert len(mounted.read("/t/a").result["content"]) == size
    assert mounted.write("/dev/shm/x", "1").ok and mounted.read("/dev/shm/x").result["content"] == "1"
    assert mounted.execute(["rm", "/t/a"]).ok


def test_F13_F18_what_cannot_be_written_says_why_and_leaves_no_half_file(mounted):
    for size in (10, 3_000_000):
        mounted.upload(b"x" * size, "/ro/x").failed(4000, "/ro/x", "Read-only")
    mounted.write("/ro/x", "x").failed(4000, "/ro/x", "Read-only")
    assert mounted.write("/t/kept", "old").ok
    mounted.upload(b"x" * 3_000_000, "/t/kept").failed(4000, "/t/kept", "No space left")
    mounted.write("/t/kept", "x" * 3_000_000).failed(4000, "/t/kept", "No space left")
    assert mounted.execute("ls -A /t; cat /t/kept", shell=True).result["stdout"] == "kept\nold"


def test_a_large_file_goes_there_and_back(sandbox, tmp_path):
    sent, back = tmp_path / "sent", tmp_path / "back"
    sent.write_bytes(os.urandom(9_000_001))
    sandbox.upload_by_path(sent, "/data/file")
    sandbox.fs.download_file("/data/file", back)
    assert back.read_bytes() == sent.read_bytes()


def test_a_folder_goes_there_and_back(sandbox, tmp_path):
    sent, back = tmp_path / "sent", tmp_path / "back"
    sent.mkdir()
    make_tree(sent, files=300)
    sandbox.fs.upload_dir(sent, "/data/folder")
    done = sandbox.fs.download_dir("/data/folder", back)

    def tree(folder):
        return {
            str(path.relative_to(folder)): (path.lstat().st_mode, path.read_bytes()) if path.is_file() else "a folder"
            for path in folder.rglob("*") if not path.is_symlink()
        }  # fmt: skip

    assert not set(tree(back).items()) ^ set(tree(sent).items())
    assert "'./dangling'" in done.message
