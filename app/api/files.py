"""Routes about files."""

import os
from collections.abc import Iterator

from flask import Response, request

from app.api.endpoint import Incoming, path_id, query_flag, query_text
from app.calls import Route
from app.services import Services
from rock.errors import BadRequest


def read_file(services: Services, incoming: Incoming) -> str:
    """Read a text file."""
    return services.commands.run(Route.READ_FILE, incoming.data, incoming.ask)


def write_file(services: Services, incoming: Incoming) -> str:
    """Write a text file."""
    return services.commands.run(Route.WRITE_FILE, incoming.data, incoming.ask)


def upload(services: Services, incoming: Incoming) -> str:
    """Upload a file of any kind; the part `file` is on disk already if it is large."""
    part = request.files.get("file")
    if part is None:
        raise BadRequest("file: is required, as a part of the multipart body with a file name")
    size = part.stream.seek(0, os.SEEK_END)
    return services.commands.upload(incoming.data, part.stream, part.filename or "", size, incoming.ask)


def download(services: Services, incoming: Incoming) -> Response:
    """Send a file as it is, or a file or folder as a tar."""
    archive = query_flag("archive")
    parts = services.downloads.read(path_id(incoming), query_text("path"), archive, incoming.ask)
    first = next(parts, b"")  # an error before the first byte is an ordinary answer; one after it breaks the connection
    kind = "application/x-tar" if archive else "application/octet-stream"
    return Response(_whole(first, parts), mimetype=kind, headers={"Cache-Control": "no-store"})


def _whole(first: bytes, parts: Iterator[bytes]) -> Iterator[bytes]:
    """Yield all parts; closing it closes them."""
    yield first
    yield from parts
