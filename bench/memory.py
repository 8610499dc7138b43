"""What sandboxes and servers cost in host memory, seen from outside: proportional set sizes of whole process trees."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import processes
from bench.client import Server

CGROUPS = Path("/sys/fs/cgroup")
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Container:
    """What an engine knows of a sandbox."""

    id: str
    address: str = ""


@dataclass
class Footprint:
    """The processes of one sandbox."""

    inside: set[int] = field(default_factory=set)
    """Those that run in it."""
    outside: set[int] = field(default_factory=set)
    """Those that run for it alone: the engine's shim, proxies of its ports, attached clients."""


class Engine:
    """The container engine of this machine, if there is one; only asked which container a sandbox is."""

    missing = ""
    """Why there is none."""

    def __init__(self) -> None:
        self._client: Any = None
        self.version = ""
        """Of the engine; empty without one."""
        try:
            # Imported here: a machine that measures a server elsewhere needs no engine library.
            import docker
        except ImportError as error:
            self.missing = str(error)
            return
        try:
            self._client = docker.from_env(timeout=30)
            self.version = str(self._client.version().get("Version", ""))
        except docker.errors.DockerException as error:
            self._client, self.missing = None, str(error)

    def container(self, sandbox_id: str) -> Container | None:
        """Return the container that carries the label rock.sandbox=<id> or is named so; None when there is none."""
        if self._client is None:
            return None
        for filters in ({"label": f"rock.sandbox={sandbox_id}"}, {"name": f"^/?{re.escape(sandbox_id)}$"}):
            found = self._client.containers.list(filters=filters)
            if found:
                network = found[0].attrs.get("NetworkSettings", {})
                first: dict[str, str] = next(iter(network.get("Networks", {}).values()), {})
                return Container(found[0].id, network.get("IPAddress") or first.get("IPAddress") or "")
        return None

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()


def footprint(table: processes.Table, sandbox_id: str, container: Container | None) -> Footprint:
    """Return the processes of a sandbox: a container's, or those marked by ROCK_SANDBOX_ID in their environment."""
    found = Footprint()
    mark = f"ROCK_SANDBOX_ID={sandbox_id}\0"
    names = [sandbox_id, *([container.id] if container else [])]
    address = f" {container.address} " if container and container.address else ""
    for process in table.values():
        marked = process.environ.startswith(mark) or f"\0{mark}" in process.environ
        if marked or (container and container.id in process.cgroup):
            found.inside.add(process.pid)
        elif any(name in process.command for name in names) or (address and address in f"{process.command} "):
            found.outside.add(process.pid)
    return found


def server_processes(table: processes.Table, server: Server, sandboxes: list[str]) -> set[int]:
    """Return the server's own processes when it runs on this machine, else none.

    They are the tree of the process that listens on its port, from the topmost one that is no shell, and what
    `server.match` names; without sandboxes that run below it.
    """
    address = server.address
    if address.host not in LOOPBACK:
        return set()
    found: set[int] = set()
    pid = processes.listener(address.port)
    if pid is not None and pid in table:
        found = processes.descendants(table, processes.service_of(table, pid, os.getpid()))
    if server.match:
        found |= {one.pid for one in table.values() if re.search(server.match, one.command)}
    for sandbox_id in sandboxes:
        found -= footprint(table, sandbox_id, None).inside
    return found - {os.getpid()}


def kernel_share(process: processes.Process) -> int | None:
    """Return the bytes that the kernel holds for a container beside its processes: kernel memory and tmpfs files.

    None when the process is in no memory cgroup of its own that can be read.
    """
    for line in process.cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        if path == "/" or controllers not in ("memory", ""):
            continue
        folder = CGROUPS / controllers / path.lstrip("/")
        try:
            values = dict(row.split() for row in (folder / "memory.stat").read_text().splitlines())
            if controllers == "memory":  # version 1 counts kernel memory in a file of its own
                kernel = int((folder / "memory.kmem.usage_in_bytes").read_text())
                return kernel + int(values.get("total_shmem", values.get("shmem", 0)))
            return int(values.get("kernel", 0)) + int(values.get("shmem", 0))
        except FileNotFoundError:
            continue
    return None


def available() -> int:
    """Return the machine's available memory in bytes."""
    text = Path("/proc/meminfo").read_text()
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0
