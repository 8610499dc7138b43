"""Process trees of this machine, read from /proc: who belongs to a sandbox of the `local` deployment, and ending them all.

The main process is a subreaper, so whoever loses its parent becomes its child instead of init's: a daemon cannot leave the
tree. Only if the main process dies first do children scatter; those are found by the variable they inherited.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_STOP_WITHIN = 10.0


@dataclass(frozen=True)
class Process:
    """One line of /proc/<pid>/stat: `start` in clock ticks after boot, `cpu` in clock ticks, `memory` in pages."""

    pid: int
    state: str
    parent: int
    session: int
    cpu: int
    start: int
    memory: int


def read(pid: int) -> Process | None:
    """Return a process, None if there is none of that id."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold anything, so count from its end.
    fields = text[text.rindex(")") + 2 :].split()
    number = [int(fields[at]) for at in (1, 3, 11, 12, 19, 21)]
    return Process(pid, fields[0], number[0], number[1], number[2] + number[3], number[4], number[5])


def alive(pid: int, start: int) -> bool:
    """True if that very process lives: an id is used again, but not with the same start time."""
    process = read(pid)
    return process is not None and process.start == start and process.state not in "ZX"


def tree(root: int, marker: bytes, strangers: set[tuple[int, int]] | None = None) -> list[Process]:
    """Return all living processes of a sandbox.

    Params:
        root: id of the main process (0: it is gone).
        marker: an entry of the environment, `NAME=value`, that its processes inherit.
        strangers: id and start of those that were looked into before and do not belong; added to. Looking costs as much as all the rest.
    """
    strangers = set() if strangers is None else strangers
    everyone = {process.pid: process for process in _everyone()}
    members = {root} if root in everyone else set()
    grown = True
    while grown:
        found = {one.pid for one in everyone.values() if one.parent in members or (root and one.session == root)}
        grown = not found <= members
        members |= found
    unknown = [one for pid, one in everyone.items() if pid not in members and (pid, one.start) not in strangers]
    for one in unknown:
        variables = _environment(one.pid)
        if marker in variables:
            members.add(one.pid)
        elif variables != [b""]:  # empty for a moment while a program takes another's place
            strangers.add((one.pid, one.start))
    return [everyone[pid] for pid in members if everyone[pid].state not in "ZX"]


def kill_tree(root: int, marker: bytes) -> bool:
    """End all processes of a sandbox; return False if some still live after ten seconds (stuck in the kernel).

    All are stopped before any is killed: a tree that forks faster than it is killed would get away otherwise. The main
    process goes last, since it holds the tree together.
    """
    end = time.monotonic() + _STOP_WITHIN
    strangers: set[tuple[int, int]] = set()
    while time.monotonic() < end:
        stopped: set[int] = set()
        while new := {process.pid for process in tree(root, marker, strangers)} - stopped:
            _signal(new, signal.SIGSTOP)
            stopped |= new
        if not stopped:
            return True
        _signal(stopped - {root} or stopped, signal.SIGKILL)
        time.sleep(0.002)
    return False


def _everyone() -> Iterator[Process]:
    for name in os.listdir(_PROC):
        if name.isdigit() and (process := read(int(name))) is not None:
            yield process


def _environment(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []  # gone, or another user's


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # gone meanwhile
            os.kill(pid, number)
