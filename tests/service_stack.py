"""The real service for tests: `rock admin start --detach` in a data folder and on ports of its own."""

import json
import os
import socket
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app import running
from app.running import Pid
from rock import settings

ROOT = Path(__file__).resolve().parent.parent
MARKER = "ROCK_TEST_RUN"
"""A variable that every process of a test run inherits, so that what is left over can be found."""
RUN_FILE = "test-run"
"""Names the run in a data folder: sandboxes of the `local` deployment do not inherit the variable."""


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def clean_environment() -> dict[str, str]:
    """Return the variables of this process without any that configures the service."""
    return {name: value for name, value in settings.with_prefix("").items() if not name.startswith("ROCK_")}


@dataclass
class Stack:
    """A service with its own data folder, ports and node id. Use `start()` and `stop()`, or the fixtures."""

    data_dir: Path
    runtime: str = "local"
    run_id: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    redis_port: int = field(default_factory=free_port)
    envhub_port: int = field(default_factory=free_port)
    node_id: str = field(default_factory=lambda: f"test-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    """Names the run, so that another run on this machine leaves our containers alone."""

    def __post_init__(self) -> None:
        """Note whose the data folder is."""
        (self.data_dir / RUN_FILE).write_text(self.run_id)

    @property
    def url(self) -> str:
        """Where the API listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def redis_url(self) -> str:
        """The Redis of this service."""
        return self.variables.get("ROCK_REDIS_URL", f"redis://127.0.0.1:{self.redis_port}/0")

    @property
    def envhub_url(self) -> str:
        """Where its EnvHub listens."""
        return f"http://127.0.0.1:{self.envhub_port}"

    def environment(self) -> dict[str, str]:
        """Return the variables under which every `rock` command of this service runs."""
        return {
            **clean_environment(),
            MARKER: self.run_id,
            "ROCK_ADMIN_ENV": "test",
            "ROCK_DATA_DIR": str(self.data_dir),
            "ROCK_PORT": str(self.port),
            "ROCK_REDIS__PORT": str(self.redis_port),
            "ROCK_NODE_ID": self.node_id,
            "ROCK_RUNTIME": self.runtime,
            "ROCK_BASE_URL": self.url,
            "ROCK_ENVHUB__PORT": str(self.envhub_port),
            "ROCK_ENVHUB_BASE_URL": self.envhub_url,
            "ROCK_ENVHUB_DB_URL": str(self.data_dir / "envs.db"),
            **self.variables,
        }

    def rock(self, *arguments: str, seconds: float = 120.0) -> "subprocess.CompletedProcess[str]":
        """Run a `rock` command against this service and return what it said."""
        return subprocess.run(
            [sys.executable, "-m", "rock.cli", *arguments],
            cwd=ROOT,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def start(self, *arguments: str) -> "Stack":
        """Start it and wait until it is up; a failure carries what it said."""
        done = self.rock("admin", "start", "--detach", *arguments)
        assert done.returncode == 0, f"rock admin start failed:\n{done.stdout}{done.stderr}"
        return self

    def stop(self) -> None:
        """Stop it and wait until it is gone."""
        done = self.rock("admin", "stop")
        assert done.returncode == 0, f"rock admin stop failed:\n{done.stdout}{done.stderr}\n{self.log()}"

    def pids(self) -> dict[str, Pid]:
        """Return its living processes by name, the supervisor among them."""
        there = running.read(str(self.data_dir))
        assert there is not None, "the service does not run"
        return {one.name: one for one in (there.supervisor, *there.processes) if one.is_alive()}

    def log(self) -> str:
        """Return the end of what its processes have written."""
        path = self.data_dir / "logs" / "service.log"
        return path.read_text(errors="replace")[-5000:] if path.exists() else ""

    def post(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        """POST a JSON body to a route of the sandbox API and return the envelope."""
        request = urllib.request.Request(
            f"{self.url}/apis/envs/sandbox/v1{route}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer: dict[str, Any] = json.load(response)
            return answer

    def get(self, path: str) -> dict[str, Any]:
        """GET a path of the API and return its JSON."""
        with urllib.request.urlopen(self.url + path, timeout=30) as response:
            answer: dict[str, Any] = json.load(response)
            return answer


def processes_of_tests() -> dict[Pid, str]:
    """Return the living processes that any test run started, each with the name of its run."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # Ended meanwhile, or not ours to look at.
        run = _run_of(dict(one.decode(errors="replace").partition("=")[::2] for one in variables))
        started = running.start_time(int(folder.name))
        if run and started is not None:
            found[Pid(command, int(folder.name), started)] = run
    return found


def _run_of(variables: Mapping[str, str]) -> str:
    """Return the run of a process with these variables, "" for others; a `local` sandbox has few, its folder among them."""
    folder = variables.get("ROCK_SANDBOX_DIR", "")
    if MARKER in variables or "/pytest-of-" not in folder:
        return variables.get(MARKER, "")
    noted = Path(folder).parent.parent / RUN_FILE
    if noted.exists():
        return noted.read_text()
    return "" if Path(folder).exists() else "0-forgotten"  # pytest has removed the folder, so its run is long over


def processes_with(run_id: str) -> list[str]:
    """Return `pid command` of every living process of a test run."""
    return [f"{process.pid} {process.name}" for process, run in processes_of_tests().items() if run == run_id]


def end_leftovers() -> None:
    """End what test runs left that were killed, supervisors first so that they end the rest in order."""
    left = [process for process, run in processes_of_tests().items() if not Path(f"/proc/{run.split('-')[0]}").exists()]
    left.sort(key=lambda process: "rock.cli" not in process.name)
    running.end(tuple(left), 20.0)
