"""What of Redis a process works with, as one value: the stores belong together, since they share lines and times."""

from dataclasses import dataclass

from celery import Celery

from app.config import Config
from app.database import Client
from app.gate_store import GateStore
from app.image_store import ImageStore
from app.keys import Keys
from app.letters import Letters
from app.line import Line
from app.node_store import NodeStore
from app.nodes import Nodes
from app.results import ResultStore
from app.stock import Stock
from app.store import SandboxStore
from app.tally import Tally


@dataclass(frozen=True)
class Stores:
    """The stores of one process."""

    line: Line
    sandboxes: SandboxStore
    nodes: NodeStore
    results: ResultStore
    images: ImageStore
    stock: Stock
    gates: GateStore


def make_stores(config: Config, redis: Client, celery: Celery, tally: Tally | None = None) -> Stores:
    """Return the stores that API processes and nodes share, with the configured times; starts are sent through `celery`.

    `tally`: counts what the stores do.
    """
    keys, lost_after, kept = Keys(config.redis.prefix), config.node.lost_after_seconds, config.runtime
    line = Line(redis, keys, lost_after, Letters(celery, keys), Nodes(celery), kept.waiting_limit)
    return Stores(
        line=line,
        sandboxes=SandboxStore(redis, keys, line, kept.stop_retention_seconds, tally),
        nodes=NodeStore(redis, keys, line, lost_after),
        results=ResultStore(redis, keys, lost_after, kept.result_ttl_seconds, tally),
        images=ImageStore(redis, keys),
        stock=Stock(redis, keys, tally),
        gates=GateStore(redis, keys),
    )
