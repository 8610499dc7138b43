"""Commits of owners who have API keys: private at a real engine of either kind, and pushed under the name that was given."""

import pytest

from scripts import registry
from scripts.images import ALPINE
from tests.engine.test_registry import CREDENTIALS, committed


@pytest.fixture(scope="module")
def callers(either):
    return [either.api(key) for key in ("alpha", "beta", "root")]


@pytest.fixture
def client(either):
    return either.client


@pytest.fixture
def shared(either):
    """An image that everybody may start; gone at the end, as all that the service has named is."""
    name = "rock-test/shared:1"
    either.client.images.get(ALPINE).tag(*name.split(":"))
    yield name
    assert not either.own("commit")
    if name in either.tags():
        either.client.images.remove(name)


def commit_of(api, image, content, tag, **fields):
    """Commit a new sandbox with a file of this content; return how that ended."""
    box = api.start(image=image)
    assert box.write("/mine", content).ok
    status = committed(box, tag, **fields)
    box.stop()
    return status


def content_of(api, image, **fields) -> str | None:
    """Return what is in the file of a new sandbox, None without one."""
    box = api.start(image=image, **fields)
    seen = box.execute("cat /mine 2>/dev/null", shell=True).result
    box.stop()
    return seen["stdout"] if seen["exit_code"] == 0 else None


def test_a_commit_under_a_public_name_is_its_owners_alone(callers, shared, either, client):
    alice, bob, root = callers
    public = client.images.get(shared).id
    assert commit_of(alice, shared, "hers", shared)["phase"] == "SUCCEEDED"
    assert client.images.get(shared).id == public and len(either.own("commit")) == 1
    seen = [content_of(caller, shared, pull="never") for caller in (alice, bob, root)]
    assert seen == ["hers", None, None], "to all others the name means what it did"
    assert commit_of(bob, shared, "his", f"docker.io/{shared}")["phase"] == "SUCCEEDED"
    assert [content_of(caller, shared) for caller in (alice, bob, root)] == ["hers", "his", None]
    box = alice.start(image=shared)
    forks = box.post(f"/sandboxes/{box.id}/fork", count=2).result["sandboxes"]
    for made in forks:
        seen = alice.post("/read_file", sandbox_id=made["sandbox_id"], path="/mine")
        assert seen.result["content"] == "hers"
    for sandbox_id in (box.id, *(made["sandbox_id"] for made in forks)):
        assert alice.post("/stop", sandbox_id=sandbox_id).ok
    for name in either.own("commit"):
        bob.post("/start", image=name, pull="never").failed(4000, "the service's own")
    assert bob.post("/remove_image", image=shared).result["failed"] == []
    assert content_of(alice, shared, pull="never") == "hers", "his removal was of his own, and of what is everybody's"
    bob.post("/start", image=shared, pull="never").failed(5000, shared, kind="image_not_found")
    assert len(root.post("/remove_image", image=shared).result["removed"]) == 1, "an admin's takes everybody's"


def test_a_private_commit_is_pushed_by_its_name(callers, host, either, client):
    alice, bob, _ = callers
    tag = f"{host}/team/keyed:1"
    assert commit_of(alice, ALPINE, "first", tag, **CREDENTIALS)["phase"] == "SUCCEEDED"
    login = {"registry_username": registry.USER, "registry_password": registry.PASSWORD}
    assert not either.own("commit"), "the registry has it: it is an image like any other"
    client.images.remove(tag)
    assert content_of(bob, tag, **login) == "first"
    before = client.images.get(tag).id
    status = commit_of(alice, ALPINE, "planted", tag, username=registry.USER, password="wrong-pass-word")
    assert (status["phase"], status["error_code"]) == ("FAILED", "LOGIN_FAILED")
    assert client.images.get(tag).id == before and not either.own("commit")
    assert content_of(bob, tag, pull="never") == "first"
    assert commit_of(alice, ALPINE, "second", tag, **CREDENTIALS)["phase"] == "SUCCEEDED"
    assert [content_of(caller, tag, pull="never") for caller in (alice, bob)] == ["second", "second"]
    assert len(bob.post("/remove_image", image=tag).result["removed"]) == 1
