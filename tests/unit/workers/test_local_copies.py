"""Copies of sandboxes' folders on a node without an engine."""

import os
import stat

import pytest

from rock.errors import BadRequest, Internal
from workers.deployments.abstract import Credentials
from workers.deployments.local_copies import Copies


@pytest.fixture
def home(tmp_path):
    """A sandbox's folder with all kinds of things in it."""
    folder = tmp_path / "home"
    (folder / "d" / "empty").mkdir(parents=True)
    (folder / ".hidden").write_text("h")
    (folder / "d" / "f").write_bytes(bytes(range(256)))
    (folder / "d" / "f").chmod(0o640)
    (folder / "link").symlink_to("d/f")
    (folder / "nowhere").symlink_to("/no/such/file")
    os.mkfifo(folder / "pipe")
    (folder / "d").chmod(0o550)
    yield folder
    (folder / "d").chmod(0o750)


@pytest.fixture
def copies(tmp_path):
    return Copies(tmp_path / "copies")


def test_a_copy_is_laid_out_as_it_was(copies, home, tmp_path):
    copies.keep("x:1", home)
    target = tmp_path / "other"
    target.mkdir()
    copies.lay_out("x:1", target)
    assert sorted(os.listdir(target)) == [".hidden", "d", "link", "nowhere", "pipe"]
    assert (target / "d" / "f").read_bytes() == bytes(range(256))
    assert (
        stat.S_IMODE((target / "d").stat().st_mode) == 0o550
        and stat.S_IMODE((target / "d" / "f").stat().st_mode) == 0o640
    )
    assert os.readlink(target / "link") == "d/f" and os.readlink(target / "nowhere") == "/no/such/file"
    assert stat.S_ISFIFO((target / "pipe").stat().st_mode) and (target / "d" / "empty").is_dir()
    (target / "d").chmod(0o750)


def test_a_copy_has_one_name_until_it_is_evicted(copies, home):
    assert list(copies.names()) == [] and not copies.has("x:1")
    copies.keep("x", home)
    assert list(copies.names()) == ["x:latest"] and copies.has("x:latest") and not copies.has("x:1")
    (home / ".hidden").write_text("later")
    copies.keep("x", home)
    assert copies.evict("x", asked_for=True) and not copies.has("x") and list(copies.names()) == []
    assert not copies.evict("x") and not copies.remove("x")


def test_other_images_are_the_machines_own_files(copies, tmp_path):
    target = tmp_path / "other"
    target.mkdir()
    copies.lay_out("python:3.11", target)
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("name", ["..", "../x", "/etc", "a/../../b", "x.part/..", ""])
def test_a_name_cannot_lead_elsewhere(copies, name, home):
    with pytest.raises(BadRequest):
        copies.has(name)
    with pytest.raises(BadRequest):
        copies.keep(name, home)


def test_a_copy_that_fails_is_none(copies, tmp_path):
    with pytest.raises(Internal, match="cannot be copied"):
        copies.keep("x:1", tmp_path / "absent")
    assert list(copies.names()) == [] and not copies.has("x:1")


def test_nothing_is_pushed(copies):
    with pytest.raises(BadRequest, match="no images"):
        copies.push("x:1", Credentials("u", "p"))
