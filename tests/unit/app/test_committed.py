"""Whose a committed image is, for as long as a node has it; the store is real, the engine is not."""

import contextlib
import time

import pytest

from app.calls import Call, ClaimWord, Route
from app.config import load
from app.database import DatabaseAway
from app.image_store import Home
from app.records import Commit
from rock.actions import CommitPhase
from rock.errors import SandboxGone
from tests.wire import until
from workers.commits import Commits
from workers.image_calls import ImageCalls
from workers.turns import Turns


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
        fault, self.fault = self.fault, None
        if fault:
            raise fault
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
    ImageCalls(world.results, images, engine, contextlib.nullcontext).remove(
        posted(world, Route.REMOVE_IMAGE, image="ubuntu:24.04")
    )
    assert images.homes("docker.io/library/ubuntu:24.04") == [elsewhere]


def test_a_commit_that_is_made_while_its_name_is_removed_keeps_its_owner(world, engine):
    images = world.stores.images
    images.note("a:1", Home("n1", "alice", 1.0))
    newer = Home("n1", "alice", 2.0)
    engine.meanwhile = lambda: images.note("a:1", newer)
    ImageCalls(world.results, images, engine, contextlib.nullcontext).remove(
        posted(world, Route.REMOVE_IMAGE, image="a:1")
    )
    assert images.homes("a:1") == [newer]


@pytest.fixture
def committed(world, engine, tmp_path):
    """A function that has node n1 commit sandbox s1, and returns how that ended."""
    world.node()
    world.running(owner="alice")
    stores = world.stores
    config = load("test", {"ROCK_DATA_DIR": str(tmp_path), "ROCK_NODE_ID": "n1"})
    commits = Commits(config, stores.results, stores.sandboxes, stores.images, engine, Turns())

    def commit(image, **body):
        call = posted(world, Route.COMMIT, image_tag=image, **body)
        record = stores.sandboxes.get("s1")
        assert stores.sandboxes.set_commit(record, Commit(call.call_id, image, started=call.created))
        # As a node does with what it finds in flight.
        until(lambda: commits.begin(call.call_id) or stores.results.read(call.call_id), 10, "the end of the commit")
        return Commit.of(stores.sandboxes.get("s1"))

    return commit


def test_a_commit_that_was_cut_off_is_done_again(world, engine, committed):
    """The engine has made the image, and its worker got no further."""
    owners = []

    def cut_off():
        engine.here.add("a:1")
        owners.append(world.stores.images.home("a:1", "n1").owner)

    engine.meanwhile, engine.fault = cut_off, DatabaseAway()
    assert committed("a:1").phase is CommitPhase.SUCCEEDED
    assert owners == ["alice", "alice"], "the image never was without its owner"
    assert world.stores.images.only_node("a:1", "alice") == "n1"


def test_a_commit_that_made_nothing_is_not_noted(world, engine, committed):
    engine.fault = SandboxGone("its container is gone")
    assert committed("a:1").code == "SANDBOX_CONTAINER_NOT_FOUND"
    assert world.stores.images.homes("a:1") == []


def test_an_image_that_a_failed_commit_left_behind_has_its_owner(world, engine, committed):
    engine.meanwhile, engine.fault = lambda: engine.here.add("a:1"), SandboxGone("gone at the last step")
    assert committed("a:1").code == "SANDBOX_CONTAINER_NOT_FOUND"
    assert world.stores.images.only_node("a:1", "alice") == "n1"


@pytest.mark.parametrize("home", [None, Home("n1", "bob", 1.0), Home("n2", "alice", 1.0)])
def test_an_image_that_is_no_commit_of_the_owners_there_is_not_replaced(world, engine, committed, home):
    engine.here.add("a:1")
    if home is not None:
        world.stores.images.note("a:1", home)
    assert committed("a:1").code == "COMMIT_CONFLICT"
    assert world.stores.images.homes("a:1") == ([home] if home else [])
