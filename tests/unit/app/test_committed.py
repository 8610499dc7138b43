"""Whose a committed image is, for as long as a node has it; the store is real, the engine is not."""

import time

import pytest

from app.calls import Call, ClaimWord, Route
from app.image_store import Home
from workers.image_calls import ImageCalls


class Engine:
    """A deployment as far as commits and calls about images see one: the images it has, and what happens meanwhile."""

    def __init__(self):
        self.here, self.meanwhile, self.fault = set(), lambda: None, None

    @property
    def images(self):
        return self

    def has(self, image):
        return image in self.here

    def remove(self, image):
        self.meanwhile()
        was_here = image in self.here
        self.here.discard(image)
        return was_here

    def commit(self, sandbox_id, image):
        self.meanwhile()
        if self.fault:
            raise self.fault
        self.here.add(image)


@pytest.fixture
def engine():
    return Engine()


def posted(world, route, request_id="R", **body):
    """Return a call that is for node n1 itself."""
    call = Call(request_id * 32, request_id, "alice", route.value, "s1", body, node="n1", created=time.time())
    assert world.stores.images.post(call, call.created).word is ClaimWord.NEW
    return call


def test_a_node_that_removes_an_image_forgets_its_own_commit_only(world, engine):
    images = world.stores.images
    here, elsewhere = Home("n1", "alice", 1.0), Home("n2", "alice", 2.0)
    for home in (here, elsewhere):
        images.note("ubuntu:24.04", home)
    ImageCalls(world.results, images, engine).remove(posted(world, Route.REMOVE_IMAGE, image="ubuntu:24.04"))
    assert images.homes("docker.io/library/ubuntu:24.04") == [elsewhere]


def test_a_commit_that_is_made_while_its_name_is_removed_keeps_its_owner(world, engine):
    images = world.stores.images
    images.note("a:1", Home("n1", "alice", 1.0))
    newer = Home("n1", "alice", 2.0)
    engine.meanwhile = lambda: images.note("a:1", newer)
    ImageCalls(world.results, images, engine).remove(posted(world, Route.REMOVE_IMAGE, image="a:1"))
    assert images.homes("a:1") == [newer]
