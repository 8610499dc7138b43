"""Facts of the machine that belong beside every figure."""

import platform
import re
from pathlib import Path
from typing import Any


def facts() -> dict[str, Any]:
    """Return hardware, system and load; no name or path of the machine."""
    return {
        "cpus": _cpus(),
        "cpu": _match(r"^model name\s*:\s*(.+)$", "/proc/cpuinfo"),
        "memory_gb": round(int(_match(r"^MemTotal:\s+(\d+)", "/proc/meminfo") or 0) / 1024**2, 1),
        "kernel": platform.release(),
        "system": _match(r'^PRETTY_NAME="?([^"\n]+)', "/etc/os-release"),
        "python": platform.python_version(),
    }


def load() -> float:
    """Return the load average over the last minute."""
    return float(Path("/proc/loadavg").read_text().split()[0])


def busy(before: float) -> bool:
    """Return whether a load average from before a run says that others used the machine."""
    return before > 0.3 * _cpus()


def _cpus() -> int:
    return len(re.findall(r"^processor\s*:", Path("/proc/cpuinfo").read_text(), re.MULTILINE)) or 1


def _match(pattern: str, path: str) -> str:
    file = Path(path)
    found = re.search(pattern, file.read_text("utf-8", "replace"), re.MULTILINE) if file.exists() else None
    return found.group(1).strip() if found else ""
