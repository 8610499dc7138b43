"""Routes about files."""

import os

from flask import request

from app.api.endpoint import Incoming
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
