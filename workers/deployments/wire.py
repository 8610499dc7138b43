"""Raw connections to an engine, for what a request/response client cannot do: hijacked streams that never block, and
bodies that go on for minutes and must be left at once. Unix sockets, TCP (plain or TLS), and SSH through the system's own client.
"""

from __future__ import annotations

import json
import re
import select
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from rock.errors import BadRequest, SandboxGone, Unavailable
from workers.deployments import tls
from workers.deployments.streams import STDOUT, Demultiplexer

CHUNK = 65536
_SLICE = 0.25
"""Seconds between looks at `tick` while a long body is silent."""


@dataclass(frozen=True)
class Endpoint:
    """Where an engine listens: `unix:///path`, `tcp://host:port` or `ssh://[user@]host[:port]`.

    Params:
        timeout: seconds to connect and to get an answer's head.
        ssh: the SSH client and its options.
        certificates: folder with `ca.pem`, `cert.pem` and `key.pem`: what listens at a `tcp://` address speaks TLS, is checked
            against the first and shown the others. None: plain TCP.
    """

    url: str
    timeout: float = 60.0
    ssh: tuple[str, ...] = ("ssh", "-o", "BatchMode=yes")
    certificates: Path | None = None

    @property
    def is_local(self) -> bool:
        """True when the engine is on this machine, so that its paths and process ids mean something here."""
        return self.url.startswith("unix://")

    def engine_pid(self) -> int | None:
        """Return the process id of an engine on this machine, None where it cannot be told. Errors: Unavailable."""
        if not self.is_local:
            return None
        with self.connect() as connection:
            pid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        return pid or None  # 0: in another process namespace

    def connect(self) -> socket.socket:
        """Return a new connection. Errors: Unavailable; BadRequest for a kind of address that is not known."""
        parts = urlsplit(self.url)
        try:
            if parts.scheme in ("unix", "http+unix"):
                return self._unix(parts.path)
            if parts.scheme in ("tcp", "http"):
                return self._tcp(parts.hostname or "localhost", parts.port)
            if parts.scheme == "ssh":
                return self._ssh(parts.hostname or "", parts.username, parts.port)
        except OSError as error:
            raise Unavailable(f"the container engine at {self.url} does not answer: {error}") from error
        raise BadRequest(
            f"engine address {self.url!r}: unix://, tcp:// and ssh:// are known (over a network take ssh, or TLS with runtime.docker_cert_path)"
        )

    def _tcp(self, host: str, port: int | None) -> socket.socket:
        if self.certificates is None:
            return socket.create_connection((host, port or 2375), self.timeout)
        return tls.dial(host, port or 2376, tls.context(self.certificates), self.timeout)

    def _unix(self, path: str) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(self.timeout)
        try:
            connection.connect(path)
        except OSError:
            connection.close()
            raise
        return connection

    def _ssh(self, host: str, user: str | None, port: int | None) -> socket.socket:
        # Docker's own way: its command line at the other end copies between standard streams and the socket.
        target = [*(("-p", str(port)) if port else ()), "--", f"{user}@{host}" if user else host]
        ours, theirs = socket.socketpair()
        with theirs:
            client = subprocess.Popen(
                [*self.ssh, *target, "docker", "system", "dial-stdio"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
            )
        # It ends with the connection; the thread is there to reap it.
        threading.Thread(target=client.wait, name="ssh-reaper", daemon=True).start()
        ours.settimeout(self.timeout)
        return ours


@dataclass(frozen=True)
class Answer:
    """The head of an answer, and the connection that goes on with its body; `length` is -1 if the body ends with it."""

    connection: socket.socket
    status: int
    length: int = -1

    def text(self) -> str:
        """Read the body, close the connection, and return an engine's error message. Errors: Unavailable."""
        body = bytearray()
        try:
            with self.connection as connection:
                while len(body) != self.length and (piece := connection.recv(CHUNK)):
                    body += piece
        except OSError as error:
            raise Unavailable(f"the container engine broke the connection: {error}") from error
        text = body.decode(errors="replace")
        try:
            return str(json.loads(text)["message"])
        except (ValueError, KeyError, TypeError):
            return text.strip() or f"HTTP {self.status}"


def request(
    endpoint: Endpoint,
    method: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    file: IO[bytes] | None = None,
    upgrade: bool = False,
) -> Answer:
    """Send one request on a connection of its own and return the head of the answer.

    Without `upgrade` it speaks HTTP/1.0: the body then ends with the connection and needs no decoding.
    Params:
        path: with the API version and the query, already quoted.
        body: JSON to send; or `file`: a seekable file to send as it is.
        upgrade: ask for a hijacked stream in both directions.
    Errors: Unavailable.
    """
    lines = [f"{method} {path} HTTP/1.{int(upgrade)}", "Host: engine"]
    if upgrade:
        lines += ["Connection: Upgrade", "Upgrade: tcp"]
    if file is not None:
        length = file.seek(0, 2)
        file.seek(0)
        lines += [f"Content-Length: {length}", "Content-Type: application/x-tar"]
    else:
        lines += [f"Content-Length: {len(body or b'')}", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    connection = endpoint.connect()
    try:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + (body or b""))
        if file is not None:
            connection.sendfile(file)
        return _head(connection)
    except OSError as error:
        connection.close()
        raise Unavailable(f"the container engine at {endpoint.url} broke the connection: {error}") from error


def _head(connection: socket.socket) -> Answer:
    """Read the head and not one byte more, so that the descriptor is readable whenever something of the body is there."""
    head = bytearray()
    while (end := head.find(b"\r\n\r\n")) < 0:
        ahead = connection.recv(CHUNK, socket.MSG_PEEK)
        if not ahead:
            raise ConnectionResetError("no answer")
        found = (head + ahead).find(b"\r\n\r\n")
        head += connection.recv(len(ahead) if found < 0 else found + 4 - len(head))
    length = re.search(rb"^content-length: *(\d+)", head[:end], re.IGNORECASE | re.MULTILINE)
    return Answer(connection, int(head.split(None, 2)[1]), int(length[1]) if length else -1)


def json_lines(answer: Answer, tick: Callable[[], bool]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a newline-separated body, to its end.

    Params:
        tick: asked several times a second; False ends the iteration and the connection.
    Errors: Unavailable when the connection breaks.
    """
    with answer.connection as connection:
        connection.setblocking(False)
        data = b""
        while tick():
            *whole, data = data.split(b"\n")
            for line in filter(bytes.strip, whole):
                yield json.loads(line)
            if not _readable(connection, _SLICE):
                continue
            try:
                piece = connection.recv(CHUNK)
            except OSError as error:
                raise Unavailable(f"the container engine broke the connection: {error}") from error
            if not piece:
                break
            data += piece
        if data.strip():
            yield json.loads(data)


def _readable(connection: socket.socket, seconds: float) -> bool:
    poller = select.poll()  # not select(): a busy worker has descriptors above 1023
    poller.register(connection, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


class AttachedStream:
    """A hijacked attach as a `Stream`: stdin one way, stdout's payload the other; never blocks."""

    def __init__(self, answer: Answer, sandbox_id: str) -> None:
        self._connection = answer.connection
        self._connection.setblocking(False)
        self._frames = Demultiplexer()
        self._sandbox_id = sandbox_id

    def fileno(self) -> int:
        """Return the socket's descriptor; it is readable when there is output or the end."""
        return self._connection.fileno()

    def writable_fileno(self) -> int:
        """Return the descriptor that is writable when `send` would take something."""
        return self._connection.fileno()

    def receive(self) -> bytes | None:
        """Return output, b"" when there is none yet, None at the end."""
        try:
            data = self._connection.recv(CHUNK)
        except BlockingIOError:
            return b""
        except OSError:
            return None  # reset by the engine: for the reader the same as an end
        if not data:
            return None
        return b"".join(piece for stream, piece in self._frames.feed(data) if stream == STDOUT)

    def send(self, data: bytes | memoryview) -> int:
        """Send as much as fits now; return how much. Errors: SandboxGone."""
        return self._send(self._connection, data)

    def close(self) -> None:
        """Close the connection; the container's stdin stays open."""
        self._connection.close()

    def _send(self, connection: socket.socket, data: bytes | memoryview) -> int:
        try:
            return connection.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise SandboxGone(f"sandbox {self._sandbox_id}: the way to its stdin broke: {error}") from error
