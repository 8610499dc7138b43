"""C01: what the queue delivers again does not run again, whatever its visibility timeout is. A redelivery is the very same message once more."""

import contextlib
import uuid

import pytest
import redis

from app.broker import NodeTask, make_celery
from app.config import load
from app.keys import Keys
from app.nodes import Nodes
from tests.wire import Api, until

SMALL = {"image": "python:3.11", "memory": "64m", "cpus": 0.05}


@pytest.fixture
def again(server):
    """A function that delivers a task of a call to the node once more; returns when the node has taken it."""
    config = load("test", {"ROCK_REDIS_URL": server.redis_url})
    nodes, keys = Nodes(make_celery(config)), Keys()
    with contextlib.closing(redis.Redis.from_url(server.redis_url, decode_responses=True)) as client:

        def deliver(task, request_id):
            (call,) = [key for key in client.scan_iter("rock:call:*") if client.type(key) == "hash" and client.hget(key, "request_id") == request_id]  # fmt: skip
            for _ in range(3):
                nodes.send(task, call.removeprefix(keys.call("")), server.node_id)
            until(lambda: not client.llen(f"{keys.broker_prefix()}{task.queue(server.node_id)}"), what="the delivery")

        yield deliver


@pytest.mark.parametrize("route", ["/run_in_session", "/execute"])
def test_C01_a_command_that_is_delivered_again_runs_once(server, again, tmp_path, route):
    box, request, evidence = Api(server.url).start(**SMALL).open(), f"r-{uuid.uuid4().hex}", tmp_path / "evidence"
    script = f"echo run >> {evidence}; while [[ ! -e {tmp_path}/gate ]]; do sleep 0.05; done; echo done"
    fields = {"session": box.session} if route == "/run_in_session" else {"shell": True}
    assert box.post(route, command=script, request_id=request, wait=0, **fields).ok
    until(evidence.exists, what="its begin")
    again(NodeTask.CALL, request)
    (tmp_path / "gate").touch()
    assert "done" in str(box.api.get(f"/results/{request}", wait=30).result)
    again(NodeTask.CALL, request)
    # In order behind whatever a delivery might have begun.
    assert box.output("echo after") == "after" and box.execute("echo after", shell=True).ok
    assert evidence.read_text() == "run\n"
    box.stop()


def test_C01_a_start_or_stop_that_is_delivered_again_is_done_once(server, again):
    api, start = Api(server.url), f"r-{uuid.uuid4().hex}"
    box = api.start(request_id=start, **SMALL).open()
    assert box.run("kept=yes").ok
    for task in (NodeTask.START, NodeTask.OPENED):
        again(task, start)
    assert box.output("echo $kept") == "yes", "the same sandbox"
    stop = f"r-{uuid.uuid4().hex}"
    assert box.post("/stop", request_id=stop).ok
    next_life = api.start(sandbox_id=box.id, **SMALL)
    again(NodeTask.STOP, stop)
    again(NodeTask.START, start)
    assert next_life.execute("echo alive", shell=True).result["stdout"] == "alive\n"
    next_life.stop()
