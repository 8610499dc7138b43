"""Raw connections, against a small real server on a unix socket."""

import contextlib
import io
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rock.errors import BadRequest, SandboxGone, Unavailable
from workers.deployments import wire
from workers.deployments.exec_stream import EngineExec
from workers.deployments.wire import AttachedStream, Endpoint

Talk = Callable[[socket.socket, bytes], None]
UPGRADED = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[Talk], Endpoint]]:
    """A function that serves one connection by `talk(connection, head)` and returns where."""
    threads: list[threading.Thread] = []

    def start(talk: Talk) -> Endpoint:
        listener = socket.socket(socket.AF_UNIX)
        path = tmp_path / f"{len(threads)}.sock"
        listener.bind(str(path))
        listener.listen(1)

        def run() -> None:
            with listener, contextlib.suppress(OSError):
                with listener.accept()[0] as connection:
                    head = b""
                    while b"\r\n\r\n" not in head:
                        head += connection.recv(1)
                    talk(connection, head)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return Endpoint(f"unix://{path}", timeout=5)

    yield start
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()


def frame(payload: bytes, stream: int = 1) -> bytes:
    return struct.pack(">B3xI", stream, len(payload)) + payload


def readable(descriptor: int, seconds: float = 2.0) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def attach(endpoint: Endpoint) -> AttachedStream:
    return AttachedStream(wire.request(endpoint, "POST", "/attach", upgrade=True), "s1")


def test_what_comes_with_the_head_is_readable_by_the_descriptor(serve):
    stream = attach(serve(lambda connection, head: connection.sendall(UPGRADED + frame(b"early") + frame(b"err", 2))))
    assert readable(stream.fileno())
    assert stream.receive() == b"early"
    while (last := stream.receive()) is not None:
        assert last == b""
        assert readable(stream.fileno())
    stream.close()


def test_a_stream_never_blocks(serve):
    go = threading.Event()

    def talk(connection: socket.socket, head: bytes) -> None:
        connection.sendall(UPGRADED)
        go.wait(5)

    stream = attach(serve(talk))
    assert stream.receive() == b""
    sent = 0
    while accepted := stream.send(b"x" * 65536):
        sent += accepted
    assert sent > 0
    go.set()
    stream.close()
    stream.close()


def test_sending_to_a_dead_engine_says_that_the_sandbox_is_out_of_reach(serve):
    stream = attach(serve(lambda connection, head: connection.sendall(UPGRADED)))
    assert readable(stream.fileno())
    with pytest.raises(SandboxGone, match="s1"):
        for _ in range(3):
            stream.send(b"x")
    stream.close()


def test_the_request_is_what_was_asked_for(serve):
    seen: list[bytes] = []

    def talk(connection: socket.socket, head: bytes) -> None:
        seen.append(head + connection.recv(100))
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")

    answer = wire.request(serve(talk), "POST", "/x?y=1", headers={"A": "b"}, body=b"{}")
    answer.connection.close()
    assert seen[0].startswith(b"POST /x?y=1 HTTP/1.0\r\n")
    assert b"\r\nA: b\r\n" in seen[0]
    assert b"Content-Length: 2\r\n" in seen[0]
    assert seen[0].endswith(b"\r\n\r\n{}")


def test_a_file_is_sent_whole(serve):
    got: list[int] = []

    def talk(connection: socket.socket, head: bytes) -> None:
        left = 300_000
        while left:
            left -= len(connection.recv(min(left, 65536)))
        got.append(left)
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")

    wire.request(serve(talk), "POST", "/load", file=io.BytesIO(b"x" * 300_000)).connection.close()
    assert got == [0]


@pytest.mark.parametrize(
    ("body", "text"), [(b'{"message": "no such thing"}', "no such thing"), (b"plain", "plain"), (b"", "HTTP 404")]
)
def test_an_errors_text_is_read_though_the_connection_stays_open(serve, body, text):
    go = threading.Event()

    def talk(connection: socket.socket, head: bytes) -> None:
        connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        go.wait(5)

    answer = wire.request(serve(talk), "POST", "/x", upgrade=True)
    assert (answer.status, answer.text()) == (404, text)
    go.set()


