"""`rock worker start`: a second node joins a service, takes sandboxes, and leaves."""

import signal
import subprocess
import sys
import time

import pytest

from rock.actions import Command
from rock.sdk.sandbox.config import SandboxConfig
from rock.sdk.sandbox.sync import Sandbox
from tests.service_stack import ROOT, processes_with


def until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def joined(server, make_stack):
    """A node of its own beside the server's; yields (its stack, its supervisor)."""
    stack = make_stack(variables={"ROCK_REDIS_URL": server.redis_url, "ROCK_BASE_URL": server.url})
    arguments = ["worker", "start", "--node-id", stack.node_id, "--label", "cluster=second"]
    with (stack.data_dir / "node.log").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "rock.cli", *arguments],
            cwd=ROOT,
            env=stack.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        until(lambda: server.get("/healthz")["nodes"]["alive"] == 2)
        yield stack, process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def test_a_node_joins_works_and_leaves(server, joined):
    stack, process = joined
    config = SandboxConfig(base_url=server.url, cluster="second", memory="64m", cpus=0.1)
    with Sandbox(config) as sandbox:
        assert sandbox.execute(Command(command=["echo", "hi"])).stdout == "hi\n"
        assert f"node {stack.node_id}" in (server.data_dir / "logs" / "service.log").read_text()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    until(lambda: server.get("/healthz")["nodes"]["alive"] == 1)
    assert not [line for line in processes_with(stack.run_id) if stack.node_id in line]


def test_the_same_node_does_not_run_twice(joined):
    stack, _ = joined
    again = stack.rock("worker", "start", "--node-id", stack.node_id)
    assert again.returncode == 1 and stack.node_id in again.stderr


def test_a_node_needs_a_redis_to_join(make_stack):
    refused = make_stack().rock("worker", "start")
    assert refused.returncode == 1 and "ROCK_REDIS_URL" in refused.stderr
