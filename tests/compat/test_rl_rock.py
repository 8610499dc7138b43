"""The third-party client rl-rock, unchanged, against the real stack: one long session, checked fact by fact."""

import contextlib
import hashlib
import json
import subprocess
from pathlib import Path

import docker
import pytest

from rock import settings
from scripts.images import ALPINE

pytestmark = pytest.mark.timeout(600)

SESSION = Path(__file__).with_name("third_party_session.py")
COMMIT = Path(__file__).with_name("third_party_commit.py")
IMAGE = "python:3.11"
CONTENT = bytes(range(256)) * 8192  # 2 MiB: above the size from which that client prefers an object store


@pytest.fixture(scope="module")
def facts(server, rl_rock_python, tmp_path_factory):
    """What the session saw. Its Python is another one: that client's import package is called `rock` too."""
    local = tmp_path_factory.mktemp("compat") / "upload.bin"
    local.write_bytes(CONTENT)
    return run(rl_rock_python, SESSION, server.url, IMAGE, str(local), cwd=local.parent)


def run(python, script, *arguments, cwd):
    """Run one of the client's scripts and return what it saw."""
    done = subprocess.run(
        [str(python), str(script), *arguments],
        env=settings.inherited(["PATH", "HOME", "LANG"]),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_start_tells_where(facts):
    assert all(facts["ids"])


def test_sessions(facts):
    assert (facts["hello"]["output"], facts["hello"]["exit_code"]) == ("Hello Rock", 0)
    assert facts["state"] == "/tmp kept"
    assert facts["own_session"] == "a\n"  # one newline is taken off, not two
    assert (facts["silent"]["output"], facts["silent"]["exit_code"]) == ("out", 1)
    assert (facts["env"], facts["env_value"]) == ("bash", "x y")


def test_sessions_of_a_user(facts):
    assert len(set(facts["user"])) == 1
    assert "bad_request" in facts["no_user"] and "nope" in facts["no_user"]


def test_session_failures_reach_the_client(facts):
    assert "already_exists" in facts["again"]
    assert "bash-1" in facts["again"]
    assert "command_failed" in facts["raised"]
    assert "'exit_code': 7" in facts["raised"]
    assert "seen" in facts["raised"]
    assert "not_found" in facts["closed"]


def test_a_timeout_ends_the_command_and_not_the_session(facts):
    # That client reads for exactly `timeout` seconds, so its own limit may come first.
    assert "command_timeout" in facts["timeout"] or "ReadTimeout" in facts["timeout"]
    assert facts["after_timeout"] == "kept"


def test_long_commands(facts):
    assert (facts["nohup"]["output"], facts["nohup"]["exit_code"]) == ("done", 0)
    assert facts["script"] == "from a script"


def test_execute(facts):
    assert facts["argv"] == {"stdout": "a b|$HOME|", "stderr": "", "exit_code": 0}
    assert facts["execute"] == {"stdout": "1\n/tmp\n", "stderr": "err\n", "exit_code": 4}


def test_files(facts):
    assert facts["write"] is True
    assert facts["read"] is True
    assert facts["upload"] is True
    assert facts["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert facts["absent_upload"] is False


def test_a_folder(facts):
    assert facts["folder"] == [0, ""]
    names = (".hidden", "a.txt", "b c.txt", "deep/er/d.txt")
    assert facts["folder_files"] == ["", *(f"/tmp/rock-compat-folder/{name}" for name in names)]


def test_status(facts):
    assert facts["alive"] is True
    status = facts["status"]
    assert (status["state"], status["is_alive"], status["image"]) == ("running", True, IMAGE)
    assert (status["cpus"], status["memory"]) == (0.5, "512m")
    assert (status["user_id"], status["experiment_id"], status["namespace"]) == ("u-1", "e-1", "n-1")
    assert status["phases"] == {"image_pull": "success", "docker_run": "success"}
    assert status["moves"][-1] == "running"


def test_attach_and_stop(facts):
    assert facts["attached"] == "kept"
    assert "not found" in facts["stopped"]
    assert facts["stopped_all_states"] == "stopped"


def test_restart_and_delete(facts):
    assert facts["restarted"] is True
    assert "not_found" in facts["old_session"]
    assert facts["files_after"] == "ünï\r\nno newline at the end"
    assert "BadRequestRockError" in facts["restart_running"] and "only a stopped one" in facts["restart_running"]
    assert "BadRequestRockError" in facts["delete_running"] and "stop it first" in facts["delete_running"]
    assert facts["deleted"] == "deleted"


def test_group(facts):
    assert facts["group"] == ["here"] * 8


def test_commit(engine_server, rl_rock_python, engine, tmp_path):
    tag = "rock-test/compat-commit:1"
    try:
        facts = run(rl_rock_python, COMMIT, engine_server.url, ALPINE, tag, cwd=tmp_path)
    finally:
        with contextlib.suppress(docker.errors.ImageNotFound):
            engine.images.remove(tag, force=True)
    assert facts["begun"]["image_tag"] == tag and facts["begun"]["started_at"]
    assert [facts[name]["phase"] for name in ("status", "again")] == ["SUCCEEDED", "SUCCEEDED"]
    assert facts["content"] == "kept"
