"""What an engine tells of a container, read into our words. Pure, but for looks at the disk under a container."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping
from typing import Any

from workers.deployments.abstract import ContainerEvent, ContainerState, Usage
from workers.deployments.container_body import LABEL_SANDBOX

MEASURE_SECONDS = 600.0
"""For counting millions of files."""


def state_of(facts: Mapping[str, Any] | None) -> ContainerState:
    """Return the state in the answer of an inspect (None: there is no such container)."""
    if facts is None:
        return ContainerState(exists=False)
    state, network = facts["State"], facts.get("NetworkSettings") or {}
    addresses = [network.get("IPAddress"), *(one.get("IPAddress") for one in (network.get("Networks") or {}).values())]
    started = str(state.get("StartedAt") or "")
    return ContainerState(
        exists=True,
        running=bool(state["Running"]),
        exit_code=None if state["Running"] or state.get("Status") == "created" else int(state["ExitCode"]),
        oom_killed=bool(state.get("OOMKilled")),
        error=str(state.get("Error") or ""),
        ip=next(filter(None, addresses), ""),
        port_mapping={
            int(port.partition("/")[0]): int(bindings[0]["HostPort"])
            for port, bindings in (network.get("Ports") or {}).items()
            if bindings
        },
        started_at="" if started.startswith("0001-") else started,
    )


def measure(stats: Mapping[str, Any]) -> dict[str, float]:
    """Return the counters of one stats answer: `cpu` nanoseconds, `mem` bytes, `net` bytes."""
    memory = stats.get("memory_stats") or {}
    details = memory.get("stats") or {}
    # The page cache that the kernel would drop first does not count as used: `total_inactive_file` on cgroup v1.
    cache = details.get("total_inactive_file", details.get("inactive_file", 0))
    networks = (stats.get("networks") or {}).values()
    return {
        "cpu": float(stats["cpu_stats"]["cpu_usage"]["total_usage"]),
        "mem": float(max(0, memory.get("usage", 0) - cache)),
        "net": float(sum(one["rx_bytes"] + one["tx_bytes"] for one in networks)),
    }


def usage_between(
    before: Mapping[str, float], after: Mapping[str, float], facts: Mapping[str, Any], *, local: bool
) -> Usage:
    """Return the consumption between two samples, in percent of the container's own limits.

    Params:
        before, after: `measure`, with `time` in seconds.
        facts: the container's inspect answer.
        local: the engine's paths mean something on this machine.
    """
    limits = facts["HostConfig"]
    cpus = (limits.get("NanoCpus") or 0) / 1e9 or _quota(limits) or os.cpu_count() or 1
    seconds = max(after["time"] - before["time"], 1e-6)
    memory = limits.get("Memory") or 0
    return Usage(
        cpu=round(100 * max(0.0, after["cpu"] - before["cpu"]) / 1e9 / seconds / cpus, 2),
        mem=round(100 * after["mem"] / memory, 2) if memory else 0.0,
        disk=_disk(facts) if local else None,
        net=int(after["net"]),
    )


def event_of(raw: Mapping[str, Any], out_of_memory: set[str]) -> tuple[float, ContainerEvent]:
    """Return (epoch seconds, event) of an engine's event.

    Params:
        out_of_memory: ids that ran out of memory since they started; kept up to date here, because the engine tells the
            reason and the death apart.
    """
    attributes = raw["Actor"]["Attributes"]
    sandbox_id, action = attributes[LABEL_SANDBOX], "destroy" if raw["Action"] == "remove" else raw["Action"]
    if action == "oom":
        out_of_memory.add(sandbox_id)
    code = attributes.get("exitCode", attributes.get("containerExitCode"))
    event = ContainerEvent(sandbox_id, action, None if code is None else int(code), sandbox_id in out_of_memory)
    if action == "destroy":
        out_of_memory.discard(sandbox_id)
    return int(raw["timeNano"]) / 1e9, event


def layer_bytes(facts: Mapping[str, Any]) -> int | None:
    """Return what the container's own layer takes of this machine's disk (bytes), None where it is not a folder that we can look at."""
    folder = ((facts.get("GraphDriver") or {}).get("Data") or {}).get("UpperDir")
    if not folder or not os.access(folder, os.R_OK | os.X_OK):
        return None
    # A process of its own, since millions of files would keep Python's threads waiting. It complains of files that have just gone.
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(["du", "-skx", "--", folder], capture_output=True, timeout=MEASURE_SECONDS, check=False)
        kilobytes = done.stdout.split(maxsplit=1)[:1]
        if kilobytes and kilobytes[0].isdigit():
            return int(kilobytes[0]) * 1024
    return None


def _quota(limits: Mapping[str, Any]) -> float:
    """Podman tells the CPU limit as quota and period."""
    period = limits.get("CpuPeriod") or 0
    return (limits.get("CpuQuota") or 0) / period if period else 0.0


def _disk(facts: Mapping[str, Any]) -> float | None:
    """Percent used of the file system that holds the container's files; with a disk limit, of that limit."""
    folder = ((facts.get("GraphDriver") or {}).get("Data") or {}).get("MergedDir")
    with contextlib.suppress(OSError):  # not ours to enter, or gone this moment: unknown
        if folder:
            disk = os.statvfs(folder)
            used = disk.f_blocks - disk.f_bfree
            return round(100 * used / max(1, used + disk.f_bavail), 2)
    return None
