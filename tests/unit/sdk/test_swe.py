"""Names, tool calls and grades of the SWE lane."""

import json
import shlex
import subprocess

import pytest

from rock import settings
from rock.errors import BadRequest
from rock.rollout import SWE_TOOL_CONFIGS, SweTask, get_swe_bench_image
from rock.rollout.swe import ENTRYPOINT, entrypoint_mount, tool_command

REPORT = """\
PASSED tests/test_a.py::test_two
============ short test summary info ============
PASSED tests/test_a.py::test_one
PASSED tests/test_a.py::test_with[a b]
FAILED tests/test_a.py::test_two - AssertionError
==== 1 failed, 2 passed in 0.1s ====
"""


def task(**fields):
    return SweTask(**{"instance_id": "o__r-1", "base_commit": "abc123", **fields})


def test_image_names():
    assert get_swe_bench_image("django__django-16911") == "swebench/sweb.eval.x86_64.django_1776_django-16911:latest"
    assert get_swe_bench_image("PyCQA__flake8-1").startswith("swebench/sweb.eval.x86_64.pycqa_1776_flake8-1:")
    for bad in ("django", "a/b__c-1", "", "a__b-1; rm -rf /"):
        with pytest.raises(BadRequest, match="owner__repository-number"):
            get_swe_bench_image(bad)


def test_the_tools_are_those_that_are_carried_out():
    names = [tool["function"]["name"] for tool in SWE_TOOL_CONFIGS]
    assert names == ["execute_bash", "str_replace_editor"]
    commands = SWE_TOOL_CONFIGS[1]["function"]["parameters"]["properties"]["command"]["enum"]
    assert commands == ["view", "create", "str_replace", "insert"]
    json.dumps(SWE_TOOL_CONFIGS)


def test_bash_runs_as_it_is_and_edits_go_to_the_editor():
    assert tool_command("execute_bash", {"command": "cd /tmp\nls 'x'"}) == "cd /tmp\nls 'x'"
    arguments = {"command": "create", "path": "/x", "file_text": 'it\'s "ü"\n$HOME `id`'}
    words = shlex.split(tool_command("str_replace_editor", arguments))
    assert words[:5] == ["python3", ENTRYPOINT, "--action", "str_replace_editor", "--params"]
    assert json.loads(words[5]) == arguments
    with pytest.raises(BadRequest, match="no tool 'browse'.*execute_bash, str_replace_editor"):
        tool_command("browse", {})
    for bad in ({}, {"command": " "}, {"command": 3}):
        with pytest.raises(BadRequest, match="command"):
            tool_command("execute_bash", bad)


def test_long_edits_go_over_standard_input():
    arguments = {"command": "create", "path": "/x", "file_text": "'ü\nROCK_PARAMS\n$HOME`" * 20_000}
    command = "python3() { cat; }\n" + tool_command("str_replace_editor", arguments)
    said = subprocess.run(["bash"], input=command, capture_output=True, text=True, check=True).stdout
    assert json.loads(said) == arguments


def test_the_editor_is_mounted_read_only(monkeypatch):
    flag, mount = entrypoint_mount()
    assert flag == "-v" and mount.endswith(f"/rollout/swe_execute_sandbox.py:{ENTRYPOINT}:ro")
    monkeypatch.setenv("SWE_ENTRYPOINT_LOCAL", "/mnt/swe.py")
    assert settings.read("SWE_ENTRYPOINT_LOCAL") == "/mnt/swe.py"
    assert entrypoint_mount() == ["-v", f"/mnt/swe.py:{ENTRYPOINT}:ro"]


def test_a_row_of_the_data_set_becomes_a_task():
    row = {
        "instance_id": "o__r-1", "base_commit": "abc", "problem_statement": "p", "repo": "o/r",
        "test_patch": "--- a/tests/a.py\n+++ b/tests/a.py\n@@\n--- /dev/null\n+++ b/tests/new.py\n",
        "FAIL_TO_PASS": '["tests/a.py::test_x"]', "PASS_TO_PASS": ["tests/b.py::T::test_y", "tests/a.py::test_z"],
    }  # fmt: skip
    made = SweTask.from_record(row, test_command="pytest")
    assert made.tests == ("tests/a.py::test_x", "tests/b.py::T::test_y", "tests/a.py::test_z")
    assert (made.test_files(), made.patched_files()) == (["tests/a.py", "tests/b.py"], ["tests/a.py", "tests/new.py"])
    assert (made.image_name, made.test_command) == (get_swe_bench_image("o__r-1"), "pytest")
    for bad in ({"instance_id": "o__r-1"}, {**row, "FAIL_TO_PASS": "["}, {**row, "base_commit": "--force"}):
        with pytest.raises(BadRequest, match="o__r-1"):
            SweTask.from_record(bad)


@pytest.mark.parametrize(
    "tests, report, grade",
    [
        (("tests/test_a.py::test_one", "tests/test_a.py::test_with[a b]"), REPORT, 1.0),
        (("tests/test_a.py::test_one", "tests/test_a.py::test_two"), REPORT, 0.0),
        (("tests/test_a.py::test_absent",), REPORT, 0.0),
        (("tests/test_a.py::test_two",), REPORT.partition("=")[0], 0.0),
        ((), REPORT, 0.0),
    ],
)
def test_grades(tests, report, grade):
    assert task(tests=tests).grade(report) == grade
