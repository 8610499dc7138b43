"""Whose a committed image is, for as long as a node has it; the store is real, the engine is not."""

import contextlib
import time

import pytest

from app.calls import Call, ClaimWord, Route
from app.config import load
from app.database import DatabaseAway
from app.image_store import Home
from app.records import Commit
from app.references import commit_name, own_repository
from rock.actions import CommitPhase, StartRequest
from rock.errors import ImageAccess, ImageNotFound, SandboxGone, Unavailable
from tests.wire import until
from workers.commits import Commits
from workers.image_calls import ImageCalls
from workers.turns import Turns


class Engine:
    """A deployment as far as commits and calls about images see one: the images it has, and what happens meanwhile."""

    mark = "n1"

    def __init__(self):
        self.here, self.meanwhile, self.fault = set(), lambda: None, None
        self.pushes, self.refusal = [], None
        self.taken_back, self.away, self.in_use = [], None, None

    @property
    def images(self):
        return self

    def has(self, image):
        return image in self.here

    def remove(self, image):
        self.meanwhile()
        if self.in_use:
            raise self.in_use
        was_here = image in self.here
        self.here.discard(image)
        return was_here

    def push(self, image, credentials, *, private="", pushed=lambda: None):
        self.pushes.append((image, private))
        if self.refusal:
            raise self.refusal
        self.meanwhile()
        pushed()
        if private:
            self.at_removal()
            self.here.discard(private)

    def at_removal(self):
        """What happens when a push is done and noted, before the private name goes."""

    def take_back(self, repository):
        if self.away:
            raise self.away
        self.taken_back.append(repository)

    def reclaim(self):
        self.taken_back.append("this process's")

    def commit(self, sandbox_id, image):
        self.meanwhile()
        fault, self.fault = self.fault, None
        if fault:
            raise fault
        self.here.add(image)


ALICES = commit_name("n1", "n1", "alice", "a:1")


@pytest.fixture
def engine():
    return Engine()


def posted(world, route, request_id="R", owner="alice", **body):
    """Return a call that is for node n1 itself."""
    call = Call(request_id * 32, request_id, owner, route.value, "s1", body, node="n1", created=time.time())
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


def test_a_removal_takes_the_private_commits_of_its_caller_and_those_of_all_for_an_admin(world, engine):
    images = world.stores.images
    for owner in ("alice", "bob", "carol"):
        engine.here.add(commit_name("n1", "n1", owner, "a:1"))
        images.note("a:1", Home("n1", owner, 1.0, name=commit_name("n1", "n1", owner, "a:1")))
    engine.here.add("a:1")
    calls = ImageCalls(world.results, images, engine, contextlib.nullcontext)
    calls.remove(posted(world, Route.REMOVE_IMAGE, image="a:1", all_owners=False))
    assert [home.owner for home in images.homes("a:1")] == ["bob", "carol"] and "a:1" not in engine.here
    assert engine.here == {home.name for home in images.homes("a:1")}
    calls.remove(posted(world, Route.REMOVE_IMAGE, "S", owner="root", image="a:1", all_owners=True))
    assert (images.homes("a:1"), engine.here) == ([], set())


@pytest.fixture
def commits(world, engine, tmp_path):
    """The commits of node n1, which has a sandbox s1."""
    world.node()
    world.running(owner="alice")
    stores = world.stores
    config = load("test", {"ROCK_DATA_DIR": str(tmp_path), "ROCK_NODE_ID": "n1"})
    return Commits(config, stores.results, stores.sandboxes, stores.images, engine, Turns())


@pytest.fixture
def committed(world, commits):
    """A function that has node n1 commit sandbox s1, and returns how that ended."""
    stores = world.stores

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
        engine.here.add(ALICES)
        owners.extend(home.owner for home in world.stores.images.own("a:1", "alice"))

    engine.meanwhile, engine.fault = cut_off, DatabaseAway()
    assert committed("a:1").phase is CommitPhase.SUCCEEDED
    assert owners == ["alice", "alice"], "the image never was without its owner"
    assert world.stores.images.only_node("a:1", "alice") == "n1" and engine.here == {ALICES}


def test_a_commit_that_made_nothing_is_not_noted(world, engine, committed):
    engine.fault = SandboxGone("its container is gone")
    assert committed("a:1").code == "SANDBOX_CONTAINER_NOT_FOUND"
    assert world.stores.images.homes("a:1") == []


def test_an_image_that_a_failed_commit_left_behind_has_its_owner(world, engine, committed):
    engine.meanwhile, engine.fault = lambda: engine.here.add(ALICES), SandboxGone("gone at the last step")
    assert committed("a:1").code == "SANDBOX_CONTAINER_NOT_FOUND"
    assert world.stores.images.only_node("a:1", "alice") == "n1"


