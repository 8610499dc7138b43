"""The way to programs that listen in a sandbox: HTTP of any method, and WebSockets, under /sandboxes/{id}/proxy.

Answers are the program's own, status and all. What goes wrong on the way is answered with an envelope and an HTTP status that
says so to any client (reply.on_the_way), and is told from the program's words by the header X-ROCK-Error.
"""

import logging
import socket
import time
from collections.abc import Iterator

from flask import Blueprint, Flask, Response, request
from flask.blueprints import BlueprintSetupState
from gunicorn.http.errors import ParseException
from werkzeug.datastructures import Headers
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge
from werkzeug.routing import PathConverter, Rule

from app import faults
from app.api import portforward, reply, sockets
from app.api.endpoint import PREFIX
from app.exchange import Exchange, Head, Read
from app.forwarding import PORT_HEADER, Fields, Target, answer_headers, find_target, request_headers
from app.keys import check_name
from app.services import Services
from app.tunnels import Tunnels, join
from rock.errors import BadRequest, ProgramFault, TooLarge, Unavailable

log = logging.getLogger(__name__)

PIECE, LIVE_PIECE = 256 * 1024, 16 * 1024
"""Bytes of a request's body that are passed on at once; fewer of one that may be made while it is sent (it has no length)."""
WITH_BODY = ("POST", "PUT", "PATCH")
"""Methods of which servers want to know the body's length, be it 0."""


class _Anything(PathConverter):
    """The rest of a path, empty or with slashes in a row as it may be."""

    part_isolating = False
    regex = ".*?"


def register(app: Flask, services: Services) -> None:
    """Add the routes to the application."""
    app.url_map.converters["anything"] = _Anything
    routes = Blueprint("proxy", __name__)

    def add(state: BlueprintSetupState) -> None:
        for path in ("/proxy", "/proxy/<anything:rest>"):
            rule = f"{PREFIX}/sandboxes/<sandbox_id>{path}"
            for name, websocket in (("http", False), ("websocket", True)):
                # Not by add_url_rule, which wants to know the methods: any may come.
                state.app.url_map.add(
                    Rule(rule, endpoint=f"proxy.{name}", methods=None, websocket=websocket, merge_slashes=False)
                )
        state.app.view_functions["proxy.http"] = lambda **path: _serve(services, path["sandbox_id"], websocket=False)
        state.app.view_functions["proxy.websocket"] = lambda **path: _serve(
            services, path["sandbox_id"], websocket=True
        )

    routes.record(add)
    routes.add_url_rule(
        f"{PREFIX}/sandboxes/<sandbox_id>/portforward", "portforward",
        lambda sandbox_id: portforward.serve(services, sandbox_id), websocket=True,
    )  # fmt: skip
    faults.register(routes, reply.on_the_way)
    app.register_blueprint(routes)


def _serve(services: Services, sandbox_id: str, *, websocket: bool) -> Response:
    """Pass one request on, and its answer back."""
    started = time.monotonic()
    identity = services.keyring.identify(request.headers)
    if websocket:
        sockets.check_origin("a WebSocket of a sandbox")
    base = f"{PREFIX}/sandboxes/{check_name(sandbox_id, 'sandbox_id')}/proxy"
    target = find_target(request.environ["RAW_URI"], base, request.headers.get(PORT_HEADER))
    fields = request_headers(request.headers, target, request.host, request.scheme, services.keyring.is_key)
    framing, read = _body(services.tunnels.settings.request_limit)
    framing += [("Connection", "Upgrade"), ("Upgrade", "websocket")] if websocket else [("Connection", "close")]
    passing = _Passing(
        services.tunnels, services.tunnels.connect(sandbox_id, target.port, identity), sandbox_id, target
    )
    try:
        head = passing.exchange.ask(request.method, target.path, fields + framing, read)
        about = {"sandbox_id": sandbox_id, "port": target.port, "status": head.status}
        log.debug("proxy %s", request.method, extra={**about, "seconds": round(time.monotonic() - started, 4)})
        if head.upgraded:
            return passing.joined(head, answer_headers(head.headers, target, request.host))
        return _answer(head, answer_headers(head.headers, target, request.host), passing)
    except ProgramFault as error:
        passing.close()
        if services.tunnels.ending:
            raise Unavailable("this API process ends; send the request again, if it may be done twice") from error
        raise
    except BaseException:
        passing.close()
        raise


def _body(limit: int) -> tuple[Fields, Read | None]:
    """Return the headers that frame the request's body, and what gives it piece by piece (None: there is none).

    Raises RequestEntityTooLarge when it says that it is longer than `limit` bytes.
    """
    request.max_content_length = limit
    length = request.content_length
    if length is None and "chunked" not in request.headers.get("Transfer-Encoding", "").lower():
        return ([("Content-Length", "0")] if request.method in WITH_BODY else []), None
    stream, size = request.stream, LIVE_PIECE if length is None else PIECE

    def read() -> bytes:
        try:
            piece: bytes = stream.read(size)
            return piece
        except RequestEntityTooLarge as error:
            raise TooLarge(f"the request's body is larger than {limit} bytes (proxy.request_limit)") from error
        except ClientDisconnected as error:
            raise ConnectionResetError("the caller has left") from error
        except ParseException as error:
            raise BadRequest("the request's body breaks the rules of chunked coding") from error

    return ([("Content-Length", str(length))] if length is not None else [("Transfer-Encoding", "chunked")]), read


def _answer(head: Head, fields: Fields, passing: "_Passing") -> Response:
    """Return a program's answer, its body still to come."""
    response = Response(passing, f"{head.status} {head.reason}", direct_passthrough=True)
    # Whatever headers it has, and no other: a type that it does not name is not for us to guess.
    response.headers = Headers(fields)
    response.automatically_set_content_length = False
    return response


class _Passing:
    """A request on its way: the connection into the sandbox is held until it is closed. The body of the answer, to the server."""

    def __init__(self, tunnels: Tunnels, connection: socket.socket, sandbox_id: str, target: Target) -> None:
        self._tunnels, self._connection = tunnels, connection
        self._caller = sockets.connection() if "gunicorn.socket" in request.environ else None
        where = f"the program on port {target.port} of sandbox {sandbox_id}"
        self.exchange = Exchange(connection, where, tunnels.settings.idle_seconds, self._caller)

    def __iter__(self) -> Iterator[bytes]:
        return self.exchange.body()

    def joined(self, head: Head, fields: Fields) -> Response:
        """Carry an upgraded connection to its end."""
        caller = sockets.connection()
        lines = [f"HTTP/1.1 101 {head.reason}", "Connection: Upgrade", "Upgrade: websocket"]
        lines += [f"{name}: {value}" for name, value in fields]
        try:
            with self._tunnels.lasting(self._connection):
                caller.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + self.exchange.take_over())
                join(caller, self._connection, self._tunnels.settings.idle_seconds)
        except OSError as error:
            log.debug("proxy: the caller of a WebSocket left: %s", error)
        finally:
            self.close()
        return sockets.Spent()

    def close(self) -> None:
        """Give the connection up."""
        self.exchange.close()
        self._tunnels.release(self._connection)
