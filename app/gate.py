"""The handshake between an API process and the gate of a node, behind which are the ports of its sandboxes.

    gate → API   {"nonce"}
    API → gate   {"sandbox", "port", "nonce", "proof"}      proof of the node's secret, over both nonces and what is asked for
    gate → API   {"proof"}, and from here on the bytes are the program's; or {"error"}, an envelope, and the end

Both know the secret from Redis; it never travels, and what somebody overhears opens nothing. Each message is JSON behind its length.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
from dataclasses import asdict, dataclass, field
from typing import Any

from rock.errors import NodeLost, from_envelope

LENGTH = struct.Struct(">I")
LONGEST_MESSAGE = 64 * 1024
"""Bytes; an error with its details is far shorter."""


class BadMessage(ValueError):
    """The other side does not speak this protocol."""


@dataclass(frozen=True)
class Gate:
    """Where a node's gate listens, and what proves the right to pass."""

    host: str
    port: int
    secret: str = field(repr=False)

    def to_json(self) -> str:
        """Return it as Redis keeps it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Gate:
        """Return the gate that Redis keeps as `text`."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Wish:
    """What an API process asks a gate for."""

    sandbox: str
    port: int

    def proof(self, secret: str, gate_nonce: str, api_nonce: str) -> str:
        """Return what proves that somebody who knows `secret` asks for this, now."""
        return _sign(secret, "enter", gate_nonce, api_nonce, self.sandbox, str(self.port))


def admission(secret: str, gate_nonce: str, api_nonce: str) -> str:
    """Return what proves that the gate knows `secret` as well."""
    return _sign(secret, "entered", gate_nonce, api_nonce)


def nonce() -> str:
    """Return a value that is used once."""
    return secrets.token_hex(16)


def pack(message: dict[str, Any]) -> bytes:
    """Return a message as bytes."""
    data = json.dumps(message).encode()
    return LENGTH.pack(len(data)) + data


def size_of(head: bytes) -> int:
    """Return the length of the message behind `head`. Raises BadMessage when it is longer than any of ours."""
    (size,) = LENGTH.unpack(head)
    if size > LONGEST_MESSAGE:
        raise BadMessage(f"a message of {size} bytes")
    return int(size)


def unpack(data: bytes) -> dict[str, Any]:
    """Return a message. Raises BadMessage when it is none."""
    try:
        message = json.loads(data)
    except ValueError as error:
        raise BadMessage("a message that is not JSON") from error
    if not isinstance(message, dict):
        raise BadMessage("a message that is no object")
    return message


def enter(gate: Gate, node_id: str, wish: Wish, seconds: float) -> socket.socket:
    """Return a connection to a port of a sandbox.

    Params:
        node_id: whose gate it is, for messages.
        seconds: to reach the node, and for each address of the sandbox that the node tries.
    Raises:
        NodeLost: the gate does not answer, or is not that node's.
        RockError: what the node says, such as PortClosed.
    """
    try:
        connection = socket.create_connection((gate.host, gate.port), seconds)
    except OSError as error:
        raise NodeLost(
            f"node {node_id} cannot be reached at {gate.host}:{gate.port} ({error}): if it is up, node.host_ip in its "
            "configuration must be an address that the API can reach",
            node=node_id, sandbox_id=wish.sandbox,
        ) from error  # fmt: skip
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(connection)
        # It tries three addresses at most, and says itself why none of them answers.
        connection.settimeout(4 * seconds)
        _shake_hands(connection, gate.secret, wish)
    except (OSError, BadMessage) as error:
        connection.close()
        text = f"node {node_id} broke off the way into sandbox {wish.sandbox} ({error}); try again"
        raise NodeLost(text, node=node_id, sandbox_id=wish.sandbox) from error
    except BaseException:
        connection.close()
        raise
    return connection


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel notice within half a minute that the other machine has gone, whether bytes are on their way or not."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3, socket.TCP_USER_TIMEOUT: 25_000}
    for option, value in options.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _shake_hands(connection: socket.socket, secret: str, wish: Wish) -> None:
    ours, theirs = nonce(), str(_receive(connection).get("nonce"))
    proof = wish.proof(secret, theirs, ours)
    connection.sendall(pack({**asdict(wish), "nonce": ours, "proof": proof}))
    answer = _receive(connection)
    if "error" in answer:
        raise from_envelope(answer["error"])
    if not hmac.compare_digest(str(answer.get("proof")).encode(), admission(secret, theirs, ours).encode()):
        raise BadMessage("it does not know the node's secret")


def _receive(connection: socket.socket) -> dict[str, Any]:
    return unpack(_exactly(connection, size_of(_exactly(connection, LENGTH.size))))


def _exactly(connection: socket.socket, size: int) -> bytes:
    """Receive so many bytes and not one more: what follows is the program's."""
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionResetError("the connection was closed")
        data += piece
    return bytes(data)


def _sign(secret: str, *parts: str) -> str:
    return hmac.new(secret.encode(), "\0".join(parts).encode(), hashlib.sha256).hexdigest()
