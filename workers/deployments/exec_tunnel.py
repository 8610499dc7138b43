"""A connection to a program in a container by way of a process beside it: where the container's network is out of reach.

It works with any engine, on any machine, and costs what starting a process there does (some 80 ms). The process is bash, which
connects, and two `cat`. Bash cannot end one direction of a connection alone, so the end of what is sent ends both.
"""

from __future__ import annotations

import contextlib
import socket
import threading

from rock.errors import BadRequest, PortClosed, Unavailable
from workers.deployments.streams import STDOUT, Demultiplexer
from workers.deployments.wire import CHUNK, Answer

_SCRIPT = """{ exec 3<>"/dev/tcp/127.0.0.1/$1" || exec 3<>"/dev/tcp/::1/$1"; } 2>/dev/null || exit
type cat >/dev/null 2>&1 || { printf '%s' -; exit; }
exec 4<&0
{ cat <&4 >&3; kill "$$"; } >/dev/null 2>&1 &
printf '%s' +
exec cat <&3 4<&-"""
ENVIRONMENT = {"BASH_ENV": ""}
"""What a container's own variables must not set: a file that bash would read first."""
_END = 10.0
"""Seconds for the process to end once nothing is sent to it any more."""


def argv(port: int) -> list[str]:
    """Return the process that connects to a port of the loopback."""
    return ["bash", "--noprofile", "--norc", "-c", _SCRIPT, "rock-port", str(port)]


def tunnel(answer: Answer, sandbox_id: str, port: int, timeout: float) -> socket.socket:
    """Return a socket whose other end is the program.

    Params:
        answer: the hijacked connection of a process with `argv(port)` and ENVIRONMENT.
        timeout: seconds for it to connect.
    Errors: PortClosed; BadRequest where the image has no `cat`; Unavailable when the engine breaks the connection.
    """
    connection, frames = answer.connection, Demultiplexer()
    try:
        connection.settimeout(timeout)
        said = b""
        while not said and (data := connection.recv(CHUNK)):
            said = b"".join(piece for stream, piece in frames.feed(data) if stream == STDOUT)
        if said[:1] == b"-":
            text = (
                f"port {port} of sandbox {sandbox_id} can be reached by a process in it only, and its image lacks `cat`"
            )
            raise BadRequest(text, sandbox_id=sandbox_id)
        if said[:1] != b"+":
            raise closed(sandbox_id, port)
    except TimeoutError as error:
        connection.close()
        raise closed(sandbox_id, port, error) from error
    except OSError as error:
        connection.close()
        raise Unavailable(f"the container engine broke a connection into sandbox {sandbox_id}: {error}") from error
    except BaseException:
        connection.close()
        raise
    connection.settimeout(None)
    ours, theirs = socket.socketpair()
    for work, arguments in ((_out, (connection, theirs, frames, said[1:])), (_in, (theirs, connection))):
        threading.Thread(target=work, args=arguments, name="exec-tunnel", daemon=True).start()
    return ours


def closed(sandbox_id: str, port: int, error: OSError | None = None) -> PortClosed:
    """Return the error for a port where nobody takes a connection."""
    why = "" if error is None or isinstance(error, ConnectionRefusedError) else f" ({error.strerror or error})"
    return PortClosed(
        f"nothing listens on port {port} of sandbox {sandbox_id}{why}: start the program there, and try again once it is up",
        sandbox_id=sandbox_id,
        port=port,
    )


def _out(connection: socket.socket, sink: socket.socket, frames: Demultiplexer, data: bytes) -> None:
    """Move what the program says, to its end, and then give both up."""
    with connection, sink, contextlib.suppress(OSError):
        sink.sendall(data)
        while got := connection.recv(CHUNK):
            for stream, piece in frames.feed(got):
                if stream == STDOUT:
                    sink.sendall(piece)
        sink.shutdown(socket.SHUT_RDWR)


def _in(source: socket.socket, connection: socket.socket) -> None:
    """Move what is sent to the program, and pass the end on; the rest is `_out`'s."""
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(_END)