def test_lines_come_as_they_are_sent_however_cut(serve):
    def talk(connection: socket.socket, head: bytes) -> None:
        for part in (b'HTTP/1.0 200 OK\r\n\r\n{"a"', b': 1}\n\n{"a": 2}\n{"a"', b": 3}"):
            connection.sendall(part)

    answer = wire.request(serve(talk), "GET", "/events")
    assert [line["a"] for line in wire.json_lines(answer, lambda: True)] == [1, 2, 3]


def test_silent_lines_are_left_when_told(serve):
    go = threading.Event()

    def talk(connection: socket.socket, head: bytes) -> None:
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
        go.wait(5)

    looks = iter([True, True, False])
    answer = wire.request(serve(talk), "GET", "/events")
    assert list(wire.json_lines(answer, lambda: next(looks))) == []
    assert answer.connection.fileno() == -1
    go.set()


def test_an_engine_that_says_nothing_is_unavailable(serve):
    with pytest.raises(Unavailable, match="broke the connection"):
        wire.request(serve(lambda connection, head: None), "GET", "/x")


def test_an_engine_that_is_not_there_is_unavailable(tmp_path):
    with pytest.raises(Unavailable, match="does not answer"):
        wire.request(Endpoint(f"unix://{tmp_path}/none.sock"), "GET", "/x")


def test_an_unknown_kind_of_address_is_refused():
    with pytest.raises(BadRequest, match="ssh://"):
        Endpoint("https://host:2376").connect()


def test_ssh_is_a_program_between_us_and_the_engine(tmp_path):
    program = tmp_path / "ssh"
    program.write_text(
        f'#!/bin/sh\necho "$@" >{tmp_path}/args\nread -r line\nprintf "HTTP/1.0 200 %s\\r\\n\\r\\n" OK\n'
    )
    program.chmod(0o755)
    answer = wire.request(Endpoint("ssh://me@host:2222", timeout=5, ssh=(str(program),)), "GET", "/x")
    assert answer.status == 200
    answer.connection.close()
    assert (tmp_path / "args").read_text() == "-p 2222 -- me@host docker system dial-stdio\n"


def echo(connection: socket.socket, head: bytes) -> None:
    """A program that copies stdin to stdout until its end, in frames."""
    connection.sendall(UPGRADED)
    while data := connection.recv(65536):
        connection.sendall(frame(data))
    connection.sendall(frame(b"done", 2))


def run(endpoint: Endpoint, stdin: list[bytes] | None, killed: list[str]) -> EngineExec:
    answer = wire.request(endpoint, "POST", "/exec", upgrade=True)
    return EngineExec(answer, stdin, lambda head: 7, lambda: killed.append("killed"), idle=0.5)


def test_much_goes_in_and_out_at_once(serve):
    killed: list[str] = []
    with run(serve(echo), [b"", b"a" * 3_000_000, b"b"], killed) as process:
        out = b"".join(process)
    assert out == b"a" * 3_000_000 + b"b"
    assert (process.exit_code, process.stderr, killed) == (7, b"done", [])


def test_a_process_that_is_left_is_killed_once(serve):
    killed: list[str] = []
    with run(serve(echo), [b"x"] * 3, killed) as process:
        for _ in process:
            break
    process.close()
    assert killed == ["killed"]


def test_a_failing_source_kills_the_process_before_its_stdin_ends(serve):
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise ValueError("the caller went away")

    killed: list[str] = []
    with pytest.raises(ValueError, match="went away"), run(serve(echo), broken(), killed) as process:  # type: ignore[arg-type]
        list(process)
    assert killed == ["killed"]


def test_a_transfer_that_stands_still_is_given_up(serve):
    go = threading.Event()

    def talk(connection: socket.socket, head: bytes) -> None:
        connection.sendall(UPGRADED)
        go.wait(5)

    killed: list[str] = []
    with pytest.raises(Unavailable, match="stood still"), run(serve(talk), None, killed) as process:
        list(process)
    assert killed == ["killed"]
    go.set()
