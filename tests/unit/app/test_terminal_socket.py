"""The WebSocket of a terminal, with clients that leave or flood: real sockets, a node that answers when the test lets it."""

import json
import socket
import threading
from types import SimpleNamespace

import pytest
from flask import Flask

from app.api import terminal
from app.api.sockets import Whole
from app.auth import Identity
from app.calls import Route
from app.output import Part
from app.terminal import Desk
from rock.errors import success
from tests.wire import PREFIX, until

UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
           "Sec-WebSocket-Version": "13"}  # fmt: skip


def frame(opcode, payload):
    """Return a frame of a client, masked with zeros."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xff" + size.to_bytes(8, "big")
    return bytes([0x80 | opcode]) + length + bytes(4) + payload


class Node:
    """What a terminal asks for: keys are taken when `takes` is set, the screen stays empty."""

    def __init__(self) -> None:
        self.takes, self.over, self.typed = threading.Event(), threading.Event(), []
        self.takes.set()

    def clock(self):
        return 1000.0

    def ask(self, call, task, **options):
        if call.route == Route.TERMINAL_INPUT:
            self.typed.append(call.body["keys"])
            assert self.takes.wait(20)
        return json.dumps(success({}))

    def watch(self, call_id, request_id, offset, ask, seconds):
        assert self.over.wait(20)
        return Part(b"", offset, done=True)

    def result(self, *args):
        return json.dumps(success({}))

    def find(self, *args):
        return SimpleNamespace(done=True)

    def drop(self, call_id):
        """Nothing is kept here."""


class Place:
    """An API process with terminals; `open` is a client's side of one more."""

    def __init__(self) -> None:
        self.node, self.threads, self.sockets = Node(), [], []
        self.desk = Desk(self.node, self.node, self.node, set())
        keyring = SimpleNamespace(identify=lambda headers: Identity())
        self.app = Flask("terminals")
        terminal.register(self.app, SimpleNamespace(keyring=keyring, terminals=self.desk))

    def open(self):
        ours, theirs = socket.socketpair()
        ours.settimeout(20)
        self.sockets.append(ours)
        self.threads.append(threading.Thread(target=self._serve, args=(theirs,)))
        self.threads[-1].start()
        begun = len(self.threads)
        until(lambda: len(self.desk.closers) == begun, 20, "the terminal")
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += ours.recv(1)
        assert b" 101 " in answer
        return ours

    def _serve(self, theirs):
        # The answer of a connection that was a WebSocket is none.
        with pytest.raises((StopIteration, RuntimeError)):
            self.app.test_client().get(
                f"{PREFIX}/sandboxes/a/terminal", headers=UPGRADE, environ_overrides={"werkzeug.socket": theirs}
            )

    def close(self):
        self.node.takes.set()
        self.node.over.set()
        for ours in self.sockets:
            ours.close()
        for thread in self.threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in self.threads) and not self.desk.closers


@pytest.fixture
def place():
    made = Place()
    yield made
    made.close()


def test_the_end_of_the_service_is_told_to_all_although_some_have_left(place):
    """Those who have left are still among the open ones while the program takes what they typed."""
    place.node.takes.clear()
    clients = [place.open() for _ in range(5)]
    for ours in clients[:3]:
        ours.sendall(frame(2, b"x"))
    until(lambda: len(place.node.typed) == 3, 20, "the keys")
    for ours in clients[:3]:
        ours.sendall(frame(8, (1000).to_bytes(2, "big")))
        while ours.recv(100):
            pass  # until it is closed
    place.desk.close_all()
    for ours in clients[3:]:
        assert ours.recv(100)[2:] == (1012).to_bytes(2, "big") + b"the service ends"


@pytest.mark.parametrize("size", [1, 64 * 1024])
def test_who_sends_faster_than_the_program_takes_is_cut_off(place, size, monkeypatch):
    monkeypatch.setattr(terminal, "MOST_WAITING", 2**19)
    place.node.takes.clear()
    ours = place.open()
    ours.sendall(frame(2, b"x"))
    until(lambda: place.node.typed, 20, "the first key")
    many = frame(2, b"y" * size) * max(1, 65536 // (size + 6))
    sent = 0
    with pytest.raises(OSError):
        while sent < 2**26:
            sent += ours.send(many)
    assert sent < 2**21
    place.node.takes.set()
    place.threads[0].join(20)
    assert place.node.typed == ["x"], "what waited is dropped"


def test_keys_that_came_meanwhile_are_typed_in_order_and_in_pieces(place):
    place.node.takes.clear()
    ours = place.open()
    ours.sendall(frame(2, b"a"))
    until(lambda: place.node.typed, 20, "the first key")
    for letter in b"bcd":
        ours.sendall(frame(2, bytes([letter]) * 700_000))
    ours.sendall(frame(9, b"seen"))
    assert ours.recv(6) == b"\x8a\x04seen", "all was read before the program goes on"
    place.node.takes.set()
    until(lambda: sum(map(len, place.node.typed)) == 2_100_001, 20, "all keys")
    assert "".join(place.node.typed) == "a" + "b" * 700_000 + "c" * 700_000 + "d" * 700_000


class Trickle:
    """A connection that takes a few bytes at a time, as one does whose buffer is full."""

    def __init__(self) -> None:
        self.got, self.starts = b"", 0

    def send(self, data):
        self.got += bytes(data[:100])
        return min(100, len(data))

    def sendall(self, data):
        self.starts += 1
        while data:
            data = data[self.send(data) :]


def test_a_message_goes_out_whole_however_little_the_connection_takes():
    taken = Trickle()
    assert Whole(taken).send(b"x" * 1000) == 1000
    assert (taken.got, taken.starts) == (b"x" * 1000, 1)
