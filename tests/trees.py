"""A folder with all that uploads lose elsewhere."""

import os
from pathlib import Path

LONG = "/".join(["a-rather-long-name-of-a-folder"] * 6)


def make_tree(folder: Path, files: int = 1200) -> None:
    """Fill an empty folder: dotfiles, an empty folder, modes, links, long and strange names, and many small files."""
    (folder / ".git" / "objects").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / "empty").mkdir(mode=0o700)
    (folder / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "secret").write_bytes(b"\0\xff")
    (folder / "secret").chmod(0o600)
    (folder / "link").symlink_to("run.sh")
    (folder / "dangling").symlink_to("/nowhere/at all")
    (folder / "to-empty").symlink_to("empty")
    os.link(folder / "run.sh", folder / "same.sh")
    deep = folder / LONG
    deep.mkdir(parents=True)
    (deep / "fünf 'quotes'\n").write_text("x")
    many = folder / "many"
    many.mkdir()
    for number in range(files):
        (many / f"{number}.txt").write_text(str(number))
