"""Connections to an engine over TLS that behave like plain sockets: they can be polled, peeked into, and closed in one direction.

Python's own TLS sockets can do none of the three. So a thread per connection stands between: the engine's encrypted one on its far side, one
end of a pair of plain sockets on ours.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from pathlib import Path

_CHUNK = 65536
_GONE = select.POLLHUP | select.POLLERR


def context(folder: Path) -> ssl.SSLContext:
    """Return what trusts one authority and shows a certificate, from `ca.pem`, `cert.pem` and `key.pem` as Docker's own tools name them.

    Errors: OSError (ssl.SSLError is one) when a file is missing or is no certificate.
    """
    made = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    made.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return made


def dial(host: str, port: int, trust: ssl.SSLContext, timeout: float) -> socket.socket:
    """Return a plain socket whose other end is, over TLS, the server at `host` and `port`.

    Params:
        timeout: seconds to connect and shake hands, and of the socket returned.
    Errors: OSError; its text says what is wrong with the server's certificate.
    """
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = trust.wrap_bio(incoming, outgoing, server_hostname=host)
    raw = socket.create_connection((host, port), timeout)
    try:
        _shake_hands(raw, tls, incoming, outgoing)
    except BaseException:
        raw.close()
        raise
    ours, theirs = socket.socketpair()
    ours.settimeout(timeout)
    bridge = _Bridge(theirs, raw, tls, incoming, outgoing)
    # It ends with either connection.
    threading.Thread(target=bridge.run, name="tls", daemon=True).start()
    return ours


def _shake_hands(raw: socket.socket, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            raw.sendall(outgoing.read())
            data = raw.recv(_CHUNK)
            if not data:
                raise ConnectionResetError("the connection was closed during the TLS handshake") from None
            incoming.write(data)
        else:
            raw.sendall(outgoing.read())
            return


class _Bridge:
    """Moves bytes both ways, holding no more than a chunk each way, until both directions or either connection are over."""

    def __init__(
        self,
        plain: socket.socket,
        raw: socket.socket,
        tls: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
    ) -> None:
        self._plain, self._raw, self._tls = plain, raw, tls
        self._incoming, self._outgoing = incoming, outgoing
        self._to_plain, self._to_raw = b"", b""
        # Whether that side may still have something to say.
        self._plain_talks = self._raw_talks = True
        for one in (plain, raw):
            one.setblocking(False)

    def run(self) -> None:
        """Work until it is over, then close both."""
        # A connection that breaks is told to whoever holds our end by its end.
        with self._plain, self._raw, contextlib.suppress(OSError):
            self._decrypt()  # what came along with the handshake
            while self._raw_talks or self._to_plain:
                self._turn()

    def _turn(self) -> None:
        poller = select.poll()
        from_plain = self._plain_talks and not self._to_raw
        from_raw = self._raw_talks and not self._to_plain
        # Ours always: that it was closed, in both directions, is told unasked.
        poller.register(self._plain, _events(from_plain, self._to_plain))
        if wanted := _events(from_raw, self._to_raw):
            poller.register(self._raw, wanted)
        ready = dict(poller.poll())
        plain, raw = ready.get(self._plain.fileno(), 0), ready.get(self._raw.fileno(), 0)
        for events in (plain, raw):
            if events & _GONE and not events & select.POLLIN:
                raise ConnectionResetError("one end was closed")
        if raw & select.POLLIN and from_raw:
            self._receive()
        if plain & select.POLLIN and from_plain:
            self._take()
        if self._to_raw:
            self._to_raw = _send(self._raw, self._to_raw)
        if self._to_plain:
            self._to_plain = _send(self._plain, self._to_plain)
            self._decrypt()

    def _receive(self) -> None:
        data = self._raw.recv(_CHUNK)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        self._decrypt()

    def _decrypt(self) -> None:
        """Have the next piece for our end ready, or note that the engine has said its last."""
        if self._to_plain or not self._raw_talks:
            return
        try:
            self._to_plain = self._tls.read(_CHUNK)
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self._raw_talks = False
        else:
            self._raw_talks = bool(self._to_plain)
        self._to_raw += self._outgoing.read()  # TLS may have to say something of its own

    def _take(self) -> None:
        data = self._plain.recv(_CHUNK)
        if data:
            self._tls.write(data)
        else:
            self._plain_talks = False
            self._say_goodbye()
        self._to_raw += self._outgoing.read()

    def _say_goodbye(self) -> None:
        """Tell the engine that nothing more comes; what it says goes on. Python takes anything unread at that moment for a fault, so read it first."""
        try:
            while self._raw_talks:
                piece = self._tls.read(_CHUNK)
                self._to_plain, self._raw_talks = self._to_plain + piece, bool(piece)
        except ssl.SSLWantReadError:
            with contextlib.suppress(ssl.SSLWantReadError):
                self._tls.unwrap()
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self._raw_talks = False


def _events(reading: bool, unsent: bytes) -> int:
    return (select.POLLIN if reading else 0) | (select.POLLOUT if unsent else 0)


def _send(connection: socket.socket, data: bytes) -> bytes:
    """Send what can be sent now; return the rest."""
    try:
        return data[connection.send(data) :]
    except BlockingIOError:
        return data
