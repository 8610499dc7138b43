"""F16, F22: a folder arrives as it was packed."""

import os
import socket
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from rock import archive
from rock.errors import BadRequest
from tests.trees import make_tree


def tree_of(folder):
    """Return what is in a folder by name: mode, and content or where a link leads."""
    found = {}
    for path in sorted(folder.rglob("*")):
        seen = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        mode = None if path.is_symlink() else stat.S_IMODE(seen.st_mode)
        found[str(path.relative_to(folder))] = (stat.S_IFMT(seen.st_mode), mode, content)
    return found


def unpack(archived: Path, target: Path):
    return subprocess.run(archive.unpack_command(str(archived), str(target)), capture_output=True, text=True)


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


def test_F16_the_tree_its_modes_and_links_are_equal(source, tmp_path):
    make_tree(source)
    archive.pack(source, tmp_path / "x.tar")
    done = unpack(tmp_path / "x.tar", tmp_path / "new" / "it's here")
    assert (done.returncode, done.stderr) == (0, "")
    assert tree_of(tmp_path / "new" / "it's here") == tree_of(source)
    assert not (tmp_path / "x.tar").exists()
    there = tmp_path / "new" / "it's here"
    assert (there / "run.sh").stat().st_ino == (there / "same.sh").stat().st_ino


def test_F22_an_existing_folder_keeps_its_mode_and_loses_its_contents(source, tmp_path):
    (source / "f").write_text("new")
    target, link = tmp_path / "target", tmp_path / "link"
    target.mkdir(mode=0o700)
    make_tree(target)
    link.symlink_to(target)
    archive.pack(source, target / "x.tar")  # the archive may lie in the folder that is emptied
    assert unpack(target / "x.tar", link).returncode == 0
    assert list(tree_of(target)) == ["f"] and link.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o700


def test_F22_a_link_to_a_folder_stands_for_the_folder(source, tmp_path):
    (source / "f").write_text("x")
    (tmp_path / "link").symlink_to(source)
    archive.pack(tmp_path / "link", tmp_path / "x.tar")
    with tarfile.open(tmp_path / "x.tar") as tar:
        assert [(member.name, member.uid, member.uname) for member in tar] == [("f", 0, "")]


def test_sockets_are_left_out(source, tmp_path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(source / "s"))
        archive.pack(source, tmp_path / "x.tar")
    with tarfile.open(tmp_path / "x.tar") as tar:
        assert tar.getnames() == []


def test_F16_what_changes_while_it_is_packed(source, tmp_path, monkeypatch):
    """A file that is gone is left out, one that grew is cut, one that shrank is named."""
    for name in ("gone", "grown", "shrunk"):
        (source / name).write_text("12345")
    get = tarfile.TarFile.gettarinfo

    def change(self, path, name):
        if name == "gone":
            (source / "gone").unlink()
        member = get(self, path, name)
        if name == "grown":
            (source / "grown").write_text("1234567")
        if name == "shrunk":
            (source / "shrunk").write_text("1")
        return member

    monkeypatch.setattr(tarfile.TarFile, "gettarinfo", change)
    with pytest.raises(OSError, match="shrunk could not be packed: unexpected end"):
        archive.pack(source, tmp_path / "x.tar")
    (source / "shrunk").unlink()
    (source / "grown").write_text("12345")
    archive.pack(source, tmp_path / "x.tar")
    with tarfile.open(tmp_path / "x.tar") as tar:
        assert tar.getnames() == ["grown"] and tar.extractfile("grown").read() == b"12345"


@pytest.mark.parametrize("target", ["/", "relative", "/../", "//", "/a\0b"])
def test_folders_that_are_refused(target):
    with pytest.raises(BadRequest, match="below /"):
        archive.unpack_command("/tmp/x.tar", target)


def test_a_source_that_is_no_folder(source, tmp_path):
    (source / "f").write_text("x")
    for bad in (source / "f", source / "absent"):
        with pytest.raises(NotADirectoryError, match=bad.name):
            archive.pack(bad, tmp_path / "x.tar")


def test_what_cannot_be_unpacked_says_why(source, tmp_path):
    (tmp_path / "file").write_text("x")
    archive.pack(source, tmp_path / "x.tar")
    done = unpack(tmp_path / "x.tar", tmp_path / "file")
    assert done.returncode == 1 and "File exists" in done.stderr


def test_F09_what_comes_from_a_sandbox_cannot_write_elsewhere(tmp_path):
    packed, target = tmp_path / "x.tar", tmp_path / "here"
    with tarfile.open(packed, "w") as tar:
        for name in ("../outside", "/absolute", "fine"):
            tar.addfile(tarfile.TarInfo(name))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "../../outside"
        tar.addfile(link)
    left_out = archive.unpack(packed, target)
    assert sorted(path.name for path in target.iterdir()) == ["absolute", "fine"] and len(left_out) == 2
    assert not (tmp_path / "outside").exists() and not Path("/absolute").exists()
    packed.write_bytes(b"no tar at all")
    with pytest.raises(BadRequest, match="no whole archive"):
        archive.unpack(packed, target)


def test_a_merge_keeps_what_was_there(source, tmp_path):
    target, packed = tmp_path / "target", tmp_path / "x.tar"
    target.mkdir()
    (target / "old").write_text("old")
    (target / "both").write_text("old")
    (source / "both").write_text("new")
    archive.pack(source, packed)
    assert subprocess.run(archive.unpack_command(str(packed), str(target), merge=True)).returncode == 0
    assert {path.name: path.read_text() for path in target.iterdir()} == {"old": "old", "both": "new"}
