"""The processes of this machine as /proc shows them: who is whose child, and how much memory each one costs."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
SHELLS = (
    "bash",
    "sh",
    "dash",
    "zsh",
    "fish",
    "ksh",
    "tmux",
    "screen",
    "sshd",
    "login",
    "make",
    "systemd",
    "init",
    "su",
    "sudo",
)
"""What starts a server without being part of it."""
LISTEN = "0A"


@dataclass(frozen=True)
class Process:
    """One process."""

    pid: int
    parent: int
    name: str
    command: str
    """Arguments, separated by blanks."""
    cgroup: str
    environ: str
    """Variables, each ending in a NUL; empty when this user may not see them."""


Table = Mapping[int, Process]


def table() -> dict[int, Process]:
    """Return the processes that run now, by pid."""
    found = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            process = _read(int(folder.name))
            if process is not None:
                found[process.pid] = process
    return found


def _read(pid: int) -> Process | None:
    """Return a process; None when it has ended meanwhile."""
    folder = PROC / str(pid)
    try:
        name, parent = parse_stat((folder / "stat").read_text("utf-8", "replace"))
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        cgroup = (folder / "cgroup").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        environ = (folder / "environ").read_text("utf-8", "replace")
    except (PermissionError, FileNotFoundError, ProcessLookupError):
        environ = ""
    return Process(pid, parent, name, command, cgroup, environ)


def parse_stat(text: str) -> tuple[str, int]:
    """Return name and parent from /proc/<pid>/stat; the name may hold blanks and brackets."""
    begin, end = text.index("("), text.rindex(")")
    return text[begin + 1 : end], int(text[end + 1 :].split()[1])


def pss(pids: Iterable[int], *, skip_hidden: bool = False) -> int | None:
    """Return the proportional set size of processes in bytes; None when one of them may not be read.

    Pages that several processes share are split between them, so that sums are right.

    Params:
        skip_hidden: count those that may not be read as nothing instead.
    """
    total = 0
    for pid in pids:
        try:
            total += parse_rollup((PROC / str(pid) / "smaps_rollup").read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except PermissionError:
            if not skip_hidden:
                return None
    return total


def parse_rollup(text: str) -> int:
    """Return the bytes in the Pss line of smaps_rollup; 0 for a kernel thread, which has none."""
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0


def listener(port: int) -> int | None:
    """Return a process that listens on a TCP port of this machine; None when there is none that this user can see."""
    inodes: set[str] = set()
    for name in ("tcp", "tcp6"):
        inodes |= parse_listeners((PROC / "net" / name).read_text(), port)
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for folder in PROC.iterdir():
        if folder.name.isdigit() and wanted & _links(folder / "fd"):
            return int(folder.name)
    return None


def _links(folder: Path) -> set[str]:
    """Return what a process's descriptors point to; nothing when that may not be read."""
    try:
        return {str(link.readlink()) for link in folder.iterdir()}
    except (PermissionError, FileNotFoundError, ProcessLookupError):
        return set()


def parse_listeners(text: str, port: int) -> set[str]:
    """Return the inodes of the sockets in /proc/net/tcp that listen on `port`."""
    rows = [line.split() for line in text.splitlines()[1:]]
    return {row[9] for row in rows if row[3] == LISTEN and int(row[1].rpartition(":")[2], 16) == port}


def service_of(processes: Table, pid: int, ours: int) -> int:
    """Return the topmost process of the service that `pid` belongs to.

    Params:
        ours: this program's own pid; what it descends from belongs to whoever started both.
    """
    above = set(ancestors(processes, ours))
    top = pid
    for parent in ancestors(processes, pid):
        if parent <= 1 or parent in above or processes[parent].name in SHELLS:
            break
        top = parent
    return top


def ancestors(processes: Table, pid: int) -> list[int]:
    """Return the parents of a process, nearest first."""
    found: list[int] = []
    while pid in processes and processes[pid].parent in processes and processes[pid].parent not in found:
        pid = processes[pid].parent
        found.append(pid)
    return found


def descendants(processes: Table, top: int) -> set[int]:
    """Return a process and all below it."""
    found = {top}
    while more := {one.pid for one in processes.values() if one.parent in found} - found:
        found |= more
    return found
