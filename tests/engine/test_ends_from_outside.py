"""Sandboxes that end from outside, and callers that end without a word: told soon, and gone by the lease."""

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from scripts.images import DEBIAN
from tests.service_stack import ROOT
from tests.wire import Api, until

SMALL = {"image": DEBIAN, "memory": "64m", "cpus": 0.05}
PROGRAM = """
import asyncio, sys
from rock.actions import CreateBashSessionRequest
from rock.sdk.sandbox.client import Sandbox
from rock.sdk.sandbox.config import SandboxConfig


async def main():
    config = SandboxConfig(image=sys.argv[1], memory="64m", cpus=0.05, auto_clear_seconds=float(sys.argv[2]))
    async with Sandbox(config) as sandbox:
        await sandbox.create_session(CreateBashSessionRequest(session="s"))
        print(sandbox.sandbox_id, flush=True)
        # A command that runs holds its sandbox, whoever waits for it.
        await (sandbox.arun("sleep 98765", session="s", wait_timeout=None) if sys.argv[3] == "works" else asyncio.sleep(98765))


asyncio.run(main())
"""


@pytest.fixture(scope="module")
def api(engine_server):
    return Api(engine_server.url)


def containers(engine, engine_server):
    """Return the sandboxes whose containers the engine says run, by our label."""
    found = engine.containers.list(filters={"label": f"rock.node={engine_server.node_id}"}, ignore_removed=True)
    return {one.labels["rock.sandbox"]: one for one in found}


@pytest.mark.parametrize("end", ["rm", "kill", "stop"])
def test_L10_a_container_that_ends_from_outside_is_told_at_once(api, engine, engine_server, end):
    box = api.start(**SMALL).open()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: box.run("echo begun > /begun; sleep 98765"))
        until(lambda: box.read("/begun").ok, 10, "the command")
        container = containers(engine, engine_server)[box.id]
        {"rm": lambda: container.remove(force=True), "kill": container.kill, "stop": lambda: container.stop(timeout=0)}[
            end
        ]()
        begun = time.monotonic()
        gone = waiting.result(30).failed(5000, box.id, kind="sandbox_gone")
    assert not gone["retryable"]
    until(lambda: not api.get("/is_alive", sandbox_id=box.id).result["is_alive"], 10, "its end being told")
    box.run("true").failed(5000, box.id, kind="sandbox_gone")
    # A second each where nothing else runs.
    assert time.monotonic() - begun < 10
    status = api.get("/get_status", sandbox_id=box.id, include_all_states="true").result
    assert (status["state"], status["state_history"][-1]["event"]) == ("stopped", "container_gone")
    box.stop()
    again = api.start(**{**SMALL, "sandbox_id": box.id})
    assert again.execute("cat /begun", shell=True).result["exit_code"] != 0, "a blank one"
    again.stop()


@pytest.mark.parametrize(
    ("number", "lease", "state", "event"),
    [(signal.SIGINT, 3600, "works", "stop"), (signal.SIGINT, 3600, "thinks", "stop"), (signal.SIGKILL, 2, "thinks", "lease_expired")],
)  # fmt: skip
def test_R04_a_program_that_is_ended_leaves_no_container(api, engine, engine_server, number, lease, state, event):
    """Ctrl-C cleans up; after a kill nobody is left to, and the lease does."""
    arguments = [sys.executable, "-c", PROGRAM, DEBIAN, str(lease), state]
    with subprocess.Popen(
        arguments, cwd=ROOT / "sdk", env=engine_server.environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as program:  # fmt: skip
        sandbox_id = program.stdout.readline().strip()
        assert sandbox_id in containers(engine, engine_server)
        program.send_signal(number)
        program.wait(30)
    until(lambda: sandbox_id not in containers(engine, engine_server), 40, "the container's end")
    status = api.get("/get_status", sandbox_id=sandbox_id, include_all_states="true").result
    assert status["state_history"][-1]["event"] == event


def test_R04_the_list_of_sandboxes_is_the_engines(api, engine, engine_server):
    boxes = [api.start(**SMALL) for _ in range(2)]
    listed = json.loads(engine_server.rock("sandbox", "ls", "--state", "running", "--json").stdout)
    rows = listed["items"] if isinstance(listed, dict) else listed
    assert {row["sandbox_id"] for row in rows} == set(containers(engine, engine_server)) >= {box.id for box in boxes}
    for box in boxes:
        box.stop()
