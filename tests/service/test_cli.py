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


def test_the_root_lists_the_commands(server):
    listed = server.rock("--help")
    assert listed.returncode == 0 and "admin" in listed.stdout and "sandbox" in listed.stdout
    unknown = server.rock("nonsense")
    assert unknown.returncode == 2 and "nonsense" in unknown.stderr
