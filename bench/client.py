"""The verbs of the protocol that the measures use, each checked: a wrong answer must not count as a fast one."""

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.wire import Address, BenchError, Connection

PREFIX = "/apis/envs/sandbox/v1"
SESSION = "bench"
POLL = 0.02
"""Seconds between two looks at a sandbox that is starting."""
START_LIMIT = 120.0
"""Seconds that a start may take."""
LEASE_MINUTES = 30
"""Idle lease of what is started: even a killed run leaves nothing for long."""


@dataclass(frozen=True)
class Shape:
    """What sandboxes are started with."""

    image: str = "python:3.11"
    cpus: float = 0.2
    limit_cpus: float = 1.0
    memory: str = "2g"


@dataclass
class Server:
    """A server under measurement, and the sandboxes that this run owns there."""

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    match: str = ""
    """Pattern of the command lines that are the server's processes too, beyond the tree of the listening one."""
    owned: set[str] = field(default_factory=set)

    @property
    def address(self) -> Address:
        """Where it listens."""
        return Address.of(self.url)

    def client(self) -> "Client":
        """Return a client with a connection of its own."""
        return Client(self)


class Client:
    """Calls on one server over one connection."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._connection = Connection(server.address, server.headers)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def about(self) -> dict[str, Any]:
        """Return what the server says of itself at its root; {} when that is not a JSON object."""
        _, body = self._connection.call("GET", "/")
        try:
            said = json.loads(body)
        except ValueError:
            return {}
        return said if isinstance(said, dict) else {}

    def get(self, path: str) -> Any:
        """Return the result of a GET under the prefix. Raises BenchError."""
        return self._result("GET", path, *self._connection.call("GET", PREFIX + path))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the result of a POST under the prefix. Raises BenchError."""
        return self._result("POST", path, *self.call("POST", path, body))

    def call(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Return status code and body of any answer. Raises BenchError when there is none."""
        return self._connection.call(method, PREFIX + path, json.dumps(body).encode())

    def start(self, shape: Shape, path: str = "/start_async", **more: Any) -> str:
        """Ask for a sandbox; return its id, which the server's owned set has already.

        Params:
            path: `/start_async`, which answers at once, or `/start`, when it is alive.
            more: further fields of the request.
        """
        wanted = f"bench-{uuid.uuid4().hex[:20]}"
        # Owned before it is asked for: an interrupted run stops it although it never saw the answer.
        self.server.owned.add(wanted)
        body = {
            # A stop removes the container, so that a run leaves nothing on the engine.
            "auto_delete_seconds": 0,
            "image": shape.image, "cpus": shape.cpus, "limit_cpus": shape.limit_cpus, "memory": shape.memory,
            "sandbox_id": wanted, "auto_clear_time_minutes": LEASE_MINUTES, **more,
        }  # fmt: skip
        given = str(self.post(path, body)["sandbox_id"])
        if given != wanted:
            self.server.owned.add(given)
            self.server.owned.discard(wanted)
        return given

    def wait_alive(self, sandbox_id: str) -> None:
        """Poll `/get_status` until the sandbox is alive. Raises BenchError when it will not be."""
        end = time.monotonic() + START_LIMIT
        while True:
            status = self.get(f"/get_status?sandbox_id={sandbox_id}")
            if status.get("is_alive"):
                return
            phases = (status.get("status") or {}).items()
            failed = [f"{name}: {phase.get('message')}" for name, phase in phases if phase.get("status") in _ENDED]
            if failed or status.get("state") == "stopped":
                raise BenchError(f"the start of {sandbox_id} failed ({'; '.join(failed)})")
            if time.monotonic() > end:
                raise BenchError(f"{sandbox_id} was not alive after {START_LIMIT:g} s")
            time.sleep(POLL)

    def open_session(self, sandbox_id: str) -> None:
        """Open the session that `run` uses."""
        body = {"sandbox_id": sandbox_id, "session": SESSION, "session_type": "bash"}
        self.post("/create_session", body)

    def usable(self, shape: Shape) -> str:
        """Start a sandbox, open a session and run a first command there; return its id. Raises BenchError."""
        sandbox_id = self.start(shape)
        self.wait_alive(sandbox_id)
        self.open_session(sandbox_id)
        self.say_hi(sandbox_id)
        return sandbox_id

    def run(self, sandbox_id: str, command: str) -> str:
        """Run a command in the session; return its output. Raises BenchError when it did not exit with 0."""
        result = self.post("/run_in_session", run_body(sandbox_id, command))
        if result.get("exit_code") != 0:
            raise BenchError(f"{command[:40]!r} gave exit code {result.get('exit_code')}")
        return str(result["output"])

    def say_hi(self, sandbox_id: str) -> None:
        """Run the step that is measured. Raises BenchError when it does not say hi."""
        check_hi(self.run(sandbox_id, HI))

    def execute(self, sandbox_id: str, *argv: str) -> str:
        """Run a process of its own; return its stdout. Raises BenchError when it did not exit with 0."""
        result = self.post("/execute", {"sandbox_id": sandbox_id, "command": list(argv), "timeout": 80})
        if result.get("exit_code") != 0:
            raise BenchError(f"execute {argv[0]} gave exit code {result.get('exit_code')}")
        return str(result["stdout"])

    def write(self, sandbox_id: str, path: str, content: str) -> None:
        """Write a file."""
        self.post("/write_file", {"sandbox_id": sandbox_id, "path": path, "content": content})

    def read(self, sandbox_id: str, path: str) -> str:
        """Read a file."""
        return str(self.post("/read_file", {"sandbox_id": sandbox_id, "path": path})["content"])

    def stop(self, sandbox_id: str) -> None:
        """Stop a sandbox; afterwards it is no longer owned."""
        self.post("/stop", {"sandbox_id": sandbox_id})
        self.server.owned.discard(sandbox_id)

    def _result(self, method: str, path: str, status: int, body: bytes) -> Any:
        """Return an envelope's result. Raises BenchError when it is not a success."""
        return success_of(f"{self.server.name} {method} {path.partition('?')[0]}", status, body)


HI = "echo hi"
_ENDED = ("failed", "timeout")


def run_body(sandbox_id: str, command: str) -> dict[str, Any]:
    """Return the body of a `/run_in_session`."""
    return {
        "action_type": "bash", "sandbox_id": sandbox_id, "session": SESSION, "command": command, "check": "silent",
        "timeout": 80,
    }  # fmt: skip


def run_path() -> str:
    """Return the path of `/run_in_session`."""
    return f"{PREFIX}/run_in_session"


def check_hi(output: str) -> None:
    """Raise BenchError unless this is what `echo hi` prints (some servers keep the line's end)."""
    if output.strip() != "hi":
        raise BenchError(f"`echo hi` gave {output[:60]!r}")


def success_of(what: str, status: int, body: bytes) -> Any:
    """Return the result in a Success envelope. Raises BenchError naming `what`."""
    try:
        envelope = json.loads(body)
    except ValueError as error:
        raise BenchError(f"{what}: HTTP {status}, and not JSON: {body[:80]!r}") from error
    if status != 200 or not isinstance(envelope, dict) or envelope.get("status") != "Success":
        reason = envelope.get("error") or envelope.get("message") if isinstance(envelope, dict) else body[:80]
        raise BenchError(f"{what}: HTTP {status}: {str(reason)[:200]}")
    return envelope.get("result")
