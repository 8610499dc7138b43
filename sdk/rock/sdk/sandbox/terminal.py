"""A terminal of a sandbox's session, for people: keys in, screen out.

terminal = await Terminal.open(sandbox, rows=40, cols=120)
await terminal.type(b"ls\\n")
async for data in terminal:
    ...
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Self

import aiohttp

from rock import errors
from rock.sdk.sandbox.remote import Remote


class Terminal:
    """An open terminal. Closing it ends its shell, and leaves the session as it was.

    `exit_code` is the shell's once it has ended.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.exit_code: int | None = None

    @classmethod
    async def open(cls, sandbox: Remote, session: str = "default", rows: int = 24, cols: int = 80) -> Self:
        """Open a terminal of that size in a session that exists.

        Raises:
            RockError: the service refuses the connection, or does not answer. What the sandbox says to it comes while reading.
        """
        query = {"session": session, "rows": str(rows), "cols": str(cols)}
        path = f"/sandboxes/{sandbox.required_id()}/terminal"
        return cls(await sandbox.transport.websocket(path, query))

    async def type(self, keys: bytes) -> None:
        """Type; what is typed into a terminal that has ended is lost."""
        if not self._socket.closed:
            await self._socket.send_bytes(keys)

    async def resize(self, rows: int, cols: int) -> None:
        """Give the terminal another size."""
        if not self._socket.closed:
            await self._socket.send_str(json.dumps({"rows": rows, "cols": cols}))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield what the screen shows until the shell ends.

        Raises:
            RockError: how else it ended: refused, cancelled, or the sandbox or the service is gone.
        """
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.BINARY:
                yield message.data
            elif message.type is aiohttp.WSMsgType.TEXT:
                self._told(message.data)
                return
        raise errors.Unavailable("the connection to the terminal was lost")

    def _told(self, text: str) -> None:
        envelope = json.loads(text)
        if envelope.get("status") != "Success":
            raise errors.from_envelope(envelope)
        self.exit_code = envelope["result"].get("exit_code")

    async def close(self) -> None:
        """Close it."""
        await self._socket.close()
