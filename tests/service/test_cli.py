"""`rock sandbox` against the real service."""

import json
import signal
import subprocess
import sys
import time

import pytest

from tests.service_stack import ROOT

SMALL = ("--cpus", "0.1", "--memory", "64m")


def begin(server, *arguments):
    """Start a `rock` command and return the process."""
    return subprocess.Popen(
        [sys.executable, "-m", "rock.cli", *arguments], cwd=ROOT, env=server.environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_run_shows_output_while_the_command_runs(server, tmp_path):
    go = tmp_path / "go"
    script = f"echo begun; until [ -e {go} ]; do sleep 0.05; done; echo over"
    with begin(server, "sandbox", "run", *SMALL, "python:3.11", "--", "sh", "-c", script) as process:
        assert process.stdout.readline() == "begun\n"
        go.touch()
        assert process.communicate(timeout=60) == ("over\n", "")
    assert process.returncode == 0


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_no_sandbox(server, number, code):
    image = f"interrupted:{code}"
    with begin(server, "sandbox", "run", *SMALL, image, "sh", "-c", "echo begun; sleep 100") as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    assert process.returncode == code and "cleaning up" in said and "Traceback" not in said
    assert server.rock("sandbox", "ls", "--image", image, "--state", "running").stdout == ""


def test_run_takes_files_along_and_runs_beside_them(server, tmp_path):
    (tmp_path / "project" / "tests").mkdir(parents=True)
    (tmp_path / "project" / "tests" / "a.txt").write_text("A")
    (tmp_path / "single.txt").write_text("S")
    copies = ("--copy", str(tmp_path / "project"), "--copy", f"{tmp_path / 'single.txt'}")
    seen = server.rock("sandbox", "run", *SMALL, *copies, "x", "--", "sh", "-c", "cat tests/a.txt single.txt")
    assert (seen.stdout, seen.returncode) == ("AS", 0), seen.stderr
    absent = server.rock("sandbox", "run", "--copy", str(tmp_path / "absent"), "x", "true")
    assert absent.returncode == 2 and "there is no file or folder" in absent.stderr


def test_a_command_that_is_not_there_is_127_and_shell_text_gets_a_hint(server):
    seen = server.rock("sandbox", "run", *SMALL, "x", "echo a | cat")
    assert seen.returncode == 127 and "not found" in seen.stderr and "sh -c" in seen.stderr
    seen = server.rock("sandbox", "run", *SMALL, "x", "no-such-program", "a b")
    assert seen.returncode == 127 and "not found" in seen.stderr and "sh -c" not in seen.stderr


def test_json_for_programs(server):
    seen = server.rock("sandbox", "run", "--json", *SMALL, "x", "sh", "-c", "echo out; echo err >&2; exit 7")
    found = json.loads(seen.stdout)
    assert (found["stdout"], found["stderr"], found["exit_code"], seen.returncode) == ("out\n", "err\n", 7, 7)
    failed = server.rock("sandbox", "exec", "--json", "never-was", "true")
    error = json.loads(failed.stderr)
    assert (error["kind"], failed.returncode) == ("not_found", 1) and "rock sandbox ls" in error["hint"]


def test_copies_go_both_ways(server, tmp_path):
    sandbox_id = server.rock("sandbox", "start", *SMALL, "x").stdout.strip()
    local, back = tmp_path / "project", tmp_path / "back"
    (local / "sub").mkdir(parents=True)
    (local / "sub" / "b").write_text("b")
    inside, outside = f"{sandbox_id}:{tmp_path / 'inside'}", str(back)

    def copies(source, target):
        done = server.rock("sandbox", "cp", source, target)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    copies(str(local), inside)  # is not there: becomes the folder
    copies(str(local), inside)  # is there: goes into it
    copies(str(local / "sub" / "b"), f"{inside}/c")
    copies(inside, outside)
    names = sorted(str(path.relative_to(back)) for path in back.rglob("*") if path.is_file())
    assert names == ["c", "project/sub/b", "sub/b"]
    copies(f"{inside}/c", f"{back}/new")
    assert (back / "new").read_text() == "b"
    copies(f"{inside}/sub/.", outside)
    assert (back / "b").read_text() == "b"
    absent = server.rock("sandbox", "cp", f"{inside}/absent", outside)
    assert absent.returncode == 1 and "absent" in absent.stderr
    assert server.rock("sandbox", "cp", outside, outside).returncode == 2
    stream = server.rock("sandbox", "cp", f"{inside}/c", "-")
    assert stream.returncode == 2 and "./-" in stream.stderr
    onto_a_file = server.rock("sandbox", "cp", f"{inside}/c", f"{back}/new/x")
    assert onto_a_file.returncode == 1 and "Traceback" not in onto_a_file.stderr
    assert server.rock("sandbox", "rm", "--force", sandbox_id).returncode == 0


def test_logs_of_a_session(server, tmp_path):
    from rock.actions import BashAction, CreateBashSessionRequest
    from rock.sdk.sandbox.config import SandboxConfig
    from rock.sdk.sandbox.sync import Sandbox

    go = tmp_path / "go"
    with Sandbox(SandboxConfig(base_url=server.url, cpus=0.1, memory="64m")) as sandbox:
        none = server.rock("sandbox", "logs", sandbox.sandbox_id)
        assert none.returncode == 1 and "is known" in none.stderr
        sandbox.create_session(CreateBashSessionRequest(session="a"))
        command = f"echo begun; until [ -e {go} ]; do sleep 0.05; done; echo over"
        body = {"sandbox_id": sandbox.sandbox_id, "session": "a", "command": command, "wait": 0}
        with begin(server, "sandbox", "exec", sandbox.sandbox_id, "true") as unrelated:
            unrelated.communicate(timeout=30)
        server.post("/run_in_session", body)
        with begin(server, "sandbox", "logs", "--follow", "--session", "a", sandbox.sandbox_id) as process:
            assert process.stdout.readline() == "begun\n"
            assert server.rock("sandbox", "logs", sandbox.sandbox_id).stdout == "begun\n"
            go.touch()
            assert process.communicate(timeout=30) == ("over\n", "")
        sandbox.run_in_session(BashAction(session="a", command="echo next"))
        found = json.loads(server.rock("sandbox", "logs", "--json", sandbox.sandbox_id).stdout)
        assert (found["output"], found["state"]) == ("next\n", "done")


def test_a_service_that_is_not_there_is_said_soon_and_with_what_to_do(server):
    began = time.monotonic()
    seen = subprocess.run(
        [sys.executable, "-m", "rock.cli", "sandbox", "ls"], cwd=ROOT, capture_output=True, text=True, timeout=60,
        env={**server.environment(), "ROCK_BASE_URL": "http://127.0.0.1:9"},
    )  # fmt: skip
    assert seen.returncode == 2 and "rock admin start" in seen.stderr and "Traceback" not in seen.stderr
    assert time.monotonic() - began < 25, "the patience of a trainer is not that of a person"


def test_completion(server):
    for shell, mark in (("bash", "complete -o nosort"), ("zsh", "#compdef rock"), ("fish", "complete --no-files")):
        script = server.rock("completion", shell)
        assert script.returncode == 0 and mark in script.stdout

    def complete(*words):
        variables = {
            "_ROCK_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
        }
        done = subprocess.run(
            [sys.executable, "-m", "rock.cli"], cwd=ROOT, env={**server.environment(), **variables},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return done.stdout.split()

    assert complete("rock", "ad") == ["plain,admin"]
    assert {"plain,start", "plain,status", "plain,stop"} == set(complete("rock", "sandbox", "st"))
    sandbox_id = server.rock("sandbox", "start", *SMALL, "x").stdout.strip()
    assert complete("rock", "sandbox", "rm", sandbox_id[:8]) == [f"plain,{sandbox_id}"]
    assert server.rock("sandbox", "rm", "--force", sandbox_id).returncode == 0


def test_run_prints_apart_what_was_printed_apart_and_exits_as_the_command_did(server):
    command = ("sh", "-c", "echo out; echo err >&2; exit 7")
    seen = server.rock("sandbox", "run", "--cpus", "0.1", "--memory", "64m", "python:3.11", "--", *command)
    assert (seen.stdout, seen.stderr, seen.returncode) == ("out\n", "err\n", 7)


def test_start_exec_status_stop(server):
    started = server.rock("sandbox", "start", "--cpus", "0.1", "--memory", "64m", "python:3.11")
    assert started.returncode == 0, started.stderr
    sandbox_id = started.stdout.strip()
    assert server.rock("sandbox", "exec", sandbox_id, "--", "echo", "a  b").stdout == "a  b\n"
    status = json.loads(server.rock("sandbox", "status", sandbox_id).stdout)
    assert (status["state"], status["image"]) == ("running", "python:3.11")
    assert server.rock("sandbox", "stop", sandbox_id).returncode == 0
    gone = server.rock("sandbox", "exec", sandbox_id, "true")
    assert gone.returncode == 1 and sandbox_id in gone.stderr and "Traceback" not in gone.stderr


def test_sandboxes_are_listed_and_deleted(server):
    made = [
        server.rock("sandbox", "start", "--cpus", "0.1", "--memory", "64m", "listed:1").stdout.strip() for _ in "ab"
    ]
    rows = json.loads(server.rock("sandbox", "ls", "--image", "listed:1", "--json").stdout)
    assert [row["sandbox_id"] for row in rows] == made[::-1] and {row["state"] for row in rows} == {"running"}
    assert (
        server.rock("sandbox", "ls", "--image", "listed:1").stdout.splitlines()[0].startswith(f"{made[1]}\trunning\t")
    )
    refused = server.rock("sandbox", "rm", *made)
    assert refused.returncode == 1 and refused.stderr.count("stop it first") == 2 and "Traceback" not in refused.stderr
    removed = json.loads(server.rock("sandbox", "rm", "--force", "--json", *made, "never-was").stdout)
    assert removed == {"deleted": [*made, "never-was"], "failed": {}}
    assert server.rock("sandbox", "ls", "--image", "listed:1", "--json").stdout.strip() == "[]"


def test_a_sandbox_is_forked(server):
    source = server.rock("sandbox", "start", *SMALL, "--env", "WHO=source", "forked:1").stdout.strip()
    assert server.rock("sandbox", "exec", source, "--", "sh", "-c", "echo mine >f.txt").returncode == 0
    done = server.rock("sandbox", "fork", source, "--count", "2", "-e", "WHO=fork")
    made = done.stdout.split()
    assert done.returncode == 0 and len({source, *made}) == 3, done.stderr
    for sandbox_id in made:
        assert (
            server.rock("sandbox", "exec", sandbox_id, "--", "sh", "-c", "cat f.txt; echo $WHO").stdout
            == "mine\nfork\n"
        )
    (one,) = json.loads(server.rock("sandbox", "fork", source, "--json").stdout)["forks"]
    assert set(one) == {"sandbox_id", "host_name", "host_ip"}
    for arguments, word in (
        (("never-was",), "never-was"),
        ((source, "--count", "65"), "--count"),
        ((source, "-e", "X"), "NAME=VALUE"),
    ):
        failed = server.rock("sandbox", "fork", *arguments)
        assert failed.returncode != 0 and word in failed.stderr and "Traceback" not in failed.stderr, failed.stderr
    assert json.loads(server.rock("sandbox", "fork", "never-was", "--json").stderr)["kind"] == "not_found"
    assert server.rock("sandbox", "rm", "--force", source, *made, one["sandbox_id"]).returncode == 0


def test_images_are_fetched_and_removed(server):
    warmed = server.rock("image", "warm", "python:3.11", "a:1")
    assert warmed.returncode == 0, warmed.stderr
    assert {line.split("\t")[0] for line in warmed.stdout.splitlines()} == {server.node_id}
    task = json.loads(server.rock("image", "warm", "--json", "a:1").stdout)
    assert task["state"] == "success" and task["pulls"][0]["image"] == "a:1"
    removed = server.rock("image", "rm", "a:1", "--json")
    assert json.loads(removed.stdout) == {"removed": [], "failed": [], "lost": []}, "the local runtime has no images"
    unknown = server.rock("image", "rm", "a:1", "--node", "n9")
    assert unknown.returncode == 1 and "n9" in unknown.stderr


def test_the_root_lists_the_commands(server):
    listed = server.rock("--help")
    assert listed.returncode == 0 and "admin" in listed.stdout and "sandbox" in listed.stdout
    unknown = server.rock("nonsense")
    assert unknown.returncode == 2 and "nonsense" in unknown.stderr
