"""What runs under a data folder: the record that the supervisor keeps, and how others read it safely.

A process is known by its pid together with its start time, so that a pid that was given to another program after a
crash or a reboot is never taken for ours.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class AlreadyRunning(Exception):
    """The data folder is in use by a live supervisor."""


@dataclass(frozen=True)
class Pid:
    """A process: its number, and when it started in clock ticks since boot."""

    name: str
    pid: int
    started: int
    restarts: int = 0

    def is_alive(self) -> bool:
        """Return whether this very process still runs (a zombie does not)."""
        return start_time(self.pid) == self.started


@dataclass(frozen=True)
class Running:
    """The record of a running service."""

    supervisor: Pid
    role: str
    env: str
    url: str
    node: str
    """This machine's node id; empty for role proxy."""
    phase: str
    """starting, running or stopping."""
    processes: tuple[Pid, ...] = ()


def start_time(pid: int) -> int | None:
    """Return when process `pid` started, or None if it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name is in parentheses and may hold anything; fields are counted from behind it.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def environment(process: Pid) -> dict[str, str]:
    """Return the variables that a process was started with; none if it is gone. Errors: PermissionError (another user's)."""
    try:
        raw = Path(f"/proc/{process.pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    entries = (os.fsdecode(entry).partition("=") for entry in raw.split(b"\0") if entry)
    return {name: text for name, _, text in entries} if process.is_alive() else {}


def myself(name: str) -> Pid:
    """Return this process under the given name."""
    started = start_time(os.getpid())
    assert started is not None  # A process that runs this is not gone.
    return Pid(name, os.getpid(), started)


def _path(data_dir: str) -> Path:
    return Path(data_dir) / "running.json"


def write(data_dir: str, running: Running) -> None:
    """Keep the record, atomically; readable by its owner only."""
    path = _path(data_dir)
    fresh = path.with_suffix(".new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(dataclasses.asdict(running), file, indent=1)
    fresh.replace(path)


def read(data_dir: str) -> Running | None:
    """Return the record, or None if there is none or it cannot be understood (another version wrote it)."""
    try:
        values: dict[str, Any] = json.loads(_path(data_dir).read_text(encoding="utf-8"))
        supervisor = Pid(**values.pop("supervisor"))
        processes = tuple(Pid(**item) for item in values.pop("processes"))
        return Running(supervisor=supervisor, processes=processes, **values)
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def forget(data_dir: str) -> None:
    """Remove the record."""
    _path(data_dir).unlink(missing_ok=True)


@contextlib.contextmanager
def hold(data_dir: str) -> Iterator[None]:
    """Hold the data folder for as long as the block runs; the kernel lets go of it if we die.

    Raises:
        AlreadyRunning: another supervisor holds it.
    """
    handle = take(data_dir)
    try:
        yield
    finally:
        os.close(handle)


def take(data_dir: str) -> int:
    """Take the data folder until the returned descriptor is closed, here and in every process that inherits it.

    Raises:
        AlreadyRunning: somebody else has it.
    """
    Path(data_dir).mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(Path(data_dir) / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise AlreadyRunning(data_dir) from error
    return handle


def end(processes: tuple[Pid, ...], seconds: float) -> None:
    """End these processes: SIGTERM, then SIGKILL for those that live on after `seconds`. Others are never touched."""
    for process in processes:
        tell(process, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    for process in processes:
        if not wait_gone(process, max(0.0, deadline - time.monotonic())):
            tell(process, signal.SIGKILL)
            wait_gone(process, 5.0)


def tell(process: Pid, number: signal.Signals) -> None:
    """Send a signal if the process is still the one we mean."""
    if process.is_alive():
        with contextlib.suppress(ProcessLookupError):  # It ended between the two lines, which is what we want.
            os.kill(process.pid, number)


def wait_gone(process: Pid, seconds: float) -> bool:
    """Return whether the process has ended, waiting up to `seconds` for it."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        if not process.is_alive():
            return True
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)
