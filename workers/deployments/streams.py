"""The engine's stream format, as a pure incremental parser.

Over an attach or exec connection without a terminal an engine wraps output in frames: one byte that names the stream
(1 stdout, 2 stderr), three zero bytes, the payload's length as four bytes big-endian, the payload. Frames arrive cut
anywhere, so the parser keeps no more than an incomplete header; payloads pass through as they come.
"""

from __future__ import annotations

import struct

from rock.errors import Internal

HEADER = 8
STDOUT = 1
STDERR = 2


class Demultiplexer:
    """Splits the engine's frames into (stream, payload) pieces, however the bytes are cut."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._stream = STDOUT
        self._left = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Take the next bytes of the connection; return the payload pieces in them, in order.

        A piece need not be a whole frame: a payload is handed on as far as it has come.
        Params:
            data: any number of bytes.
        Returns:
            Pairs of `STDOUT` or `STDERR` and a non-empty piece.
        Errors: Internal when the bytes are no frames (a terminal's raw stream, or lost synchronisation).
        """
        pieces: list[tuple[int, bytes]] = []
        at, end = 0, len(data)
        while at < end:
            if self._left:
                piece = data[at : at + self._left]
                pieces.append((self._stream, piece))
                self._left -= len(piece)
                at += len(piece)
                continue
            wanted = HEADER - len(self._header)
            self._header += data[at : at + wanted]
            at += wanted
            if len(self._header) == HEADER:
                self._open_frame()
        return pieces

    @property
    def mid_frame(self) -> bool:
        """True when the connection ended here would have cut a frame."""
        return bool(self._left or self._header)

    def _open_frame(self) -> None:
        stream, padding, length = struct.unpack(">B3sI", self._header)
        if padding != b"\0\0\0" or stream > STDERR:
            raise Internal(f"the engine's stream is out of step: frame header {bytes(self._header).hex()}")
        # 0 is stdin echoed back, which engines fold into stdout.
        self._stream = STDERR if stream == STDERR else STDOUT
        self._left = length
        self._header.clear()
