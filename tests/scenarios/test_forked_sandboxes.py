"""Sandboxes made of one: the same files, nothing else of it, all of them or none."""

import os
import signal
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.wire import Api, Box, retried, until

PLAIN = {"memory": "64m", "cpus": 0.1}


@pytest.fixture
def source(api) -> Box:
    """A sandbox with a file, a session and a process."""
    box = api.start(**PLAIN, metadata={"task": "t"})
    shell = box.open()
    shell.output(
        "echo first >f.txt; mkdir -p d/e; ln -s ../f.txt d/link; echo deep >d/e/g; chmod 750 d; export SECRET=s; sleep 600 & echo"
    )
    yield box
    box.stop()


def fork(box: Box, **fields):
    return box.api.post(f"/sandboxes/{box.id}/fork", **fields)


def forks(box: Box, **fields) -> list[Box]:
    reply = fork(box, **fields)
    assert reply.ok, reply.body
    return [Box(box.api, one["sandbox_id"]) for one in reply.result["sandboxes"]]


def living(api: Api) -> set[str]:
    return {
        one["sandbox_id"] for one in api.get("/sandboxes").result["items"] if one["state"] in ("pending", "running")
    }


def test_forks_have_the_files_and_go_their_own_ways(source, stack):
    session = source.open().session
    made = forks(source, count=3, env={"WHO": "fork"})
    assert len({box.id for box in [*made, source]}) == 4
    for number, box in enumerate(made):
        shell = box.open()
        assert (
            shell.output("cat f.txt d/link d/e/g; stat -c %a d; echo $WHO-$SECRET") == "first\nfirst\ndeep\n750\nfork-"
        )
        assert not Box(source.api, box.id, session).run("true").ok
        if stack.runtime != "local":  # where all sandboxes see the machine's processes
            assert shell.run("grep -qx sleep /proc/[0-9]*/comm").result["exit_code"] == 1
        shell.output(f"echo {number} >f.txt")
    assert [box.read("f.txt").result["content"] for box in [*made, source]] == ["0\n", "1\n", "2\n", "first\n"]
    shown = source.api.get("/get_status", sandbox_id=made[0].id).result
    assert (shown["metadata"], shown["memory"], shown["cpus"]) == ({"task": "t"}, "64m", 0.1)
    # A fork can be forked.
    (second,) = forks(made[2])
    assert second.read("f.txt").result["content"] == "2\n"
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(Box.stop, [*made, second]))


def test_the_same_request_makes_the_same_forks(source):
    request_id = uuid.uuid4().hex
    with ThreadPoolExecutor(2) as threads:
        first, again = threads.map(lambda _: forks(source, count=2, request_id=request_id), range(2))
    assert [box.id for box in first] == [box.id for box in again]
    fork(source, count=3, request_id=request_id).failed(4000, "request_id", kind="bad_request")
    source.write("f.txt", "later")
    assert [box.id for box in forks(source, count=2, request_id=request_id)] == [box.id for box in first]
    assert first[0].read("f.txt").result["content"] == "first\n"
    for box in first:
        box.stop()


def test_what_cannot_be_made_leaves_nothing(source):
    before = living(source.api)
    fork(source, count=2, docker_args=["--privileged"]).failed(4000, "privileged", kind="bad_request")
    assert living(source.api) == before
    for count in (0, 65, "x"):
        fork(source, count=count).failed(4000, "count", kind="bad_request")
    source.api.post("/sandboxes/nobody/fork", count=1).failed(4000, "not found", kind="not_found")


def test_more_than_its_node_could_hold_is_refused_at_once(api):
    (node,) = api.get("/nodes").result["nodes"]
    box = api.start(memory="64m", cpus=node["cpus"] / 8)
    fork(box, count=9).failed(4000, "count", node["node_id"], kind="bad_request")
    box.stop()


def test_a_worker_that_is_killed_meanwhile_makes_them_all_the_same(source, stack):
    request_id = uuid.uuid4().hex
    fork(source, count=2, wait=0, request_id=request_id)
    os.kill(stack.pids()["lifecycle"].pid, signal.SIGKILL)
    reply = retried(lambda: fork(source, count=2, request_id=request_id))
    assert reply.ok, reply.body
    for one in reply.result["sandboxes"]:
        box = Box(source.api, one["sandbox_id"])
        assert box.read("f.txt").result["content"] == "first\n"
        box.stop()


def test_the_image_of_a_fork_goes_with_the_last_of_them(source, stack, request):
    if stack.runtime == "local":
        folder = stack.data_dir / "copies"
        forks(source)[0].stop()
        until(lambda: not list(folder.iterdir()), what="the removal of the copy")
        return
    engine = request.getfixturevalue("engine")
    before = _fork_images(engine)
    (box,) = forks(source)
    (made,) = _fork_images(engine) - before
    box.stop()
    until(lambda: made not in _fork_images(engine), what="the removal of the image")


def _fork_images(engine) -> set[str]:
    return {tag for image in engine.api.images() for tag in image["RepoTags"] or () if tag.startswith("rock-fork-")}
