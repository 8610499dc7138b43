"""The WebSocket of a terminal: binary frames are keys and screen, text frames are JSON (`TerminalFrame` in, how it ended out)."""

import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

from flask import Flask, Response, request
from simple_websocket import ConnectionClosed, Server

from app import body
from app.api.endpoint import PREFIX
from app.api.sockets import Spent, Whole, check_origin, connection
from app.auth import Identity
from app.commands import Ask
from app.services import Services
from app.terminal import Terminal
from rock.actions import TerminalFrame, TerminalRequest, load
from rock.errors import BadRequest, CallerFault, RockError

log = logging.getLogger(__name__)

# Seconds between pings: proxies close what is silent, and a client that is gone is noticed.
PING_EVERY = 25
# Bytes of one frame from a client.
LARGEST_FRAME = 1024 * 1024
# Bytes that may wait for a program which takes its keys slowly, and what a frame counts beside its own bytes: there may be many small ones.
MOST_WAITING, FRAME_COST = 4 * LARGEST_FRAME, 64
# Close codes of RFC 6455.
NORMAL, POLICY, TOO_BIG, SERVICE_FAULT, RESTART = 1000, 1008, 1009, 1011, 1012

# How a socket says that its client has left; the second before that was noticed.
GONE = (ConnectionClosed, OSError)


def register(app: Flask, services: Services) -> None:
    """Add the route to the application."""

    def handle(sandbox_id: str) -> Response:
        identity = services.keyring.identify(request.headers)
        check_origin("a terminal")
        wanted = _wanted()
        # Under gevent, the library's sends would stop where the buffer of a slow client is full.
        place = {"gunicorn.socket": Whole(connection())}
        socket = _Socket({**request.environ, **place}, ping_interval=PING_EVERY, max_message_size=LARGEST_FRAME)
        _serve(services, socket, sandbox_id, wanted, identity)
        return Spent()

    app.add_url_rule(f"{PREFIX}/sandboxes/<sandbox_id>/terminal", "terminal", handle, websocket=True)


class _Socket(Server):
    """A WebSocket whose client is cut off when more of what it sent than MOST_WAITING waits to be taken."""

    def _handle_events(self) -> bool:
        """Take up what has just been read; return whether to read on."""
        going: bool = super()._handle_events()
        if going and sum(len(message) + FRAME_COST for message in self.input_buffer) > MOST_WAITING:
            log.warning("terminal closed: its client sends faster than the program takes it")
            self.input_buffer.clear()
            self.close(TOO_BIG, "sent faster than the program takes it")
            self.event.set()
            return False
        return going


def _wanted() -> TerminalRequest:
    """Return the query as a request. Raises BadRequest naming the parameter."""
    fields: dict[str, Any] = dict(request.args)
    for name in ("rows", "cols"):
        if name in fields:
            text = fields[name]
            if not text.isascii() or not text.isdigit() or len(text) > 9:
                raise BadRequest(f"{name}: must be a whole number, is {text[:40]!r}")
            fields[name] = int(text)
    return load(TerminalRequest, fields)


def _serve(services: Services, socket: Server, sandbox_id: str, wanted: TerminalRequest, identity: Identity) -> None:
    """Carry keys and screen between the client and a terminal until one of them ends."""

    def leave() -> None:
        try:
            socket.close(RESTART, "the service ends")
        except GONE:
            log.debug("terminal: the client left before the service ended", extra={"sandbox_id": sandbox_id})

    services.terminals.closers.add(leave)
    terminal = None
    try:
        terminal = Terminal(services.terminals, sandbox_id, wanted, Ask(identity))
        threading.Thread(target=_show, args=(socket, terminal), name="terminal-screen", daemon=True).start()
        for message in _messages(socket):
            _take(terminal, message)
    except ConnectionClosed:
        log.debug("terminal closed", extra={"sandbox_id": sandbox_id})
    except RockError as error:
        _end(socket, error.to_envelope(), POLICY if isinstance(error, CallerFault) else SERVICE_FAULT)
    finally:
        services.terminals.closers.discard(leave)
        if terminal is not None:
            terminal.close()


def _messages(socket: Server) -> Iterator[bytes | str]:
    """Yield what the client sends, keys that came meanwhile in one piece of not much more than LARGEST_FRAME. Raises ConnectionClosed."""
    while True:
        message: bytes | str = socket.receive()
        after: bytes | str | None = None
        while isinstance(message, bytes) and len(message) < LARGEST_FRAME:
            after = socket.receive(timeout=0)
            if not isinstance(after, bytes):
                break
            message, after = message + after, None
        yield message
        if after is not None:
            yield after


def _take(terminal: Terminal, message: bytes | str) -> None:
    """Do what one frame of the client asks for. Raises RockError."""
    if isinstance(message, bytes):
        terminal.type(message)
        return
    value = body.parse(message.encode())
    frame = load(TerminalFrame, value)
    if frame.keys:
        terminal.type(frame.keys.encode())
    elif "rows" in value and "cols" in value:
        terminal.resize(frame.rows, frame.cols)


def _show(socket: Server, terminal: Terminal) -> None:
    """Send the screen until the shell ends, then how it ended, and close."""
    try:
        for data in terminal.screen():
            socket.send(data)
        _end(socket, terminal.outcome(), NORMAL)
    except GONE:
        log.debug("terminal: the client left")
    except RockError as error:
        _end(socket, error.to_envelope(), SERVICE_FAULT)


def _end(socket: Server, envelope: dict[str, Any], code: int) -> None:
    """Tell how it ended, as an envelope in a text frame, and close."""
    try:
        socket.send(json.dumps(envelope))
        socket.close(code, "see the last message")
    except GONE:
        log.debug("terminal: the client left before the end was told")
