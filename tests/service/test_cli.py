"""`rock sandbox` against the real service."""

import json


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
