"""The main process of a container, straight by the kernel, where the engine is on this machine and we are root.

Ended this way, all processes of a sandbox are gone within some milliseconds; an engine answers when it has taken down the network
and the mounts as well, a tenth of a second later. Reached this way, through pipes of its own, a step is quicker by what two
programs need to copy it, and is not held up when the engine is busy: Docker starts eight containers in a second, and what is
attached to another one waits up to a tenth of a second meanwhile.
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rock.errors import SandboxGone
from workers.deployments.abstract import ContainerSpec
from workers.deployments.engine import Engine
from workers.deployments.local_streams import FifoStream

LABEL_PIPE = "rock.stdout"
"""Of a container whose main process prints into a pipe of its own."""
PLAIN_RUNTIMES = ("runc", "crun", "youki", "io.containerd.runc")
"""Those whose containers are processes of this machine's kernel; others (gVisor, Kata) have a kernel of their own."""

_PROC = Path("/proc")
_SECONDS = 2.0
"""For the kernel to end all processes; longer only where they are frozen, or wait for a disk that does not answer."""
_UP_SECONDS = 20.0
"""For a main process to be up: bash has been started, and has begun."""
_LOOK_AGAIN = 0.001


def may_reach(engine: Engine) -> bool:
    """Return whether main processes of an engine's containers can be reached by their pipes."""
    return (
        os.geteuid() == 0
        and engine.endpoint.engine_pid() is not None
        and str(engine.info().get("DefaultRuntime")).startswith(PLAIN_RUNTIMES)
    )


def own_pipe(boot_argv: list[str], spec: ContainerSpec) -> list[str] | None:
    """Return an argv that becomes `boot_argv` with a pipe of its own as stdout, which it holds open at both ends.

    None where the main process would be another's child (`--init`), or of another kernel.
    """
    if spec.init or not (spec.runtime or PLAIN_RUNTIMES[0]).startswith(PLAIN_RUNTIMES):
        return None
    return ["bash", "--noprofile", "--norc", "-pc", 'exec 1<> <(:); wait $!; exec "$@"', "rock-hold", *boot_argv]


def reach(facts: Mapping[str, Any], sandbox_id: str) -> FifoStream:
    """Open the pipes of a main process that was started as `own_pipe` says; what waits in them from before is dropped.

    Params:
        facts: what the engine knows of the container.
    Errors: SandboxGone when it does not run.
    """
    held = _hold(facts)
    if held is None:
        raise SandboxGone(
            f"cannot attach to sandbox {sandbox_id}: its main process is not running, or not within reach"
        )
    try:
        folder = _PROC / str(facts["State"]["Pid"])
        _await_pipe(folder, sandbox_id)
        # Nobody outside the container holds them open at the process's side: they end with it.
        return FifoStream(folder / "fd" / "0", folder / "fd" / "1", sandbox_id, lambda: True)
    finally:
        os.close(held)


def _await_pipe(process: Path, sandbox_id: str) -> None:
    """Return when a main process has its own pipe, some milliseconds after its start. Errors: SandboxGone."""
    end = time.monotonic() + _UP_SECONDS
    while time.monotonic() < end:
        try:
            flags = re.search(r"^flags:\s*([0-7]+)", (process / "fdinfo" / "1").read_text(), re.MULTILINE)
        except OSError:
            break
        # Before, it is the engine's, which is for writing only.
        if flags and int(flags[1], 8) & os.O_ACCMODE == os.O_RDWR:
            return
        time.sleep(_LOOK_AGAIN)
    raise SandboxGone(f"cannot attach to sandbox {sandbox_id}: its main process did not come up")


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
        ended = select.poll()
        ended.register(held, select.POLLIN)
        return bool(ended.poll(_SECONDS * 1000))
    except OSError:
        return False
    finally:
        os.close(held)


def _hold(facts: Mapping[str, Any]) -> int | None:
    """Return a descriptor of a container's main process, None if it is not what the engine says, or not to be seen from here."""
    pid = int(facts["State"].get("Pid") or 0)
    if not pid:
        return None
    try:
        held = os.pidfd_open(pid)  # from here on the number cannot become somebody else's
    except OSError:
        return None
    try:
        if _is_init_of(pid, facts["Id"]):
            return held
    except OSError:
        pass  # it has ended
    os.close(held)
    return None


def _is_init_of(pid: int, container_id: str) -> bool:
    """Return whether a process is the first of a namespace that lies within ours, in the control group of the container."""
    folder = _PROC / str(pid)
    numbers = [line.split()[1:] for line in (folder / "status").read_text().splitlines() if line.startswith("NSpid:")]
    inner = numbers[0] if numbers else []
    return len(inner) > 1 and inner[-1] == "1" and container_id in (folder / "cgroup").read_text()
