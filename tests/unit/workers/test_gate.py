"""The gate of a node: who is let through, to what, and what is left."""

import contextlib
import json
import socket
import threading
from types import SimpleNamespace

import pytest

from app import gate as protocol
from app.config import load
from app.records import State
from rock.errors import NodeLost, PortClosed, Unavailable, from_envelope
from tests.wire import until
from workers.gate import Gate


class Node:
    """What a gate works with: a deployment whose sandbox is an echo, and what Redis would keep."""

    def __init__(self) -> None:
        self.gates, self.renewed, self.dialed, self.state = {}, [], [], State.RUNNING

    def dial(self, sandbox_id, port, timeout):
        self.dialed.append((sandbox_id, port))
        if port == 81:
            raise PortClosed("nothing listens on port 81")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            program, _ = listener.accept()
        threading.Thread(target=self._echo, args=(program,), daemon=True).start()
        return client

    def _echo(self, program):
        with program:
            while data := program.recv(65536):
                program.sendall(data)
            program.sendall(b"<end>")

    def put(self, node_id, gate):
        self.gates[node_id] = gate

    def drop(self, node_id, gate):
        assert self.gates.pop(node_id) == gate

    def renew(self, sandbox_id, now):
        self.renewed.append(sandbox_id)
        return SimpleNamespace(node="n1", state=self.state)


@pytest.fixture
def node():
    return Node()


@pytest.fixture
def gate(node):
    config = load(environ={"ROCK_NODE_ID": "n1", "ROCK_PROXY__STREAMS": "2"})
    made = Gate(config, node, node, node, lambda: 0.0)
    made.announce(0.0)
    yield made
    made.close()
    assert node.gates == {} and not made._open


def enter(node, sandbox="a", port=80, **changes):
    address = node.gates["n1"]
    known = protocol.Gate(**{**vars(address), **changes})
    return protocol.enter(known, "n1", protocol.Wish(sandbox, port), 10)


def received(connection):
    data = b""
    while piece := connection.recv(65536):
        data += piece
    return data


def test_bytes_pass_both_ways_and_so_does_the_end(gate, node):
    with enter(node) as ours:
        body = bytes(range(256)) * 40_000
        sender = threading.Thread(target=lambda: (ours.sendall(body), ours.shutdown(socket.SHUT_WR)))
        sender.start()
        assert received(ours) == body + b"<end>"
        sender.join()
    assert node.dialed == [("a", 80)]


def test_who_does_not_know_the_secret_gets_nowhere(gate, node):
    with pytest.raises(NodeLost):
        enter(node, secret="guessed")
    assert node.dialed == []


def test_what_is_overheard_opens_nothing(gate, node):
    address = node.gates["n1"]
    with socket.create_connection((address.host, address.port), 10) as first:
        heard = protocol._receive(first)["nonce"]
        wish = protocol.Wish("a", 80)
        said = {"sandbox": "a", "port": 80, "nonce": "n", "proof": wish.proof(address.secret, heard, "n")}
        first.sendall(protocol.pack(said))
        assert "proof" in protocol._receive(first)
    with socket.create_connection((address.host, address.port), 10) as second:
        protocol._receive(second)
        second.sendall(protocol.pack(said))
        assert received(second) == b""
    assert node.dialed == [("a", 80)]


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        protocol.LENGTH.pack(2**31),
        protocol.LENGTH.pack(3) + b"{]}",
        protocol.pack({"sandbox": "a", "port": "80"}),
        json.dumps({}).encode(),
    ],
)
def test_who_speaks_otherwise_is_let_go(gate, node, said):
    address = node.gates["n1"]
    with socket.create_connection((address.host, address.port), 10) as ours:
        protocol._receive(ours)
        with contextlib.suppress(OSError):  # it lets go without reading everything
            ours.sendall(said)
            ours.shutdown(socket.SHUT_WR)
            assert received(ours) == b""
    assert node.dialed == []


def test_a_gate_that_does_not_know_the_secret_is_not_the_nodes():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend():
            with listener.accept()[0] as theirs:
                theirs.sendall(protocol.pack({"nonce": "x"}))
                protocol._receive(theirs)
                theirs.sendall(protocol.pack({"proof": "made up"}))

        other = threading.Thread(target=pretend)
        other.start()
        with pytest.raises(NodeLost, match="secret"):
            address = protocol.Gate("127.0.0.1", listener.getsockname()[1], "s")
            protocol.enter(address, "n1", protocol.Wish("a", 80), 10)
        other.join()


def test_why_not_is_told(gate, node):
    with pytest.raises(PortClosed, match="81"):
        enter(node, port=81)
    with pytest.raises(Exception, match="sandbox_id") as refused:
        enter(node, sandbox="../a")
    assert refused.value.kind == "bad_request"
    assert from_envelope(PortClosed("x").to_envelope()).retryable


def test_there_is_a_most_of_connections_and_room_again_after_one(gate, node):
    first, second = enter(node), enter(node)
    with pytest.raises(Unavailable, match=r"proxy\.streams"):
        enter(node)
    first.close()
    third = until(lambda: _or_none(node), 20, "room")
    second.close()
    third.close()


def _or_none(node):
    try:
        return enter(node)
    except Unavailable:
        return None


def test_open_connections_hold_the_lease_until_the_sandbox_is_over(gate, node):
    with enter(node) as ours:
        gate.hold(1.0)
        assert node.renewed == ["a"]
        ours.sendall(b"x")
        assert ours.recv(10) == b"x"
        node.state = State.STOPPED
        gate.hold(2.0)
        ours.settimeout(10)
        assert ours.recv(10) == b""
    until(lambda: not gate._open, 10, "the end")
    gate.hold(3.0)
    assert node.renewed == ["a", "a"]


def test_an_address_that_is_not_ours_is_named(node):
    config = load(environ={"ROCK_NODE_ID": "n1", "ROCK_PROXY__HOST": "192.0.2.1"})
    made = Gate(config, node, node, node, lambda: 0.0)
    with pytest.raises(Unavailable, match=r"192\.0\.2\.1.*proxy\.host"):
        made.announce(0.0)
    made.close()
