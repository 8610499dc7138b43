"""Runs a set of processes: starts them in order, restarts one that dies, stops them in reverse.

Single-threaded: it sleeps in `sigtimedwait` and wakes for a child's end, a request to stop, or a restart that is due.
"""

import contextlib
import ctypes
import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

from app.processes import Process
from app.running import Pid, start_time
from rock import settings

log = logging.getLogger(__name__)

_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_WATCHED = (*_STOPS, signal.SIGCHLD)
_PR_SET_PDEATHSIG = 1
_FIRST_DELAY, _LONGEST_DELAY = 0.05, 30.0
# A process that lived this long, or was killed from outside, did not fail by itself: its next restart is quick again.
_HEALTHY_SECONDS = 10.0


class StartFailed(Exception):
    """A process ended before the service was up."""


@dataclass
class _Child:
    """A process, and what became of it so far."""

    process: Process
    popen: "subprocess.Popen[bytes] | None" = None
    started: float = 0.0
    delay: float = _FIRST_DELAY
    restart_at: float | None = None
    restarts: int = 0


class Supervisor:
    """Owns the children of this process."""

    def __init__(self, processes: Sequence[Process], output: IO[bytes] | None = None) -> None:
        """
        Params:
            output: where the children write; None: where this process does.
        """
        self._children = [_Child(process) for process in processes]
        self._output = output
        self._stopping = False
        self._libc = ctypes.CDLL(None, use_errno=True)
        # From here on signals wait for us to take them, so none is lost between two looks.
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)

    def start(self, name: str) -> None:
        """Start one process of the set."""
        self._spawn(next(child for child in self._children if child.process.name == name))

    def pids(self) -> tuple[Pid, ...]:
        """Return the living children."""
        living = []
        for child in self._children:
            started = start_time(child.popen.pid) if child.popen else None
            if child.popen and started is not None:
                living.append(Pid(child.process.name, child.popen.pid, started, child.restarts))
        return tuple(living)

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Return True once `ready()`, False when told to stop first.

        Raises:
            StartFailed: a child ended, or time is up.
        """
        deadline = time.monotonic() + seconds
        while not ready():
            if self._take_signal(0.05):
                return False
            for child in self._children:
                if child.popen and _wait_end(child.popen, 0):
                    message = f"{child.process.name} {_how(_collect(child.popen))} while starting"
                    log.error(message)  # Here, so that what it wrote itself stands right before.
                    raise StartFailed(message)
            if time.monotonic() > deadline:
                raise StartFailed(f"the service did not come up within {seconds:.0f} s")
        return True

    def watch(self, changed: Callable[[], object]) -> None:
        """Keep the set running until told to stop; `changed` is called after each restart."""
        while not self._stopping:
            self._note_ends()
            if self._restart_due():
                changed()
            due = [child.restart_at for child in self._children if child.restart_at is not None]
            self._take_signal(max(0.0, min(due) - time.monotonic()) if due else None)

    def stop(self) -> None:
        """End all children, last started first; one that does not listen is killed with all it started."""
        self._stopping = True
        for child in reversed(self._children):
            if child.popen is None or child.popen.returncode is not None:
                continue
            log.info("stopping %s", child.process.name)
            child.popen.send_signal(signal.SIGTERM)
            if not _wait_end(child.popen, child.process.stop_seconds):
                log.warning("%s did not end within %.0f s: killing it", child.process.name, child.process.stop_seconds)
            _collect(child.popen)

    def _spawn(self, child: _Child) -> None:
        """Start a child in a group of its own, told by the kernel to end if we die."""
        parent = os.getpid()

        def in_child() -> None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # We died before the kernel was told.
                os._exit(1)

        child.popen = subprocess.Popen(
            child.process.argv,
            env={**settings.with_prefix(""), **child.process.env},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            start_new_session=True,
            preexec_fn=in_child,
        )
        child.started = time.monotonic()
        child.restart_at = None
        log.info("started %s (pid %d)", child.process.name, child.popen.pid)

    def _take_signal(self, seconds: float | None) -> bool:
        """Wait for a signal at most that long; return True if we are to stop."""
        if seconds is None:
            info: signal.struct_siginfo | None = signal.sigwaitinfo(_WATCHED)
        else:
            info = signal.sigtimedwait(_WATCHED, seconds)
        if info is not None and info.si_signo in _STOPS:
            log.info("told to stop (%s)", signal.Signals(info.si_signo).name)
            self._stopping = True
        return self._stopping

    def _note_ends(self) -> None:
        """Plan a restart for each child that has ended, later each time it ends young."""
        for child in self._children:
            if child.popen is None or child.restart_at is not None or not _wait_end(child.popen, 0):
                continue
            code = _collect(child.popen)
            if code < 0 or time.monotonic() - child.started > _HEALTHY_SECONDS:
                child.delay = _FIRST_DELAY
            log.error("%s %s; starting it again in %.1f s", child.process.name, _how(code), child.delay)
            child.restart_at = time.monotonic() + child.delay
            child.delay = min(child.delay * 2, _LONGEST_DELAY)

    def _restart_due(self) -> bool:
        """Start the children whose time has come; return whether there was any."""
        due = [child for child in self._children if child.restart_at and child.restart_at <= time.monotonic()]
        for child in due:
            child.restarts += 1
            self._spawn(child)
        return bool(due)


def _wait_end(popen: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Return whether the child has ended, waiting at most that long; it is not collected, so its pid stays ours."""
    if popen.returncode is not None:
        return True
    handle = os.pidfd_open(popen.pid)
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def _collect(popen: "subprocess.Popen[bytes]") -> int:
    """Kill what is left of the child's process group, collect the child, return its exit code.

    The group goes first: once the child is collected its number may belong to somebody else.
    """
    if popen.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(popen.pid, signal.SIGKILL)
    return popen.wait()


def _how(code: int) -> str:
    """Say how a process ended."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
