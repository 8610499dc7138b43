"""`rock sandbox cp`, and what `run --copy` sends."""

from __future__ import annotations

import contextlib
import posixpath
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import click

from rock.actions import Command
from rock.cli import attended, options
from rock.errors import BadRequest, NotFound
from rock.sdk.progress import OnProgress
from rock.sdk.sandbox.client import Sandbox

WORKSPACE = "workspace"
"""Folder below the sandbox's HOME that gets what is sent without a place."""

_KIND = 'p=$1; [[ $p == "~" || $p == "~/"* ]] && p=$HOME${p:1}; k=-; [[ -d $p ]] && k=d; [[ -f $p ]] && k=f; echo "$k"; cd -- "$p" 2>/dev/null && pwd || echo "$p"'


@dataclass(frozen=True)
class Copy:
    """Something local, and where in the sandbox it goes; None: the workspace."""

    source: Path
    target: str | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the copy that `LOCAL[:PATH]` asks for. Raises UsageError."""
        local, colon, target = text.partition(":")
        if colon and not target.startswith(("/", "~/")):
            raise click.UsageError(f"--copy {text!r}: PATH must begin with / or ~/")
        source = Path(local)
        if not local or not source.exists():
            raise click.UsageError(f"--copy {text!r}: there is no file or folder {local!r} here")
        return cls(source, target or None)


async def send(sandbox: Sandbox, copies: list[Copy], quiet: bool) -> str:
    """Send each copy into a new sandbox; return the folder that the first of them is in. Raises RockError, OSError."""
    home = (await sandbox.execute(Command(command='printf %s "${HOME:-/root}"', timeout=60))).stdout
    first = None
    for copy in copies:
        target = copy.target or f"~/{WORKSPACE}" + ("" if copy.source.is_dir() else f"/{copy.source.resolve().name}")
        target = home + target[1:] if target.startswith("~/") else target
        with progress(copy.source.name or str(copy.source), quiet) as tell:
            if copy.source.is_dir():
                await sandbox.fs.upload_dir(copy.source, target, merge=True, on_progress=tell)
            else:
                await sandbox.upload_by_path(copy.source, target, on_progress=tell)
        first = first or (target if copy.source.is_dir() else posixpath.dirname(target))
    return first or "/"


@click.command()
@click.argument("source")
@click.argument("target")
@options.json_option
def cp(source: str, target: str, as_json: bool) -> None:
    """Copy a file or folder into a running sandbox, or out of one: one of SOURCE and TARGET is ID:PATH.

    Into a folder that is there, it is copied under its own name; SOURCE/. copies a folder's contents. What has the
    same name is replaced.

    rock sandbox cp ./project ID:/work

    rock sandbox cp ID:/work/report.txt .
    """
    if "-" in (source, target):
        raise click.UsageError("- does not stand for a stream here; a file of that name is ./-")
    inside, outside = _remote(source), _remote(target)
    if (inside is None) == (outside is None):
        raise click.UsageError("one of SOURCE and TARGET must be ID:PATH (a local name with a colon: ./NAME)")
    if outside:
        attended.finish(_into(Path(source), source, outside, as_json))
    elif inside:
        attended.finish(_out_of(inside, target, as_json))


def _remote(text: str) -> tuple[str, str] | None:
    """Return id and path of `ID:PATH`, None for a local path."""
    sandbox_id, colon, path = text.partition(":")
    if not colon or not sandbox_id or "/" in sandbox_id or sandbox_id.startswith("."):
        return None
    return sandbox_id, path or "."


async def _into(source: Path, text: str, remote: tuple[str, str], as_json: bool) -> int:
    """Copy from here into the sandbox."""
    sandbox, path = await _attached(remote[0]), remote[1]
    if not source.exists():
        raise BadRequest(f"there is no file or folder {text!r} here")
    kind, place = await _kind(sandbox, path)
    if kind == "d" and not _is_contents(text):
        place = posixpath.join(place, source.resolve().name)
    elif kind == "f" and source.is_dir():
        raise BadRequest(f"{path} in sandbox {remote[0]} is a file; a folder cannot be copied onto it")
    elif kind == "-" and path.endswith("/") and source.is_file():
        place = posixpath.join(place, source.name)
    with progress(text, as_json) as tell:
        if source.is_dir():
            if not place.startswith("/"):
                raise BadRequest(f"a folder goes to an absolute path, is {path!r}")
            await sandbox.fs.upload_dir(source, place, merge=True, on_progress=tell)
        else:
            await sandbox.upload_by_path(source, place, on_progress=tell)
    options.say(as_json, {"source": text, "target": f"{remote[0]}:{place}"})
    return 0


async def _out_of(remote: tuple[str, str], target: str, as_json: bool) -> int:
    """Copy from the sandbox to here."""
    sandbox, path, place = await _attached(remote[0]), remote[1], Path(target)
    kind, whole = await _kind(sandbox, path)
    if kind == "-":
        raise NotFound(f"there is no file or folder {path!r} in sandbox {remote[0]}")
    if place.is_dir() and not (kind == "d" and _is_contents(path)):
        place = place / (posixpath.basename(whole.rstrip("/")) or remote[0])
    elif kind == "f" and target.endswith("/"):
        place = place / posixpath.basename(whole)
    if kind == "d" and place.is_file():
        raise BadRequest(f"{place} is a file; a folder cannot be copied onto it")
    with progress(path, as_json) as tell:
        if kind == "d":
            done = await sandbox.fs.download_dir(whole, place, on_progress=tell)
        else:
            done = await sandbox.fs.download_file(whole, place, on_progress=tell)
    if "; left out: " in done.message and not as_json:
        click.echo(done.message, err=True)
    options.say(as_json, {"source": f"{remote[0]}:{whole}", "target": str(place), "message": done.message})
    return 0


async def _attached(sandbox_id: str) -> Sandbox:
    sandbox = Sandbox(options.config())
    await sandbox.attach(sandbox_id)
    return sandbox


async def _kind(sandbox: Sandbox, path: str) -> tuple[str, str]:
    """Return what a path in the sandbox is, `d`, `f` or `-` for nothing, and its full form where it is a folder."""
    asked = Command(command=["bash", "-c", _KIND, "bash", path], timeout=60)
    kind, _, place = (await sandbox.execute(asked)).stdout.partition("\n")
    return kind, place.removesuffix("\n")


def _is_contents(path: str) -> bool:
    """Return whether a path names a folder's contents rather than itself."""
    return path == "." or path.endswith(("/.", "/./"))


@contextlib.contextmanager
def progress(name: str, quiet: bool) -> Iterator[OnProgress | None]:
    """Keep one line of the terminal that says how much of a copy is done, while the block runs; None where there is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    shown = ""

    def tell(done: int, total: int | None) -> None:
        nonlocal shown
        line = f"{name}: {_size(done)}" + (f" of {_size(total)}, {100 * done // max(total, 1)} %" if total else "")
        if line != shown:
            click.echo(f"\r\033[K{line}", nl=False, err=True)
            shown = line

    try:
        yield tell
    finally:
        if shown:
            click.echo("", err=True)


def _size(count: int) -> str:
    """Return a number of bytes for people."""
    return f"{count / 1024**2:.1f} MB" if count >= 1024**2 else f"{count / 1024:.0f} KB"
