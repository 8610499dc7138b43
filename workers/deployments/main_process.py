"""The main process of a container, straight by the kernel, where the engine is on this machine and we are root.

Ended this way, all processes of a sandbox are gone within some milliseconds; an engine answers when it has taken down the network
and the mounts as well, a tenth of a second later. Reached this way, through pipes of its own, a step is quicker by what two
programs need to copy it, and is not held up when the engine is busy: while Docker starts some containers, what is attached to
another one waits up to a tenth of a second.
"""

from __future__ import annotations

import logging
import os
import re
import select
import signal
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from rock.errors import SandboxGone, Unavailable
from workers.deployments.abstract import ContainerSpec
from workers.deployments.engine import Engine
from workers.deployments.local_streams import FifoStream

log = logging.getLogger(__name__)

LABEL_PIPE = "rock.stdout"
"""Of a container whose main process prints into a pipe of its own."""
PLAIN_RUNTIMES = ("runc", "crun", "youki", "io.containerd.runc")
"""Those whose containers are processes of this machine's kernel; others (gVisor, Kata) have a kernel of their own."""

_PROC = Path("/proc")
_SECONDS = 2.0
"""For the kernel to end all processes; longer only where they are frozen, or wait for a disk that does not answer."""
END_SEEN, _LOOK_FOR_END = 3.0, 0.1
"""Seconds within which an engine sees that a container has ended, and between two looks."""
_UP_SECONDS = 20.0
"""For a main process to be up: bash has been started, and has begun."""
_LOOK_AGAIN = 0.001


class Pipes:
    """Whether main processes of an engine's containers can be reached by their own pipes, and how they are started then."""

    def __init__(self, engine: Engine) -> None:
        # Podman's monitor closes a container's stdin when it likes (see podman.py).
        local = not engine.is_podman and os.geteuid() == 0 and engine.endpoint.engine_pid() is not None
        self._possible = local and str(engine.info().get("DefaultRuntime")).startswith(PLAIN_RUNTIMES)
        self._engine, self._proved = engine, False

    def argv(self, boot_argv: list[str], spec: ContainerSpec) -> list[str] | None:
        """Return an argv that becomes `boot_argv` with a pipe of its own as stdout, which it holds open at both ends.

        None where that is not possible, or the main process would be another's child (`--init`), or of another kernel.
        """
        if not self._possible or spec.init or not (spec.runtime or PLAIN_RUNTIMES[0]).startswith(PLAIN_RUNTIMES):
            return None
        return ["bash", "--noprofile", "--norc", "-pc", 'exec 1<> <(:); wait $!; exec "$@"', "rock-hold", *boot_argv]

    def prove(self, name: str) -> bool:
        """Return False, once, when a container that has just been started is not to be seen from here: then none is.

        A socket of this machine may lead to an engine of another one.
        """
        end = time.monotonic() + END_SEEN
        while self._possible and not self._proved:
            facts = self._engine.inspect(name)
            if facts is None or not facts["State"]["Running"]:
                return True  # it has ended, and proves nothing
            self._proved = is_alive(facts)
            if self._proved:
                return True
            if time.monotonic() > end:
                log.warning(
                    "the engine's containers are not processes of this machine: the engine is asked to reach them"
                )
                self._possible = False
                return False
            time.sleep(_LOOK_FOR_END)  # maybe it has ended, and the engine has not seen that yet
        return True

    def settle(self, name: str) -> None:
        """Return when the engine has seen the end of a container, should it have ended (see `end`)."""
        facts = self._engine.inspect(name) if self._proved else None
        if facts is not None and facts["State"]["Running"] and not is_alive(facts):
            self._engine.kill(name)  # answered when it has


