"""A sandbox comes up, says how it is, and goes away with all that was in it: the L rows of the catalogue of faults."""

import json
import socket
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pytest

from tests.wire import PREFIX, Api, Box, until


def test_a_start_says_where_it_is_and_what_it_has(api):
    reply = api.post("/start", image="python:3.11", memory="256m", cpus=0.5)
    assert reply.ok, reply.body
    result = reply.result
    assert result["sandbox_id"] and result["host_name"] and result["host_ip"]
    assert (result["cpus"], result["memory"]) == (0.5, "256m")
    Box(api, result["sandbox_id"]).stop()


def test_a_start_can_be_polled_to_its_end(api):
    reply = api.post("/start_async", image="python:3.11", memory="256m", cpus=0.2, metadata={"job": "a"})
    assert reply.ok, reply.body
    box = Box(api, reply.result["sandbox_id"])
    status = until(lambda: (now := api.get("/get_status", sandbox_id=box.id)).result["is_alive"] and now.result)
    assert status["state"] == "running" and status["image"] == "python:3.11" and status["metadata"] == {"job": "a"}
    for phase in ("image_pull", "docker_run"):
        entry = status["status"][phase]
        assert entry["status"] == "success" and entry["started_at"] <= entry["completed_at"] and entry["message"]
    assert status["create_time"] <= status["start_time"] < status["auto_stop_time"]
    moves = [(move["from_state"], move["to_state"]) for move in status["state_history"]]
    assert moves[-1] == ("pending", "running")
    assert box.open().output("echo hi") == "hi"
    box.stop()


def test_who_asks_is_kept_and_shown(api):
    named = Api(api.url, {"X-User-Id": "u1", "X-Experiment-Id": "e1", "X-Namespace": "n1"})
    box = named.start()
    status = api.get("/get_status", sandbox_id=box.id).result
    assert (status["user_id"], status["experiment_id"], status["namespace"]) == ("u1", "e1", "n1")
    box.stop()


def test_a_stopped_sandbox_is_gone_with_all_its_processes(api, own):
    shell = own.open()
    shell.run("sleep 98765 & setsid sleep 98765 &")
    begun = time.monotonic()
    own.stop()
    assert time.monotonic() - begun < 10
    alive = api.get("/is_alive", sandbox_id=own.id)
    assert alive.ok and alive.result["is_alive"] is False
    api.get("/get_status", sandbox_id=own.id).failed(4000, f"Sandbox {own.id} not found")
    status = api.get("/get_status", sandbox_id=own.id, include_all_states="true").result
    assert status["state"] == "stopped" and status["stop_time"]
    shell.run("echo x").failed(4000, own.id)
    own.stop()


def test_a_caller_whose_sandbox_is_stopped_is_told(api, own):
    shell = own.open()
    with ThreadPoolExecutor(1) as caller:
        waiting = caller.submit(lambda: shell.run("echo a > started; sleep 98765"))
        until(lambda: own.read("started").ok or shell.execute("cat started", shell=True).result["exit_code"] == 0)
        own.stop()
        waiting.result(30).failed(5000, own.id, kind="sandbox_gone")


def test_L12_one_id_is_one_sandbox(api):
    name = f"box-{uuid.uuid4().hex[:8]}"
    with ThreadPoolExecutor(4) as callers:
        request = {"image": "python:3.11", "memory": "256m", "cpus": 0.2, "sandbox_id": name}
        replies = list(callers.map(lambda _: api.post("/start", **request), range(4)))
    assert [reply.ok for reply in replies].count(True) == 1
    for reply in replies:
        if not reply.ok:
            reply.failed(4000, name, "already exists", kind="already_exists")
    Box(api, name).stop()


