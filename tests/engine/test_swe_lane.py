"""The SWE lane in a real container, with a real task: a scripted agent solves it through the API, or does not."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.swe_agent.agent import ToolCall, attempt, scripted
from rock import errors
from rock.rollout import RockSandbox, SweEnvironment
from scripts import swe_image
from scripts.engine import CACHE

ROOT = Path(__file__).resolve().parents[2]
EDITOR = "str_replace_editor"
FILE = f"/testbed/{swe_image.FIXED_FILE}"


@pytest.fixture
def keep(monkeypatch):
    """Take down sandboxes, but not the image that all these tests use."""
    monkeypatch.setenv("STACX_KEEP_IMAGES", "1")


def run(server, task, work, **options):
    """Start the task's environment, and return what `work` makes of it."""

    async def body():
        sandbox = RockSandbox(server.url)
        async with SweEnvironment(task, sandbox, cpus=1, memory="512m", **options) as environment:
            return await work(environment)

    return asyncio.run(body())


def solution():
    """The real fix as tool calls: what an agent does, mistakes included."""
    diff = swe_image.difference(swe_image.FIXED_FILE, CACHE).splitlines()
    old, new = ([line[1:] for line in diff[3:] if line.startswith(sign)] for sign in "-+")
    return [
        ToolCall("execute_bash", {"command": "git status --short; git log --all --oneline | cat; which python"}),
        ToolCall("execute_bash", {"command": "cd src && export SEEN=1"}),
        ToolCall(
            "execute_bash", {"command": "pwd; echo $SEEN; python -m pytest -q ../tests/test_fields.py | tail -n 1"}
        ),
        ToolCall(EDITOR, {"command": "view", "path": "/testbed/marshmallow/fields.py"}),
        ToolCall(EDITOR, {"command": "view", "path": FILE, "view_range": [1105, 1125]}),
        ToolCall(
            EDITOR, {"command": "str_replace", "path": FILE, "old_str": "super()._bind_to_schema(", "new_str": "x("}
        ),
        ToolCall(
            EDITOR, {"command": "str_replace", "path": FILE, "old_str": "\n".join(old), "new_str": "\n".join(new)}
        ),
        ToolCall(EDITOR, {"command": "create", "path": "/testbed/notes.txt", "file_text": "x" * 200_000}),
    ]


def test_a_scripted_agent_solves_a_task(engine_server, keep):
    task = swe_image.task(CACHE)
    episode = run(engine_server, task, lambda environment: attempt(environment, scripted(solution())))
    told = [message["content"] for message in episode.messages if message["role"] == "tool"]
    # X13: of the later release, whose commit the image holds, nothing is to be seen.
    assert "Release 3.0.0" in told[0] and "3.0.1" not in told[0]
    assert "/opt/miniconda3/envs/testbed/bin/python" in told[0]
    assert told[2].startswith("/testbed/src\n1\n") and "76 passed" in told[2]
    assert f"Did you mean {FILE}?" in told[3]
    assert "self.format" in told[4]
    assert "ERROR: old_str stands in" in told[5] and "times" in told[5]
    assert f"edited {FILE}" in told[6]
    assert f"diff --git a/{swe_image.FIXED_FILE}" in episode.patch and "b/notes.txt" in episode.patch
    assert swe_image.TEST_FILE not in episode.patch
    assert episode.reward == 1.0


def test_without_the_fix_there_is_no_reward(engine_server, keep):
    async def work(environment):
        # An agent that writes the report itself, and spoils the tests, gains nothing.
        forged = f"echo 'PASSED {swe_image.FAIL_TO_PASS}' > {swe_image.TEST_FILE}"
        seen = await environment.step("execute_bash", {"command": forged})
        none = await environment.reward()
        # The same sandbox with the real fix: it was the fix that was missing.
        await environment.apply_patch(swe_image.difference(swe_image.FIXED_FILE, CACHE))
        return seen, none, await environment.reward()

    seen, none, full = run(engine_server, swe_image.task(CACHE), work)
    assert (seen, none, full) == ("[exit code 0]", 0.0, 1.0)


def test_the_editor_and_the_network_are_out_of_the_agents_reach(engine_server, keep):
    async def work(environment):
        calls = ("echo x >> /home/swe_execute_sandbox.py", "ls /sys/class/net", "exit 4", "python -c 'print(1)'")
        return [await environment.step("execute_bash", {"command": command}) for command in calls]

    spoiled, network, left, after = run(engine_server, swe_image.task(CACHE), work)
    assert "Read-only file system" in spoiled
    assert network == "lo\n[exit code 0]"
    assert "[exit code 4]" in left
    assert "1" in after.splitlines() and "[exit code 0]" in after


@pytest.fixture
def image(engine):
    """The image under a name that may be removed."""
    name = f"rock-test/swe-{os.getpid()}:latest"
    engine.images.get(swe_image.TAG).tag(*name.split(":"))
    yield name
    if present(engine, name):
        engine.images.remove(name)


def present(engine, name):
    return any(name in one.tags for one in engine.images.list())


def test_the_image_goes_with_its_task(engine, engine_server, image, caplog):
    async def work(environment):
        return await environment.step("execute_bash", {"command": "pwd"})

    assert run(engine_server, swe_image.task(CACHE, image=image), work) == "/testbed\n[exit code 0]"
    assert not present(engine, image) and present(engine, swe_image.TAG)
    assert "LEAKED IMAGE" not in caplog.text


def test_an_image_of_another_shape_says_what_is_missing(engine_server, keep):
    with pytest.raises(errors.CommandFailed, match="conda.sh.*No such file"):
        run(engine_server, swe_image.task(CACHE, image="debian:minimal"), None)


def test_the_example_from_the_command_line(engine_server, tmp_path):
    task = swe_image.task(CACHE)
    row = {name: getattr(task, name) for name in ("instance_id", "base_commit", "problem_statement", "test_patch")}
    (tmp_path / "task.json").write_text(json.dumps({**row, "FAIL_TO_PASS": [swe_image.FAIL_TO_PASS]}))
    calls = [{"name": call.name, "arguments": call.arguments} for call in solution()[-2:-1]]
    (tmp_path / "calls.json").write_text(json.dumps(calls))
    options = ["--script", str(tmp_path / "calls.json"), "--cpus", "1", "--memory", "512m"]
    done = subprocess.run(
        [sys.executable, "-m", "examples.swe_agent", str(tmp_path / "task.json"), *options],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
        env={**engine_server.environment(), "STACX_KEEP_IMAGES": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("1 steps, reward 1.0\n") and "self.root.opts" in done.stdout
