"""Published ports, as `docker_args` name them. Pure."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from rock.errors import BadRequest


@dataclass(frozen=True)
class Port:
    """A published port: `host` 0 lets the engine choose."""

    container: int
    host: int = 0
    protocol: str = "tcp"
    address: str = ""


def parse_port(flag: str, value: str, default_address: str) -> Port:
    """Return the port that a `-p` flag publishes.

    Params:
        flag: as written, for messages.
        default_address: where it listens if the flag does not say.
    Errors: BadRequest.
    """
    match = re.fullmatch(r"(?:(?:(\[[^\]]+\]|[0-9.]+):)?(\d*):)?(\d+)(?:/(tcp|udp))?", value)
    if not match:
        raise BadRequest(f"docker_args {flag} {value!r}: expected [[address:]host port:]container port[/udp]")
    port = Port(int(match[3]), int(match[2] or 0), match[4] or "tcp", (match[1] or default_address).strip("[]"))
    try:
        ipaddress.ip_address(port.address)
    except ValueError as error:
        raise BadRequest(f"docker_args {flag} {value!r}: {error}") from error
    if not 1 <= port.container <= 65535 or port.host > 65535:
        raise BadRequest(f"docker_args {flag} {value!r}: ports are 1 to 65535")
    return port
