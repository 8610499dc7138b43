"""The section `proxy` of the configuration; the others are in app.config."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Proxy:
    """The way into sandboxes: HTTP, WebSockets and TCP to the programs that listen there."""

    host: str = ""
    """Where a node listens for API processes; empty: `node.host_ip`, which is also the address that they are given."""
    port: int = field(default=0, metadata={"least": 0})
    """0: any free one."""
    streams: int = field(default=1000, metadata={"least": 1})
    """Connections into the sandboxes of a node at the same time."""
    connect_seconds: float = field(default=10.0, metadata={"least": 0.1})
    """For the way to a sandbox, from the API to the program."""
    idle_seconds: float = field(default=1800.0, metadata={"least": 1})
    """After so long without a byte either way a connection is ended; a request is also given up when no answer to it begins."""
    request_limit: int = field(default=2 * 1024**3, metadata={"size": True})
    """Of a request's body; answers have no limit."""