def test_A10_a_retried_start_is_one_sandbox(api):
    request = f"r-{uuid.uuid4().hex}"
    fields = {"image": "python:3.11", "memory": "256m", "cpus": 0.2, "request_id": request}
    with ThreadPoolExecutor(3) as callers:
        replies = list(callers.map(lambda _: api.post("/start", **fields), range(3)))
    assert len({reply.result["sandbox_id"] for reply in replies}) == 1, [reply.body for reply in replies]
    Box(api, replies[0].result["sandbox_id"]).stop()


@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
def test_A10_a_start_whose_caller_leaves_three_times_is_one_sandbox(api, named):
    request, parts = f"r-{uuid.uuid4().hex}", urlsplit(api.url)
    fields = {"image": "python:3.11", "memory": "256m", "cpus": 0.2, "request_id": request, "metadata": {"of": request}}
    fields |= {"sandbox_id": f"box-{uuid.uuid4().hex[:8]}"} if named else {}
    body = json.dumps(fields).encode()

    def mine():
        return [row for row in api.get("/sandboxes").result["items"] if row["metadata"] == {"of": request}]

    for _ in range(3):
        with socket.create_connection((parts.hostname, parts.port), timeout=10) as caller:
            caller.sendall(
                b"POST %s/start HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (PREFIX.encode(), len(body)) + body
            )
            until(mine, what="the record")
    answer = api.post("/start", **fields)
    assert answer.ok, answer.body
    assert [row["sandbox_id"] for row in mine()] == [answer.result["sandbox_id"]]
    assert not named or answer.result["sandbox_id"] == fields["sandbox_id"]
    Box(api, answer.result["sandbox_id"]).stop()


def test_a_start_need_not_be_waited_for(api):
    request = f"r-{uuid.uuid4().hex}"
    begun = api.post("/start", image="python:3.11", memory="256m", cpus=0.2, request_id=request, wait=0)
    assert begun.ok, begun.body
    answer = api.get(f"/results/{request}", wait=30)
    assert answer.ok and answer.result["sandbox_id"]
    Box(api, answer.result["sandbox_id"]).stop()


def test_L13_a_stop_during_the_start_leaves_nothing(api):
    for _ in range(5):
        reply = api.post("/start_async", image="python:3.11", memory="256m", cpus=0.2)
        box = Box(api, reply.result["sandbox_id"])
        box.stop()
        assert api.get("/is_alive", sandbox_id=box.id).result["is_alive"] is False
        status = api.get("/get_status", sandbox_id=box.id, include_all_states="true").result
        assert status["state"] == "stopped"


def test_L07_a_sandbox_ends_after_its_idle_time_and_not_before(api):
    box = api.start(auto_clear_seconds=3)
    assert box.open().output("sleep 4; echo ok") == "ok", "a command in flight holds it"
    shown = api.get("/get_status", sandbox_id=box.id).result
    assert shown["is_alive"]
    # Looking renews the lease: so look once, after it must be over.
    end = datetime.fromisoformat(shown["auto_stop_time"]) + timedelta(seconds=4)
    until(lambda: datetime.now(UTC) > end)
    status = api.get("/get_status", sandbox_id=box.id, include_all_states="true").result
    assert status["state"] == "stopped" and status["state_history"][-1]["to_state"] == "stopped"


def test_statistics_are_of_the_sandbox(api, shared):
    result = api.get("/get_sandbox_statistics", sandbox_id=shared.id).result
    assert {"cpu", "mem", "disk", "net"} <= set(result)
    assert result["cpu"] >= 0 and 0 <= result["mem"] <= 100 and 0 <= result["disk"] <= 100 and result["net"] >= 0


def test_R01_no_zombies(shell):
    """Counted by a name of their own: a sandbox without isolation sees the zombies of the whole machine."""
    shell.output("cp $(type -P sleep) orphan && for i in $(seq 100); do (./orphan 0.1 &); done")

    def zombies():
        reply = shell.execute("cat /proc/[0-9]*/stat 2>/dev/null | grep -c '(orphan) '", shell=True)
        assert reply.ok, reply.body
        return int(reply.result["stdout"])

    until(lambda: zombies() == 0, 20, "the end of the orphans")
