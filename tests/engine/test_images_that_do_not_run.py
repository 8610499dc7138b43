"""Images whose sandbox cannot come up: no shell in it, another processor, too late. Told with the reason, and nothing is left."""

import time

import pytest

from tests.engine import handmade
from tests.wire import Api

SMALL = {"memory": "64m", "cpus": 0.05}


@pytest.fixture(scope="module")
def api(engine_server):
    return Api(engine_server.url)


@pytest.fixture
def image(engine):
    """A function that gives the engine an image, which goes after the test."""
    made = []

    def make(tag, files, architecture="amd64"):
        handmade.load(engine, tag, files, architecture)
        made.append(tag)
        return tag

    yield make
    for tag in made:
        engine.images.remove(tag, force=True)


def left(api, engine, name):
    """Return what is left of a start that failed: its containers, and the room of the node that it holds."""
    (node,) = api.get("/nodes").result["nodes"]
    return [one.name for one in engine.containers.list(all=True, ignore_removed=True) if name in one.name], node[
        "sandboxes"
    ]


def test_L03_an_image_with_one_program_and_no_shell_fails_at_once(api, engine, image):
    """As hello-world is. That its command would end at once does not matter: see test_containers."""
    tag, before = image("rock-test/hello:1", {"hello": b"#!/nothing"}), left(api, engine, "nothing")[1]
    begun = time.monotonic()
    api.post("/start", image=tag, sandbox_id="hello", **SMALL).failed(5000, tag, "no bash", kind="start_failed")
    assert time.monotonic() - begun < 3
    assert left(api, engine, "hello") == ([], before)


def test_L22_an_image_for_another_processor_is_told_with_both(api, engine, image):
    tag, before = image("rock-test/arm:1", {"bin/bash": handmade.ARM64_PROGRAM}, "arm64"), left(api, engine, "x")[1]
    reply = api.post("/start", image=tag, sandbox_id="arm", **SMALL)
    assert not reply.failed(5000, tag, "arm64", "amd64", kind="start_failed")["retryable"]
    assert left(api, engine, "arm") == ([], before)
    phase = api.get("/get_status", sandbox_id="arm").result["status"]["docker_run"]
    assert phase["status"] == "failed" and "arm64" in phase["message"] and "amd64" in phase["message"]
