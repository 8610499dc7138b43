"""The output of a call as a node collects it: one stream with its end mark, kept within a limit. Pure."""

from __future__ import annotations

MARK_SPACE = 32
"""Bytes that the end mark of a stream may take; they do not count against a limit."""


class Collected:
    """One stream of one call, in the order it arrives, until the mark that ends it.

    A stream longer than the limit keeps its head and its tail; the middle stays with the keeper.
    """

    def __init__(self, id: str, limit: int) -> None:
        """
        Params:
            id: the call's id with the keeper, which its mark holds.
            limit: bytes that an answer may carry.
        """
        self._mark = b"\x1e" + id.encode() + b" "
        self._limit = limit
        self._head = bytearray()
        self._tail = bytearray()
        self._tail_start = 0
        self.total = 0
        """Bytes that the keeper holds, the mark included while it is not stripped."""
        self.exit_code: int | None = None
        """Set once the mark was found: the stream is complete."""

    @property
    def next_offset(self) -> int:
        """Offset of the next byte wanted."""
        return self._tail_start + len(self._tail) if self._tail_start else len(self._head)

    @property
    def omitted(self) -> int:
        """Bytes left out between head and tail."""
        return self._tail_start - len(self._head) if self._tail_start else 0

    def add(self, offset: int, part: bytes, total: int) -> None:
        """Take bytes from `offset` on; a part that does not continue what is here is ignored (asked twice)."""
        self.total = max(self.total, total)
        if offset != self.next_offset or self.exit_code is not None:
            return
        current = self._tail if self._tail_start else self._head
        current += part
        self._find_mark(current)
        if (
            self.exit_code is None
            and not self._tail_start
            and self.total > self._limit + MARK_SPACE
            and len(current) >= self._limit // 2
        ):
            del current[self._limit // 2 :]
            self._tail_start = max(self.total - self._limit // 2, len(current))

    def give_up(self, exit_code: int) -> None:
        """End a stream whose mark is lost beyond the keeper's own cap."""
        self.exit_code = exit_code

    def text(self, *, strip_newline: bool = False) -> str:
        """Return the output as text: UTF-8, other bytes as `\\xNN`. `strip_newline` drops one trailing newline."""
        head, tail = bytes(self._head), bytes(self._tail)
        if strip_newline:
            if tail.endswith(b"\n"):
                tail = tail[:-1]
            elif not tail and head.endswith(b"\n"):
                head = head[:-1]
        if not self._tail_start:
            return _decode(head)
        note = f"\n[... {self.omitted} bytes of {self.total} omitted ...]\n"
        return _decode(head) + note + _decode(tail)

    def raw(self) -> bytes:
        """Return the bytes collected, without a note on what is left out."""
        return bytes(self._head + self._tail)

    def _find_mark(self, current: bytearray) -> None:
        # The last one counts: a command may print its own mark, but the shell's comes after it. A shell that was interrupted while it reported
        # reports again; of marks side by side the first is the command's.
        at = current.rfind(self._mark)
        end = current.find(b"\x1e", at + len(self._mark)) if at >= 0 else -1
        if end < 0:
            return
        while (before := _mark_ending_at(current, at, self._mark)) is not None:
            at, end = before, at - 1
        self.exit_code = int(current[at + len(self._mark) : end])
        self.total -= len(current) - at
        del current[at:]


def cut_mark(data: bytes, id: str) -> tuple[bytes, bool]:
    """Return the bytes of `data` before the end mark of call `id`, and whether it was there. A mark that is cut off at the end is left out as well."""
    mark = b"\x1e" + id.encode() + b" "
    at = data.rfind(mark)
    if at >= 0:
        complete = data.find(b"\x1e", at + len(mark)) >= 0
        while complete and (before := _mark_ending_at(bytearray(data), at, mark)) is not None:
            at = before
        return data[:at], complete
    for length in range(min(len(mark) - 1, len(data)), 0, -1):
        if data.endswith(mark[:length]):
            return data[:-length], False
    return data, False


def _mark_ending_at(data: bytearray, end: int, mark: bytes) -> int | None:
    """Return where a whole mark begins that ends just before `end`, None if there is none."""
    start = data.rfind(mark, max(0, end - len(mark) - 4), end)
    if start < 0 or data[end - 1 : end] != b"\x1e" or not data[start + len(mark) : end - 1].isdigit():
        return None
    return start


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
