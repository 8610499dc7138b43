"""The WebSocket that is a TCP connection into a sandbox: binary (and text) messages are bytes for the program, binary ones are its answer.

A message has no meaning of its own, so each part of one goes on as it comes, and none is ever held as a whole.
"""

import base64
import binascii
import contextlib
import logging
import socket
import threading

from flask import Response, request
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.utilities import LocalProtocolError, RemoteProtocolError, generate_accept_token

from app.api import sockets
from app.api.endpoint import query_text
from app.forwarding import check_port
from app.keys import check_name
from app.services import Services
from app.tunnels import Traffic, Tunnels, pump
from rock.errors import BadRequest

log = logging.getLogger(__name__)

CHUNK = 256 * 1024
PING_EVERY = 25.0
"""Seconds between pings: proxies close what is silent."""
SUBPROTOCOL = "binary"
"""The one that clients of this kind ask for, if any."""
# Close codes of RFC 6455.
NORMAL, SERVICE_FAULT, RESTART = 1000, 1011, 1012


def serve(services: Services, sandbox_id: str) -> Response:
    """Connect a client to a port of a sandbox, until one of them ends."""
    identity = services.keyring.identify(request.headers)
    sockets.check_origin("a port of a sandbox")
    port = check_port(query_text("port"), "port")
    greeting = _greeting()
    # First the program, so that what is wrong with that is an ordinary answer.
    with services.tunnels.to(check_name(sandbox_id, "sandbox_id"), port, identity) as program:
        forward = _Forward(sockets.connection(), program, services.tunnels)
        with services.tunnels.lasting(program):
            forward.run(greeting)
    return sockets.Spent()


def _greeting() -> bytes:
    """Return the answer that makes the connection a WebSocket. Raises BadRequest when the request is none for one."""
    key = request.headers.get("Sec-WebSocket-Key", "")
    try:
        right = len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        right = False
    if not right or request.headers.get("Sec-WebSocket-Version") != "13":
        raise BadRequest("this is no WebSocket handshake of version 13 (RFC 6455)")
    offered = [one.strip() for one in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
    chosen = f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n" if SUBPROTOCOL in offered else ""
    accepted: bytes = generate_accept_token(key.encode())
    return (
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Accept: {accepted.decode()}\r\n{chosen}\r\n"
    ).encode()


class _Forward:
    """One connection, from its handshake to its end."""

    def __init__(self, client: socket.socket, program: socket.socket, tunnels: Tunnels) -> None:
        self._client, self._program, self._tunnels = client, program, tunnels
        self._traffic = Traffic(tunnels.settings.idle_seconds)
        self._frames = Connection(ConnectionType.SERVER)
        # Answers, pings and pongs come from several threads.
        self._sending = threading.Lock()
        self._over = threading.Event()

    def run(self, greeting: bytes) -> None:
        """Carry bytes both ways until the client or the program ends."""
        back = threading.Thread(target=self._answer, name="forward-back", daemon=True)
        pings = threading.Thread(target=self._ping, name="forward-ping", daemon=True)
        try:
            self._client.sendall(greeting)
            back.start()
            pings.start()
            pump(self._client, self._take, self._traffic)
        except (OSError, RemoteProtocolError, LocalProtocolError) as error:
            log.debug("port forwarding: the client left: %s", error)
        finally:
            self._over.set()
            _end(self._program)
            for thread in (back, pings):
                if thread.ident is not None:
                    thread.join()

    def _take(self, data: memoryview) -> None:
        """Take what the client sent. Raises ConnectionResetError when it has closed; RemoteProtocolError."""
        self._frames.receive_data(bytes(data))
        for event in self._frames.events():
            if isinstance(event, BytesMessage):
                self._program.sendall(event.data)
            elif isinstance(event, TextMessage):
                self._program.sendall(event.data.encode())
            elif isinstance(event, Ping):
                self._send(event.response())
            elif isinstance(event, CloseConnection):
                with contextlib.suppress(LocalProtocolError):  # an answer to our own
                    self._send(event.response())
                raise ConnectionResetError("it closed the WebSocket")

    def _answer(self) -> None:
        """Send what the program says, and close when it ends."""
        code, reason = NORMAL, "the program closed the connection"
        try:
            pump(self._program, lambda data: self._send(BytesMessage(data=bytes(data))), self._traffic)
            if self._traffic.over:
                reason = f"nothing passed for {self._traffic.idle:g} s (proxy.idle_seconds)"
        except OSError as error:
            log.debug("port forwarding broke: %s", error)
            code, reason = SERVICE_FAULT, "the connection to the program broke"
        except LocalProtocolError:
            return  # closed by the client meanwhile
        if self._tunnels.ending:
            code, reason = RESTART, "the service ends"
        if not self._over.is_set():
            with contextlib.suppress(OSError, LocalProtocolError):
                self._send(CloseConnection(code, reason))
            # What the client sends until it has seen that is read by nobody.
            _end(self._client)

    def _ping(self) -> None:
        while not self._over.wait(PING_EVERY):
            with contextlib.suppress(OSError, LocalProtocolError):
                self._send(Ping())

    def _send(self, event: Event) -> None:
        with self._sending:
            self._client.sendall(self._frames.send(event))


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
