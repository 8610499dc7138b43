"""The least that answers HTTP: what a measure gives against it is the cost of the measuring program itself."""

import selectors
import socket
import sys

from bench.wire import RECEIVE, MessageReader

ENVELOPE = (
    b'{"error":null,"message":null,"result":{"exit_code":0,"expect_string":"","failure_reason":"","output":"hi",'
    b'"session_type":"bash"},"status":"Success"}'
)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(ENVELOPE) + ENVELOPE


def main() -> None:
    """Say the port on stdout, then answer every request with the envelope of `echo hi` until killed."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener, selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        readers: dict[socket.socket, MessageReader] = {}
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    readers[connection] = MessageReader()
                    selector.register(connection, selectors.EVENT_READ, connection)
                elif not _answer(key.data, readers):
                    selector.unregister(key.data)
                    key.data.close()
                    del readers[key.data]


def _answer(connection: socket.socket, readers: dict[socket.socket, MessageReader]) -> bool:
    """Answer if the request is complete; False when the client has gone."""
    try:
        piece = connection.recv(RECEIVE)
        if piece and readers[connection].feed(piece) is not None:
            readers[connection] = MessageReader()
            connection.sendall(ANSWER)
    except ConnectionError:
        return False
    return bool(piece)


if __name__ == "__main__":
    main()
