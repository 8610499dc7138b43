"""Files in and out of containers through the SDK: a userland of GNU and one of busybox."""

import os

import pytest

from rock.sdk.sandbox.config import SandboxConfig
from rock.sdk.sandbox.sync import Sandbox
from scripts.images import ALPINE, DEBIAN
from tests.trees import make_tree


@pytest.fixture(scope="module", params=[DEBIAN, ALPINE])
def sandbox(engine_server, request):
    config = SandboxConfig(base_url=engine_server.url, image=request.param, memory="256m", cpus=0.2, limit_cpus=1)
    with Sandbox(config) as started:
        yield started


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
