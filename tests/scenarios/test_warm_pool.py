"""A node that keeps sandboxes started: who gets one, what a killed worker and a drain do to them, and that nothing is left."""

import asyncio
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from rock.rollout import RockSandbox
from tests.service_stack import Stack
from tests.wire import Api, Box, until

SAME = {"image": "python:3.11", "memory": "256m", "cpus": 0.2}
COUNT = 2


@pytest.fixture(
    scope="module",
    params=[pytest.param("local", marks=pytest.mark.service), pytest.param("docker", marks=pytest.mark.engine)],
)
def pooled(request, make_stack) -> Stack:
    """A service of its own whose node keeps two sandboxes."""
    variables = {"ROCK_POOL__SANDBOXES": json.dumps([{**SAME, "count": COUNT}]), "ROCK_ENVHUB__ENABLE": "false"}
    if request.param == "docker":
        variables["DOCKER_HOST"] = request.getfixturevalue("engine_url")
    return make_stack(runtime=request.param, variables=variables).start()


@pytest.fixture
def full(pooled) -> Api:
    """Its API, once the pool is full."""
    api = Api(pooled.url)
    until(lambda: in_stock(api) == COUNT, what="a full pool")
    return api


def in_stock(api: Api) -> int:
    return api.get("/nodes").result["nodes"][0]["pooled"]


def event(api: Api, box: Box) -> str:
    """Return how a sandbox came up."""
    return api.get("/get_status", sandbox_id=box.id).result["state_history"][-1]["event"]


def test_a_start_takes_one_and_it_is_like_any_other(full):
    box = full.start(metadata={"a": 1}, auto_delete_seconds=600)
    assert event(full, box) == "taken_from_pool"
    shell = box.open()
    assert shell.output("cd /tmp && X=1; echo $X") == "1"
    assert box.execute(["echo", "hi"]).result["stdout"] == "hi\n"
    assert box.write("kept.txt", "text").ok
    assert full.get("/get_sandbox_statistics", sandbox_id=box.id).ok
    assert [one["sandbox_id"] for one in full.get("/sandboxes").result["items"]] == [box.id]
    box.stop()
    assert full.post("/restart", sandbox_id=box.id).ok
    assert box.read("kept.txt").result["content"] == "text"
    box.stop()
    assert full.post("/delete", sandbox_id=box.id).ok


def test_callers_at_the_same_moment_get_different_ones(full):
    with ThreadPoolExecutor(5) as threads:
        boxes = list(threads.map(lambda number: full.start(request_id=f"same-{number}"), range(5)))
        events = [event(full, box) for box in boxes]
        list(threads.map(Box.stop, boxes))
    assert len({box.id for box in boxes}) == 5
    assert events.count("taken_from_pool") >= COUNT - 1, events  # the last of the pool may just be starting


def test_other_wishes_are_started(full):
    box = full.start(env={"A": "b"})
    assert event(full, box) == "started"
    assert box.execute("echo $A", shell=True).result["stdout"] == "b\n"
    box.stop()


def test_killed_workers_find_the_pool_again(full, pooled):
    before = _restarts(pooled)
    for name in ("worker", "lifecycle"):
        os.kill(pooled.pids()[name].pid, signal.SIGKILL)
    # While they are away a sandbox can be taken; it answers when they are back.
    box = full.start()
    assert event(full, box) == "taken_from_pool"
    assert box.execute(["echo", "hi"]).result["stdout"] == "hi\n"
    until(lambda: _restarts(pooled) >= before + 2, what="the return of both workers")
    until(lambda: in_stock(full) == COUNT, what="a full pool")
    box.stop()


def _restarts(stack: Stack) -> int:
    return sum(one.restarts for one in stack.pids().values() if one.name in ("worker", "lifecycle"))


def test_a_drained_node_has_none(full, pooled):
    name = pooled.node_id
    assert full.post(f"/nodes/{name}/drain").ok
    until(lambda: in_stock(full) == 0, what="an empty pool")
    assert full.post(f"/nodes/{name}/resume").ok
    until(lambda: in_stock(full) == COUNT, what="a full pool")


def test_a_rollout_takes_one_too(full, pooled):
    async def body() -> None:
        async with RockSandbox(pooled.url) as sandbox:
            await sandbox.start(SAME["image"], cpus=SAME["cpus"], memory=SAME["memory"])
            assert event(full, Box(full, sandbox.sandbox_id)) == "taken_from_pool"
            assert (await sandbox.execute_in_session("echo hi")).output == "hi"

    asyncio.run(body())
