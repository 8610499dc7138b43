"""The protocol between a node and a keeper: frames in, events out. Pure: bytes and values only.

Host to keeper, one header line of six words and, where length is not 0, that many bytes and a newline::

    VERB id a b length .
    KEEPER n - - n .        the script itself (a running keeper skips it)
    SYNC token - - 0 .      answered by `sync token`: what came before it is old
    PUT id p|i|u|t offset n . payload in parts, of call id: `p` the script, `i` the stdin, `u` what runs at a terminal, `t` what is typed there
                            (a dot at its end); offset `bN`: long, or may hold NUL
    OPEN id session -|user[:group] n .  new session, of that user; its first call is the payload
    RUN id session -|trap n .  payload: a line for the session's shell; `trap`: it may set an EXIT trap, whose output counts
    EXEC id pipe|file - n . payload: a script for a fresh subshell
    TTY id session RxC 0 .  run `u` at a new pseudo-terminal of R rows and C columns: a program; the session runs nothing else meanwhile
    TALK id session line|quit 0 .  type `t` to the program of the session; without one, `line` starts `u` as program `t<id>`
    TYPE id program - 0 .   type `t`; answered `closed` when the program's terminal has taken it
    SIZE id program RxC 0 . resize its terminal; answered `closed`
    WATCH program 1 off 0 . answered with `data` as soon as the program has printed more than that
    READ id stream off 0 .  part of a stream (1 stdout, 2 stderr)
    ASK id - - 0 .          what is known of a call: `unknown`, `reject id past` if it was acknowledged, or the event of its state again
    KILL id - - 0 .         end a running call, withdraw a waiting one
    GIVEN id program off 0 . call id gives the program's output up to that offset to its caller
    ACK id - - 0 .          the result is stored, forget the call
    KEEP id - - 0 .         likewise, but its output is asked for later: keep that until the next command of its session
    CLOSE id session - 0 .

Keeper to host, a line each::

    ready version · sync token · start id hundredths-of-a-second-ago · queued id · done id exit_code done|ended -|oom · reopened id former-exit-code · reject id reason · unknown id · closed id · ended session exit_code
    talk id program given from    call id talks to that program, whose output was given to others up to `given` and answers this call after `from`
    data id stream offset length total      followed by that many bytes

`start` comes only for a command that runs for 20 ms or more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

MAX_TEXT = 16 * 1024
"""Bytes of payload in a text frame, which bash reads at 40 ns a byte; from there on the fork of `head` is cheaper."""
MAX_PAYLOAD = 1024 * 1024
"""Bytes of payload in one binary frame; more goes in several `PUT`s."""

PADDING = b"x" * (MAX_TEXT + 4096) + b"\n"
"""Completes a header or a text frame that a host that died left half sent; the keeper drops the result."""
LONG_PADDING = b"x" * (MAX_PAYLOAD + 4096) + b"\n"
"""The same for a binary frame: for a keeper that does not answer. What is too much is read byte by byte, so it is not sent to every keeper."""

STDOUT, STDERR = 1, 2


@dataclass(frozen=True)
class Event:
    """One thing a keeper said."""

    kind: str
    """First word of the line."""
    id: str
    """Call id, session key or token; empty for `ready`'s."""
    args: tuple[str, ...] = ()
    data: bytes = b""
    """Payload of `data`."""