def reach(facts: Mapping[str, Any], sandbox_id: str) -> FifoStream:
    """Open the pipes of a main process that was started as `Pipes.argv` says.

    Params:
        facts: what the engine knows of the container.
    Errors: SandboxGone when it does not run; Unavailable when it cannot be seen.
    """
    what = f"cannot attach to sandbox {sandbox_id}"
    try:
        # A descriptor of the folder: it is that process's, and no other's that gets its number afterwards.
        folder = os.open(_PROC / str(facts["State"].get("Pid") or 0), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise SandboxGone(f"{what}: its main process is not running") from None
    except OSError as error:
        raise Unavailable(f"{what}: {error.strerror}") from error
    try:
        if not _is_init_of(folder, facts["Id"]):
            raise SandboxGone(f"{what}: its main process is not running, or not a process of this machine")
        _await_pipe(folder, _age(facts), what)
        # Nobody outside the container holds them open at the process's side: they end with it.
        return FifoStream(Path("fd/0"), Path("fd/1"), sandbox_id, lambda: True, folder=folder)
    except PermissionError as error:
        raise Unavailable(
            f"{what}: its main process was started by a worker that was root, as this one must be"
        ) from error
    except OSError as error:
        raise SandboxGone(f"{what}: its main process is not running: {error.strerror}") from error
    finally:
        os.close(folder)


def _age(facts: Mapping[str, Any]) -> float:
    """Return for how many seconds a container has been running."""
    return time.time() - datetime.fromisoformat(facts["State"]["StartedAt"]).timestamp()


def _await_pipe(folder: int, age: float, what: str) -> None:
    """Return when a main process has its own pipe, some milliseconds after its start. Errors: SandboxGone.

    One that is older and has none any more was tampered with from inside, and is not waited for.
    """
    end = time.monotonic() + _UP_SECONDS - age
    while True:
        flags = re.search(r"^flags:\s*([0-7]+)", _read(folder, "fdinfo/1"), re.MULTILINE)
        # Before, it is the engine's, which is for writing only.
        if flags and int(flags[1], 8) & os.O_ACCMODE == os.O_RDWR:
            return
        if time.monotonic() >= end:
            raise SandboxGone(f"{what}: its main process did not come up")
        time.sleep(_LOOK_AGAIN)


def is_alive(facts: Mapping[str, Any]) -> bool:
    """Return whether a container's main process is there, and has not ended."""
    held = _hold(facts)
    if held is None:
        return False
    try:
        return not _has_ended(held, 0)
    finally:
        os.close(held)


def end(facts: Mapping[str, Any] | None) -> bool:
    """Kill a container's main process, and with it everything in its process namespace; return when none of them is left.

    Params:
        facts: what the engine knows of the container, None if nothing.
    Returns:
        False where that cannot be done, and then the engine has to: another machine, another process namespace, no permission,
        a container that is no namespace of its own (a virtual machine's process, `--pid=host`), or one that is frozen (a
        commit is being made: its processes die when they are thawed, which an engine does with its kill).
    """
    held = None if facts is None or facts["State"].get("Paused") else _hold(facts)
    if held is None:
        return False
    try:
        signal.pidfd_send_signal(held, signal.SIGKILL)
        return _has_ended(held, _SECONDS)
    except OSError:
        return False
    finally:
        os.close(held)


def _has_ended(held: int, seconds: float) -> bool:
    """Return whether the process of a descriptor has ended, or does so in time."""
    ended = select.poll()
    ended.register(held, select.POLLIN)
    return bool(ended.poll(seconds * 1000))


def _hold(facts: Mapping[str, Any]) -> int | None:
    """Return a descriptor of a container's main process, None if it is not what the engine says, or not to be seen from here."""
    pid = int(facts["State"].get("Pid") or 0)
    if not pid:
        return None
    try:
        held = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        folder = os.open(_PROC / str(pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _is_init_of(folder, facts["Id"]):
                # Read while the descriptor was held: had the number become another's before, the container's id would not fit.
                return held
        finally:
            os.close(folder)
    except OSError:
        pass  # it has ended
    os.close(held)
    return None


def _is_init_of(folder: int, container_id: str) -> bool:
    """Return whether a process is the first of a namespace that lies within ours, in the control group of the container.

    Params:
        folder: descriptor of its folder in /proc.
    Errors: OSError when it has ended.
    """
    lines = [line.split()[1:] for line in _read(folder, "status").splitlines() if line.startswith("NSpid:")]
    inner = lines[0] if lines else []
    return len(inner) > 1 and inner[-1] == "1" and container_id in _read(folder, "cgroup")


def _read(folder: int, name: str) -> str:
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)) as file:
        return file.read()