@pytest.mark.parametrize("home", [None, Home("n1", "bob", 1.0), Home("n2", "", 1.0)])
def test_without_api_keys_an_image_that_is_no_commit_made_there_is_not_replaced(world, engine, committed, home):
    engine.here.add("a:1")
    if home is not None:
        world.stores.images.note("a:1", home)
    assert committed("a:1", owner="").code == "COMMIT_CONFLICT"
    assert world.stores.images.homes("a:1") == ([home] if home else [])


def test_a_keyed_owners_commit_leaves_the_name_alone(world, engine, commits, committed):
    """What was `python:3.11` to everybody else still is, whether the node has it or not."""
    engine.here.add("a:1")
    assert committed("a:1").phase is CommitPhase.SUCCEEDED
    assert engine.here == {"a:1", ALICES}
    asked = StartRequest(image="a:1")
    assert (commits.resolved(asked, "alice").image, commits.resolved(asked, "alice").pull) == (ALICES, "never")
    for owner, request in (("bob", asked), ("", asked), ("alice", StartRequest(image="a:1", pull="always"))):
        assert commits.resolved(request, owner) == request
    assert [world.stores.images.only_node("a:1", owner) for owner in ("alice", "bob")] == ["n1", ""]
    engine.here.discard(ALICES)
    with pytest.raises(ImageNotFound, match=r"a:1.*your commit"):
        commits.resolved(asked, "alice")


def test_nothing_is_started_or_pushed_before_names_are_had_back_from_a_killed_process(engine, commits, committed):
    engine.away = Unavailable("the engine is away")
    for use in (lambda: commits.resolved(StartRequest(image="a:1"), "bob"), lambda: commits.settle(0.0)):
        with pytest.raises(Unavailable, match="is away"):
            use()
    assert "is away" in committed("a:1").message and not engine.here
    engine.away = None
    assert commits.resolved(StartRequest(image="a:1"), "bob").image == "a:1"
    assert engine.taken_back == [own_repository("commit", "n1", "n1")]
    commits.settle(0.0)
    assert engine.taken_back[1:] == ["this process's"], "there may be pushes under way now"


LOGIN = {"username": "u", "password": "hunter2secret"}


def test_a_keyed_owners_push_is_by_the_name_that_was_given(world, engine, commits, committed):
    name = commit_name("n1", "n1", "alice", "r.io/a:1")
    assert committed("r.io/a:1", **LOGIN).phase is CommitPhase.SUCCEEDED
    assert engine.pushes == [("r.io/a:1", name)]
    # What has been pushed is what anybody gets by that name.
    assert commits.resolved(StartRequest(image="r.io/a:1"), "alice").image == "r.io/a:1"
    assert [home.pushed for home in world.stores.images.homes("r.io/a:1")] == [True]
    assert world.stores.images.unused("n1", time.time() + 60) == ["r.io/a:1"], "it may be evicted"


def test_a_push_that_is_refused_leaves_nothing_private(world, engine, committed):
    engine.refusal = ImageAccess("no")
    assert committed("r.io/a:1", **LOGIN).code == "LOGIN_FAILED"
    assert (engine.here, world.stores.images.homes("r.io/a:1")) == (set(), [])


@pytest.mark.parametrize("owner", ["alice", ""])
def test_a_push_that_is_refused_is_told_though_the_image_cannot_be_removed(world, engine, commits, committed, owner):
    engine.refusal, engine.in_use = ImageAccess("no"), Unavailable("in use by 1 running sandboxes")
    ended = committed("r.io/a:1", owner=owner, **LOGIN)
    assert (ended.code, ended.message) == ("LOGIN_FAILED", "no")
    assert commits.resolved(StartRequest(image="r.io/a:1"), owner).image == "r.io/a:1", "it is private no more"
    if not owner:  # under that very name, and so startable: the next commit of that name may still replace it
        engine.refusal = engine.in_use = None
        assert committed("r.io/a:1", request_id="S", owner=owner, **LOGIN).phase is CommitPhase.SUCCEEDED


def test_a_start_never_asks_for_the_private_name_that_a_push_takes_away(world, engine, commits, committed):
    asked, found = StartRequest(image="r.io/a:1"), []
    engine.at_removal = lambda: found.append(commits.resolved(asked, "alice").image)
    assert committed("r.io/a:1", **LOGIN).phase is CommitPhase.SUCCEEDED
    assert found == ["r.io/a:1"]


def test_a_push_that_could_not_be_noted_is_done_again(world, engine, committed, monkeypatch):
    faults, removed = [DatabaseAway()], []

    def away():
        if engine.pushes and faults:
            raise faults.pop()

    engine.meanwhile = away
    monkeypatch.setattr(engine, "remove", removed.append)
    assert committed("r.io/a:1", **LOGIN).phase is CommitPhase.SUCCEEDED
    assert len(engine.pushes) == 2 and not removed
    assert [home.pushed for home in world.stores.images.homes("r.io/a:1")] == [True]