def session_key(name: str) -> str:
    """Return the name that the keeper uses for session `name`: 16 hex digits, safe in a path and a line."""
    return hashlib.blake2s(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def frame(verb: str, id: str, a: str = "-", b: str = "-", payload: bytes = b"") -> bytes:
    """Return one frame. `payload` must fit MAX_PAYLOAD, and hold no NUL unless `b` says so."""
    head = f"{verb} {id} {a} {b} {len(payload)} .\n".encode()
    return head + payload + b"\n" if payload else head


def put(id: str, kind: str, data: bytes) -> Iterator[bytes]:
    """Yield the frames that store `data` as the script (`p`) or stdin (`i`) of call `id`."""
    binary = "b" if b"\0" in data or len(data) > MAX_TEXT else ""
    for offset in range(0, len(data), MAX_PAYLOAD):
        yield frame("PUT", id, kind, f"{binary}{offset}", data[offset : offset + MAX_PAYLOAD])


def submit(verb: str, id: str, a: str, script: bytes, stdin: bytes | None = None, flag: str = "-") -> Iterator[bytes]:
    """Yield the frames of an OPEN, RUN or EXEC with its script (no NUL) and, for EXEC, its standard input."""
    if stdin:
        yield from put(id, "i", stdin)
    if len(script) <= MAX_TEXT:
        yield frame(verb, id, a, flag, script)
    else:
        yield from put(id, "p", script)
        yield frame(verb, id, a, flag)


def terminal(id: str, session: str, size: str, script: bytes) -> Iterator[bytes]:
    """Yield the frames that run `script` at a terminal of `size` (`rows x columns`, without blanks)."""
    yield from put(id, "u", script)
    yield frame("TTY", id, session, size)


def talk(id: str, session: str, line: bytes, script: bytes | None) -> Iterator[bytes]:
    """Yield the frames that type `line` to a session's program, or start `script` where there is none; None: only the former."""
    yield from put(id, "t", line + b".")
    if script is not None:
        yield from put(id, "u", script)
    yield frame("TALK", id, session, "quit" if script is None else "line")


def keys(id: str, program: str, data: bytes) -> Iterator[bytes]:
    """Yield the frames that type `data` to a program."""
    yield from put(id, "t", data + b".")
    yield frame("TYPE", id, program)


def watch(program: str, offset: int) -> bytes:
    """Return the frame that asks for a program's output beyond `offset`, to be sent as soon as there is any."""
    return frame("WATCH", program, str(STDOUT), str(offset))


def boot(script: bytes, token: str, *, fresh: bool, padding: bytes = PADDING) -> bytes:
    """Return what is sent first on every attach; `fresh` when nobody can have written to this keeper before."""
    return (b"" if fresh else padding) + frame("KEEPER", str(len(script)), payload=script) + frame("SYNC", token)


KINDS = frozenset(
    {"", "ready", "sync", "start", "queued", "data", "done", "ended", "reopened", "closed", "unknown", "reject", "talk"}
)
"""The first words of a keeper's lines."""

LONGEST_LINE = 64 * 1024
"""Bytes of a line of the keeper's; what is longer comes from somebody else in its sandbox."""

LONGEST_SLICE = 160 * 1024 * 1024
"""Bytes of one slice of output: mostly a megabyte, but all that a stream keeps (FILE_CAP) where an image has no `head` to cut it with."""


class Parser:
    """Turns the keeper's byte stream into events, whatever the chunks. Silent until `sync <token>` was seen."""

    def __init__(self, token: str) -> None:
        """`token`: the one sent with :func:`boot`, new for each attach."""
        self._mark = f"\nsync {token}\n".encode()
        self._synced = False
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[Event]:
        """Take the next bytes, return the events they complete. Raises ValueError on a line that no keeper sends."""
        self._buffer += chunk
        events: list[Event] = []
        if not self._synced:
            at = self._buffer.find(self._mark)
            if at < 0:
                del self._buffer[: max(0, len(self._buffer) - len(self._mark))]
                return events
            del self._buffer[: at + len(self._mark)]
            self._synced = True
            events.append(Event("sync", ""))
        position = 0
        while (event := self._next(position)) is not None:
            position, found = event
            if found.kind:
                events.append(found)
        del self._buffer[:position]
        return events

    def _next(self, position: int) -> tuple[int, Event] | None:
        # Whoever is root in a sandbox can write to its keeper's stdout, also between a line of it and the next.
        end = self._buffer.find(b"\n", position)
        if (len(self._buffer) if end < 0 else end) - position > LONGEST_LINE:
            raise ValueError("no keeper sends so long a line")
        if end < 0:
            return None
        kind, *words = self._buffer[position:end].decode("ascii").split(" ")
        end += 1
        if kind not in KINDS:
            raise ValueError("no keeper sends such a line")
        if kind != "data":
            return end, Event(kind, words[0] if words else "", tuple(words[1:]))
        if len(words) != 5 or not all(word.isdigit() for word in words[1:]) or int(words[3]) > LONGEST_SLICE:
            raise ValueError("no keeper sends such a line of data")
        length = int(words[3])
        if len(self._buffer) < end + length:
            return None
        return end + length, Event(kind, words[0], tuple(words[1:]), bytes(self._buffer[end : end + length]))
