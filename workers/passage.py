"""One connection through a node's gate, in the gate's event loop: the handshake of app/gate.py, and then the bytes."""

from __future__ import annotations

import asyncio
import hmac
import socket
from typing import Any

from app import gate as protocol

CHUNK = 256 * 1024
"""Bytes of a connection's buffer, each way: all that it holds, whatever passes."""


class Passage:
    """The side of a connection that an API process is on."""

    def __init__(self, connection: socket.socket, secret: str) -> None:
        """`secret`: the node's."""
        self._connection, self._secret = connection, secret
        self._loop = asyncio.get_running_loop()
        self._admission = ""

    async def greet(self) -> protocol.Wish:
        """Return what the other side asks for, once it has proved its right to. Raises BadMessage, OSError."""
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        protocol.keep_alive(self._connection)
        ours = protocol.nonce()
        await self._send({"nonce": ours})
        head = await self._exactly(protocol.LENGTH.size)
        said = protocol.unpack(await self._exactly(protocol.size_of(head)))
        port, theirs = said.get("port"), str(said.get("nonce"))
        if not isinstance(port, int) or not 1 <= port <= 65535:
            raise protocol.BadMessage("a port that is none")
        wish = protocol.Wish(str(said.get("sandbox")), port)
        if not hmac.compare_digest(str(said.get("proof")).encode(), wish.proof(self._secret, ours, theirs).encode()):
            raise protocol.BadMessage("the other side does not know this node's secret")
        self._admission = protocol.admission(self._secret, ours, theirs)
        return wish

    async def refuse(self, envelope: dict[str, Any]) -> None:
        """Tell why not. Raises OSError."""
        await self._send({"error": envelope})

    async def admit(self, target: socket.socket) -> None:
        """Let it through to `target`, and move bytes until both sides have ended, or one breaks. Raises OSError."""
        await self._send({"proof": self._admission})
        there = self._loop.create_task(self._pump(self._connection, target))
        back = self._loop.create_task(self._pump(target, self._connection))
        try:
            await asyncio.gather(there, back)
        finally:
            there.cancel()
            back.cancel()
            await asyncio.gather(there, back, return_exceptions=True)

    async def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        """Move bytes one way to their end, and pass the end on."""
        view = memoryview(bytearray(CHUNK))
        while count := await self._loop.sock_recv_into(source, view):
            await self._loop.sock_sendall(sink, view[:count])
            # Neither call gives way while there is something to move: others have their turn here.
            await asyncio.sleep(0)
        sink.shutdown(socket.SHUT_WR)

    async def _send(self, message: dict[str, Any]) -> None:
        await self._loop.sock_sendall(self._connection, protocol.pack(message))

    async def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = await self._loop.sock_recv(self._connection, size - len(data))
            if not piece:
                raise ConnectionResetError("it was closed before it said what it wants")
            data += piece
        return data
