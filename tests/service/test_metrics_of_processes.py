"""/metrics and the log of the real service: several API processes, both workers of a node, and kills."""

import json
import os
import signal
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.wire import Api, retried, until


@pytest.fixture(scope="module")
def stack(make_stack):
    variables = {"ROCK_MONITOR_ENABLE": "1", "ROCK_SERVER__WORKERS": "2"}
    return make_stack(variables={**variables, "ROCK_LOG__FORMAT": "json", "ROCK_LOGGING_LEVEL": "DEBUG"}).start()


def total(stack, sample, **labels):
    """Return the sum of a sample's numbers over the labels that are not named."""
    with urllib.request.urlopen(f"{stack.url}/metrics", timeout=30) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    found = [one for family in families for one in family.samples if one.name == sample]
    return sum(one.value for one in found if labels.items() <= one.labels.items())


def steps(stack):
    return total(stack, "rock_calls_total", route="run_in_session", outcome="ok")


def test_every_step_is_counted_once_whatever_is_killed(stack):
    box = Api(stack.url).start()
    shell = box.open()
    for _ in range(5):
        assert shell.run("true").ok
    until(lambda: steps(stack) == 5, 20, "five steps on the page")
    before = stack.pids()
    for name in ("worker", "lifecycle", "api"):
        os.kill(before[name].pid, signal.SIGKILL)
    until(lambda: {"worker", "api"} <= (now := stack.pids()).keys() and now["api"] != before["api"], 45, "their return")
    for number in range(3):
        assert retried(lambda number=number: shell.run("true", request_id=f"again-{number}")).ok
    until(lambda: steps(stack) == 8, 20, "eight steps on the page")
    assert total(stack, "rock_call_seconds_count", route="run_in_session") == 8
    assert retried(lambda: box.post("/stop")).ok
    until(lambda: total(stack, "rock_sandbox_events_total", event="stop") == 1, 20, "the stop on the page")
    assert total(stack, "rock_start_phase_seconds_count", phase="docker_run", status="success") == 1
    assert total(stack, "rock_node_sandboxes") == 0 and total(stack, "rock_node_calls_in_flight") == 0


SECRETS = {
    "registry_username": "me",
    "registry_password": "hunter2-of-the-registry",
    "env": {"TOKEN": "hunter2-inside"},
}


def test_each_event_is_a_line_with_its_ids_and_no_line_has_a_secret(stack):
    """A start, a command and a stop, at the most talkative level."""
    api = Api(stack.url)
    box = retried(lambda: api.post("/start", image="x", memory="64m", cpus=0.1, request_id="my-start", **SECRETS))
    sandbox_id = box.result["sandbox_id"]
    api.post("/create_session", sandbox_id=sandbox_id)
    command = "echo hunter2-of-the-command; true"
    assert api.post("/run_in_session", sandbox_id=sandbox_id, command=command, request_id="my-step").ok
    assert api.post("/stop", sandbox_id=sandbox_id, request_id="my-stop").ok

    def events():
        lines = (stack.data_dir / "logs" / "service.log").read_text().splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        ours = [one for one in found if one.get("sandbox_id") == sandbox_id]
        return {(one["process"], one["message"], one.get("request_id")) for one in ours}

    wanted = {
        ("session", "sandbox started", "my-start"), ("session", "run_in_session done", "my-step"),
        ("lifecycle", "sandbox stopped", "my-stop"), ("api", "POST /run_in_session", "my-step"),
    }  # fmt: skip
    until(lambda: wanted <= events(), 20, f"{wanted} in the log")
    assert "hunter2" not in (stack.data_dir / "logs" / "service.log").read_text()
