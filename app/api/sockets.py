"""What routes share that take a connection over from the server."""

import select
import socket
import threading
from typing import Any

from flask import Response, request

from rock.errors import Forbidden, Internal


class Spent(Response):
    """The answer on a connection that has been taken over: none, and gunicorn must not try."""

    def __call__(self, *args: Any) -> Any:
        """Tell gunicorn to let go of the connection."""
        raise StopIteration


class Whole:
    """A connection whose `send` sends all of it, one message after the other: else a part may go, or one into the middle of another."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._turn = connection, threading.Lock()

    def send(self, data: bytes) -> int:
        """Send a message; return its length. Raises OSError."""
        with self._turn:
            self._connection.sendall(data)
        return len(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def check_origin(what: str) -> None:
    """Refuse a page of another site: browsers let any page open a WebSocket anywhere. Raises Forbidden."""
    origin = request.headers.get("Origin")
    if origin and origin not in (f"http://{request.host}", f"https://{request.host}"):
        raise Forbidden(f"{what} cannot be opened by a page of another site")


def caller_left() -> bool:
    """Return whether the caller of this request has closed its connection; False under a server that does not give it."""
    found = request.environ.get("gunicorn.socket")
    try:
        return found is not None and bool(select.select([found], [], [], 0)[0]) and not found.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


def connection() -> socket.socket:
    """Return the connection on which the request came. Raises Internal under a server that does not give it."""
    found = request.environ.get("gunicorn.socket") or request.environ.get("werkzeug.socket")
    if found is None:
        raise Internal("this server does not give connections away, so it cannot have WebSockets")
    given: socket.socket = found
    return given
