"""A TLS connection that behaves like a plain socket, against a real server in this process."""

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from tests.wire import until
from workers.deployments import tls

MUCH = bytes(range(256)) * 20_000


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def folder(authority, tmp_path) -> Path:
    """The certificates of a client."""
    client = authority.issue_cert("node@example.org")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    client.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    client.private_key_pem.write_to_path(tmp_path / "key.pem")
    return tmp_path


@pytest.fixture
def serve(authority) -> Iterator[Callable[[Callable[[ssl.SSLSocket], None]], int]]:
    """A function that serves one connection by a function, and returns the port; the server asks for the client's certificate."""
    with contextlib.ExitStack() as stack:

        def begin(work: Callable[[ssl.SSLSocket], None], name: str = "127.0.0.1") -> int:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            authority.issue_cert(name).configure_cert(context)
            authority.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def run() -> None:
                with contextlib.suppress(OSError), listener.accept()[0] as raw:
                    with context.wrap_socket(raw, server_side=True) as connection:
                        work(connection)

            thread = threading.Thread(target=run, daemon=True)
            thread.start()
            stack.callback(thread.join, 10)
            return int(listener.getsockname()[1])

        yield begin


def everything(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def bridges() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "tls"]


def test_one_direction_ends_and_the_other_goes_on(serve, folder):
    def work(connection: ssl.SSLSocket) -> None:
        connection.sendall(everything(connection))

    with tls.dial("127.0.0.1", serve(work), tls.context(folder), 10) as connection:
        connection.sendall(MUCH)
        connection.shutdown(socket.SHUT_WR)
        assert everything(connection) == MUCH
    until(lambda: not bridges(), what="the end of the bridge")


def test_much_comes_while_one_direction_ends(serve, folder):
    def work(connection: ssl.SSLSocket) -> None:
        while data := connection.recv(65536):
            connection.sendall(data)
        connection.sendall(b"end")

    with tls.dial("127.0.0.1", serve(work), tls.context(folder), 10) as connection:
        got: list[bytes] = []
        reader = threading.Thread(target=lambda: got.append(everything(connection)))
        reader.start()
        connection.sendall(MUCH)
        connection.shutdown(socket.SHUT_WR)
        reader.join(10)
        assert got == [MUCH + b"end"]


def test_it_can_be_polled_and_peeked_into(serve, folder):
    asked = threading.Event()

    def work(connection: ssl.SSLSocket) -> None:
        asked.wait(10)
        connection.sendall(b"head\r\n\r\nbody")
        connection.recv(1)

    with tls.dial("127.0.0.1", serve(work), tls.context(folder), 10) as connection:
        poller = select.poll()
        poller.register(connection, select.POLLIN)
        assert not poller.poll(0)
        asked.set()
        assert poller.poll(10_000)
        assert connection.recv(4, socket.MSG_PEEK) == b"head" == connection.recv(4)
        connection.sendall(b"x")
        assert everything(connection) == b"\r\n\r\nbody"


def test_nothing_is_lost_on_a_slow_reader(serve, folder):
    with tls.dial("127.0.0.1", serve(lambda one: one.sendall(MUCH)), tls.context(folder), 10) as connection:
        assert everything(connection) == MUCH


def test_closing_our_end_closes_the_other(serve, folder):
    seen: list[bytes] = []
    port = serve(lambda connection: seen.append(connection.recv(10)))
    tls.dial("127.0.0.1", port, tls.context(folder), 10).close()
    until(lambda: not bridges() and seen == [b""], what="the end of both")


def test_a_server_that_cannot_be_trusted_is_refused(serve, folder):
    other = trustme.CA()
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        tls.dial("127.0.0.1", serve(everything, "127.0.0.2"), tls.context(folder), 10)
    other.cert_pem.write_to_path(folder / "ca.pem")
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        tls.dial("127.0.0.1", serve(everything), tls.context(folder), 10)


def test_a_missing_certificate_is_named(tmp_path):
    with pytest.raises(OSError):
        tls.context(tmp_path)
