"""What the views work with, built once per process by `create_app`."""

from dataclasses import dataclass

from app.afterlife import Afterlife
from app.auth import Keyring
from app.commands import Commands
from app.commits import Commits
from app.database import Client
from app.dispatch import Dispatch
from app.downloads import Downloads
from app.fleet import Fleet
from app.gem.environments import Environments
from app.images import Images
from app.lifecycle import Lifecycle
from app.metrics import Metrics
from app.node_store import NodeStore
from app.output import Output
from app.results import ResultStore
from app.roster import Roster
from app.terminal import Desk
from app.tunnels import Tunnels
from app.watch import Watch


@dataclass(frozen=True)
class Services:
    """The parts of the API process."""

    keyring: Keyring
    lifecycle: Lifecycle
    afterlife: Afterlife
    roster: Roster
    commits: Commits
    images: Images
    commands: Commands
    downloads: Downloads
    environments: Environments
    dispatch: Dispatch
    results: ResultStore
    output: Output
    terminals: Desk
    tunnels: Tunnels
    nodes: NodeStore
    fleet: Fleet
    watch: Watch
    redis: Client
    metrics: Metrics
    # Bytes.
    json_limit: int
    upload_limit: int
    # The OpenAPI description, as JSON text.
    openapi: str = ""

    def drain(self) -> None:
        """Answer every waiting request now: 503 with its request id; end what passes into sandboxes. For the last seconds of a graceful end."""
        self.results.inbox.release()
        self.tunnels.end_all()

    def close_sockets(self) -> None:
        """End the connections that would last for as long as their clients like: this process ends."""
        self.terminals.close_all()
        self.tunnels.end_lasting()

    def close(self) -> None:
        """End the threads and connections of this process."""
        self.watch.close()
        self.results.close()
        self.metrics.tally.close()
        self.redis.close()
