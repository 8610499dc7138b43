"""A stopped sandbox comes back with its files, is deleted, or goes by itself: L09 and L15 of the catalogue of faults."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest

from tests.wire import Api, Box, until

KEPT = {"auto_delete_seconds": 300}
"""Tests run with a service that keeps nothing unless it is asked to."""


@pytest.fixture
def kept(api: Api) -> Iterator[Callable[..., Box]]:
    """A function that starts a sandbox whose container outlives its stop; all are deleted at the end."""
    made: list[Box] = []

    def start(**fields: object) -> Box:
        made.append(api.start(**{**KEPT, **fields}))
        return made[-1]

    yield start
    for box in made:
        box.stop()
        assert box.post("/delete").ok


def status(box: Box) -> dict:
    return box.api.get("/get_status", sandbox_id=box.id, include_all_states="true").result


def test_L15_a_restart_keeps_the_files_and_nothing_else(kept):
    box = kept()
    shell = box.open()
    seconds = f"{os.getpid()}{time.monotonic_ns() % 1000}"  # a number of this test's own: others sleep on this machine
    shell.output(f"echo data > ~/file; X=1; (setsid sleep {seconds} &); sleep {seconds} & echo $PWD")
    assert box.write("~/deep/er.txt", "written").ok
    box.stop()
    shell.run("echo x").failed(4000, box.id)
    assert box.post("/restart").result["sandbox_id"] == box.id
    shell.run("echo $X").failed(4000, shell.session, kind="not_found")
    assert box.read("~/file").result["content"] == "data\n"
    assert box.read("~/deep/er.txt").result["content"] == "written"
    again = box.post("/create_session", session=shell.session)
    assert again.ok, again.body
    assert shell.output("echo ${X-unset}") == "unset"
    left = shell.execute(
        f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c '[s]leep {seconds}'", shell=True
    )
    assert left.result["stdout"] == "0\n"


def test_L09_times_and_reasons_are_told(kept):
    box = kept()
    first = status(box)
    box.stop()
    ended = status(box)
    assert ended["state"] == "stopped" and "stop" in ended["message"]
    span = datetime.fromisoformat(ended["auto_delete_time"]) - datetime.fromisoformat(ended["stop_time"])
    assert span.total_seconds() == pytest.approx(300, abs=1)
    assert box.api.post(f"/sandboxes/{box.id}/restart").ok
    now = status(box)
    assert now["is_alive"] and now["stop_time"] is None and now["start_time"] > ended["stop_time"] > first["start_time"]
    assert now["status"]["docker_run"]["status"] == now["status"]["image_pull"]["status"] == "success"
    assert [(move["to_state"], move["event"]) for move in now["state_history"]] == [
        ("running", "started"), ("stopped", "stop"), ("pending", "restart"), ("running", "started"),
    ]  # fmt: skip
    assert all(datetime.fromisoformat(move["timestamp"]).tzinfo for move in now["state_history"])
    box.post("/restart").failed(4000, "running")
    box.post("/delete").failed(4000, "stop it first")


def test_calls_of_the_old_life_never_run_in_the_new_one(kept):
    box = kept()
    shell = box.open()
    with ThreadPoolExecutor(1) as caller:
        waiting = caller.submit(lambda: shell.run("echo ran >> ~/ran; sleep 98763"))
        until(lambda: box.read("~/ran").ok)
        box.stop()
        assert box.post("/restart").ok
        waiting.result(30).failed(5000, box.id, kind="sandbox_gone")
    assert box.open().output("cat ~/ran") == "ran"


def test_a_restart_that_is_stopped_meanwhile_can_be_tried_again(kept):
    box = kept()
    box.write("~/file", "data")
    box.stop()
    for _ in range(3):
        with ThreadPoolExecutor(2) as callers:
            begun = callers.submit(lambda: box.post("/restart"))
            callers.submit(box.stop)
            begun.result(60)
        box.stop()
        assert status(box)["state"] == "stopped"
    assert box.post("/restart").ok
    assert box.read("~/file").result["content"] == "data"


def test_a_new_sandbox_under_a_stopped_ones_name_is_a_blank_one(kept):
    box = kept()
    box.write("~/file", "data")
    box.stop()
    fresh = kept(sandbox_id=box.id)
    assert fresh.id == box.id
    fresh.read("~/file").failed(4000, "file")


def test_stopped_sandboxes_go_by_themselves(api):
    box = api.start(auto_delete_seconds=1)
    box.stop()
    until(lambda: status(box)["state"] == "deleted", 30, "its deletion")
    assert status(box)["delete_time"]
    box.post("/restart").failed(4000, box.id, kind="not_found")
    at_once = api.start(auto_delete_seconds=0)
    at_once.stop()
    assert status(at_once)["state"] == "deleted"


def test_an_expired_sandbox_can_be_brought_back(kept):
    box = kept(auto_clear_seconds=1)
    box.write("~/file", "data")
    until(lambda: [row["state"] for row in box.api.post("/sandboxes/batch", sandbox_ids=[box.id]).result["statuses"]]
          == ["stopped"], 30, "the end of its lease")  # fmt: skip
    assert status(box)["state_history"][-1]["event"] == "lease_expired"
    assert box.post("/restart").ok
    assert box.read("~/file").result["content"] == "data"


def test_lists_show_what_there_is(api, kept):
    named = Api(api.url, {"X-Namespace": "lists"})
    boxes = [named.start(), named.start()]
    rows = api.get("/sandboxes", namespace="lists", page_size=1).result
    assert rows["total"] == 2 and rows["has_more"] and rows["items"][0]["sandbox_id"] == boxes[1].id
    statuses = api.post("/sandboxes/batch", sandbox_ids=[box.id for box in boxes]).result["statuses"]
    assert [row["is_alive"] for row in statuses] == [True, True]
    assert api.get(f"/sandboxes/{boxes[0].id}/mount-infos").result == []
    for box in boxes:
        box.stop()
