"""The service over plain HTTP, as curl would use it: no client library in between."""

import http.client
import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

PREFIX = "/apis/envs/sandbox/v1"
PATIENCE = 60.0
"""Seconds after which an answer or a condition counts as never coming."""


@dataclass
class Reply:
    """An answer: the HTTP status, and the envelope in it."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def ok(self) -> bool:
        """True for a Success envelope."""
        return bool(self.body.get("status") == "Success")

    @property
    def result(self) -> Any:
        """The envelope's result."""
        return self.body["result"]

    @property
    def error(self) -> str:
        """The text of a failure."""
        return str(self.body["error"])

    def failed(self, code: int, *words: str, kind: str | None = None) -> dict[str, Any]:
        """Check that this is a failure of that code whose text holds these words; return its result."""
        assert self.body["status"] == "Failed", self.body
        assert self.result["code"] == code and (kind is None or self.result["kind"] == kind), self.body
        assert {"kind", "retryable", "exit_code", "failure_reason"} <= set(self.result)
        for word in words:
            assert word.lower() in self.error.lower(), self.body
        assert "Traceback" not in json.dumps(self.body)
        return dict(self.result)


def send(url: str, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
    """Make one request with a body as it is, on a connection of its own."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        text = response.read()
        return Reply(response.status, json.loads(text), dict(response.headers))
    finally:
        connection.close()


@dataclass
class Api:
    """A service at `url`. `headers` go with every request."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)

    def post(self, route: str, **fields: Any) -> Reply:
        """POST a JSON object to a route of the prefix."""
        body = json.dumps(fields).encode()
        return send(self.url, "POST", PREFIX + route, body, Content_Type="application/json", **self.headers)

    def get(self, route: str, **query: Any) -> Reply:
        """GET a route of the prefix."""
        return send(self.url, "GET", f"{PREFIX}{route}?{urlencode(query)}", **self.headers)

    def upload(self, content: bytes, **parts: str) -> Reply:
        """POST a file; `parts` are the other fields, and `filename`."""
        border, name = uuid.uuid4().hex, parts.pop("filename", "file.bin")
        text = "".join(
            f'--{border}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'
            for key, value in parts.items()
        )
        head = f'--{border}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
        body = text.encode() + head.encode() + content + f"\r\n--{border}--\r\n".encode()
        kind = f"multipart/form-data; boundary={border}"
        return send(self.url, "POST", f"{PREFIX}/upload", body, Content_Type=kind, **self.headers)

    def start(self, **fields: Any) -> "Box":
        """Start a sandbox, and return it once it is alive."""
        reply = self.post("/start", **{"image": "python:3.11", "memory": "256m", "cpus": 0.2, **fields})
        assert reply.ok, reply.body
        return Box(self, reply.result["sandbox_id"])


@dataclass
class Box:
    """A sandbox, and a session in it once `open()` was called."""

    api: Api
    id: str
    session: str = "default"

    def post(self, route: str, **fields: Any) -> Reply:
        """POST to a route that takes this sandbox."""
        return self.api.post(route, **{"sandbox_id": self.id, **fields})

    def open(self, **fields: Any) -> "Box":
        """Return this sandbox with a session of its own."""
        session = f"s-{uuid.uuid4().hex[:8]}"
        reply = self.post("/create_session", session=session, **fields)
        assert reply.ok, reply.body
        return Box(self.api, self.id, session)

    def close(self) -> Reply:
        """Close the session."""
        return self.post("/close_session", session=self.session)

    def run(self, command: str, **fields: Any) -> Reply:
        """Run a command in the session."""
        return self.post(
            "/run_in_session", **{"session": self.session, "command": command, "check": "silent", **fields}
        )

    def output(self, command: str, **fields: Any) -> str:
        """Run a command that must end well, and return its output."""
        reply = self.run(command, **fields)
        assert reply.ok and reply.result["exit_code"] == 0, reply.body
        return str(reply.result["output"])

    def execute(self, command: str | list[str], **fields: Any) -> Reply:
        """Run a one-off command."""
        return self.post("/execute", command=command, **fields)

    def read(self, path: str, **fields: Any) -> Reply:
        """Read a file."""
        return self.post("/read_file", path=path, **fields)

    def write(self, path: str, content: str) -> Reply:
        """Write a file."""
        return self.post("/write_file", path=path, content=content)

    def upload(self, content: bytes, target_path: str, **parts: str) -> Reply:
        """Upload a file."""
        return self.api.upload(content, sandbox_id=self.id, target_path=target_path, **parts)

    def stop(self) -> None:
        """Stop the sandbox."""
        reply = self.post("/stop")
        assert reply.ok, reply.body


def until(condition: Callable[[], Any], seconds: float = PATIENCE, what: str = "it") -> Any:
    """Wait until the condition holds, and return what it gave."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.02)
    return found


def retried(ask: Callable[[], Reply], seconds: float = PATIENCE) -> Reply:
    """Ask until an answer comes that is not a broken connection or a 503, as a client does under one `request_id`."""

    def attempt() -> Reply | None:
        try:
            reply = ask()
        except (OSError, http.client.HTTPException):
            return None
        return reply if reply.status != 503 else None

    answer: Reply = until(attempt, seconds, "an answer")
    return answer
