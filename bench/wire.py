"""HTTP/1.1 over plain sockets, with next to no cost of its own: a measuring client must not measure itself."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

RECEIVE = 1 << 18
"""Bytes asked of the socket at once."""
TIMEOUT = 90.0
"""Seconds without a byte after which a request counts as failed."""


class BenchError(Exception):
    """The server did not do what the measure needs; the text says what it did instead."""


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    host: str
    port: int
    base: str = ""
    """Path in front of every route, without a slash at its end."""

    @classmethod
    def of(cls, url: str) -> "Address":
        """Return the address in an http URL. Raises ValueError for any other: TLS would be measured along."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{url!r} is not an http:// URL")
        return cls(parts.hostname, parts.port or 80, parts.path.rstrip("/"))

    def connect(self) -> socket.socket:
        """Return a new connection. Raises BenchError."""
        try:
            connection = socket.create_connection((self.host, self.port), timeout=TIMEOUT)
        except OSError as error:
            raise BenchError(f"http://{self.host}:{self.port} does not take connections: {error}") from error
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def request(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None) -> bytes:
        """Return the bytes of a request."""
        lines = [f"{method} {self.base}{path} HTTP/1.1", f"Host: {self.host}:{self.port}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


class MessageReader:
    """Collects one HTTP message from whatever pieces it arrives in: by Content-Length or in chunks."""

    def __init__(self) -> None:
        self.first_line = ""
        self.headers: dict[str, str] = {}
        self._buffer = bytearray()
        self._start = 0
        self._length: int | None = None

    @property
    def empty(self) -> bool:
        """True while no byte has arrived."""
        return not self._buffer

    @property
    def status(self) -> int:
        """The status code of a response."""
        return int(self.first_line.split(" ", 2)[1])

    @property
    def closes(self) -> bool:
        """True when the sender will close the connection after this message."""
        return self.headers.get("connection", "").lower() == "close"

    def feed(self, data: bytes) -> bytes | None:
        """Take the next bytes; return the body once the message is complete. Raises ValueError when it is not HTTP."""
        self._buffer += data
        if not self._start and not self._read_head():
            return None
        if self._length is None:
            return unchunk(self._buffer, self._start)
        if len(self._buffer) - self._start < self._length:
            return None
        return bytes(memoryview(self._buffer)[self._start : self._start + self._length])

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        self.first_line, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self._start = end + 4
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            self._length = int(self.headers.get("content-length", 0))
        return True


def unchunk(buffer: bytes | bytearray, start: int) -> bytes | None:
    """Return the body that is in chunks from `start` on; None when it is not all there. Raises ValueError."""
    parts: list[bytes] = []
    place = start
    while True:
        end = buffer.find(b"\r\n", place)
        if end < 0:
            return None
        size = int(bytes(buffer[place:end]).split(b";")[0], 16)
        place = end + 2
        if len(buffer) < place + size + 2:
            return None
        if size == 0:
            return b"".join(parts)
        parts.append(bytes(buffer[place : place + size]))
        place += size + 2


class Connection:
    """One kept-alive connection, one request at a time, blocking. Not for two threads."""

    def __init__(self, address: Address, headers: Mapping[str, str]) -> None:
        """No connection is made yet. `headers` go with every request."""
        self._address, self._headers = address, dict(headers)
        self._socket: socket.socket | None = None

    def call(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Send a request; return status code and body. Raises BenchError when no whole answer comes."""
        data = self._address.request(method, path, self._headers, body)
        try:
            if self._socket is not None:
                answer = self._exchange(self._socket, data)
                if answer is not None:
                    return answer
                # The server closed the idle connection before it saw this request, so it may be sent again.
                self.close()
            self._socket = self._address.connect()
            answer = self._exchange(self._socket, data)
        except (OSError, ValueError) as error:
            self.close()
            raise BenchError(f"{method} {path}: {type(error).__name__}: {error}") from error
        if answer is None:
            self.close()
            raise BenchError(f"{method} {path}: the server closed the connection without an answer")
        return answer

    def close(self) -> None:
        """Close it; the next call makes a new one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _exchange(self, connection: socket.socket, data: bytes) -> tuple[int, bytes] | None:
        """Send and receive; None when the connection ended before the first byte of an answer."""
        reader = MessageReader()
        try:
            connection.sendall(data)
            while True:
                piece = connection.recv(RECEIVE)
                if not piece:
                    break
                body = reader.feed(piece)
                if body is not None:
                    if reader.closes:
                        self.close()
                    return reader.status, body
        except (BrokenPipeError, ConnectionResetError):
            if reader.empty:
                return None
            raise
        if reader.empty:
            return None
        raise ConnectionResetError("the connection ended in the middle of the answer")
