"""Every Redis key, channel and queue name of the service: the one place that spells them.

Owner says which part writes a key; lifetime says when it goes away. Lua scripts receive their names from here,
those that depend on a node found inside a script as templates (`*` stands for the node id).
"""

import re
from dataclasses import dataclass

from rock.errors import BadRequest

# Names that users choose become parts of keys and of container names, so they hold no separator and no odd letter.
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"
_NAME = re.compile(NAME_PATTERN)
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]*")


def check_name(value: str, field: str) -> str:
    """Return `value` if it may be used as a sandbox or node id.

    Raises BadRequest naming `field` and the pattern otherwise.
    """
    if not _NAME.fullmatch(value):
        raise BadRequest(f"{field}: must match {NAME_PATTERN}, got {value[:80]!r}", field=field)
    return value


@dataclass(frozen=True)
class Keys:
    """Names of one service in one Redis; `prefix` keeps several services in one Redis apart."""

    prefix: str = "rock:"

    def __post_init__(self) -> None:
        """Refuse a prefix that could be mistaken for a template or a pattern. Raises ValueError."""
        if not _PREFIX.fullmatch(self.prefix):
            raise ValueError(f"redis.prefix: letters, digits and _.:- only, got {self.prefix!r}")

    def service(self) -> str:
        """String, the id that tells this service from others on the same engines (service_id). Made by the first node; stays."""
        return f"{self.prefix}service"

    def sandbox(self, sandbox_id: str) -> str:
        """Hash, the record of a sandbox (records.SandboxRecord). Written by SandboxStore; expires after its end."""
        return f"{self.prefix}sandbox:{sandbox_id}"

    def sandboxes(self) -> str:
        """Sorted set, sandbox id -> creation time. Ids whose record has expired are dropped by the sweep."""
        return f"{self.prefix}sandboxes"

    def nodes(self) -> str:
        """Set of the ids of all nodes ever registered and not yet forgotten."""
        return f"{self.prefix}nodes"

    def node(self, node_id: str) -> str:
        """Hash, the record of a node (records.NodeRecord). Written by NodeStore; kept until the node is forgotten."""
        return f"{self.prefix}node:{node_id}"

    def node_sandboxes(self, node_id: str) -> str:
        """Set of the ids that hold capacity on the node; changes only together with its used_* counters."""
        return f"{self.prefix}node:{node_id}:sandboxes"

    def node_leases(self, node_id: str) -> str:
        """Sorted set, running sandbox -> when its lease ends (epoch seconds). Read by the node's reaper."""
        return f"{self.prefix}node:{node_id}:leases"

    def node_stopped(self, node_id: str) -> str:
        """Sorted set, stopped sandbox whose container is (or may be) still there -> when that is removed (epoch seconds)."""
        return f"{self.prefix}node:{node_id}:stopped"

    def node_inflight(self, node_id: str) -> str:
        """Sorted set, call id -> when it was claimed. What a node that comes back submits again."""
        return f"{self.prefix}node:{node_id}:inflight"

    def node_gate(self, node_id: str) -> str:
        """String, where the node's gate listens and its secret (gate.Gate). Written by GateStore; expires unless its lifecycle worker repeats it."""
        return f"{self.prefix}node:{node_id}:gate"

    def homes(self, image: str) -> str:
        """Hash, node (and owner, of a private one) -> a commit of a name in its canonical form (ImageStore). Entries go with their images."""
        return f"{self.prefix}homes:{image}"

    def warmup(self, task_id: str) -> str:
        """String, JSON of a warmup's owner and calls (ImageStore). Expires after a day."""
        return f"{self.prefix}warmup:{task_id}"

    def node_images(self, node_id: str) -> str:
        """Set of the marks of the images that the node has (a hint for placement). Written by NodeStore."""
        return f"{self.prefix}node:{node_id}:images"

    def node_uses(self, node_id: str) -> str:
        """Sorted set, image that starts and warmups have used on the node -> when last (epoch seconds). Written by ImageStore."""
        return f"{self.prefix}node:{node_id}:uses"

    def image_nodes(self, mark: str) -> str:
        """Set of the nodes that have an image; the other direction of `node_images`."""
        return f"{self.prefix}image:{mark}"

    def pools(self) -> str:
        """Set of the pools (cluster labels, "" for none) that have a node open for new sandboxes."""
        return f"{self.prefix}pools"

    def free_cpus(self, pool: str) -> str:
        """Sorted set, open node of the pool -> its free thousandths of a CPU. Changes only together with `used_cpus`."""
        return f"{self.prefix}pool:{pool}:cpus"

    def free_memory(self, pool: str) -> str:
        """Sorted set, open node of the pool -> its free bytes. Changes only together with `used_memory`."""
        return f"{self.prefix}pool:{pool}:memory"

    def route(self, mark: str) -> str:
        """String, the node of a `route_key`; expires a day after its last start."""
        return f"{self.prefix}route:{mark}"

    def line(self, pool: str) -> str:
        """Sorted set, waiting start (sandbox id) -> its turn. One line per wanted cluster, "" for none."""
        return f"{self.prefix}line:{pool}"

    def lines(self) -> str:
        """Sorted set, line -> the turn of its head."""
        return f"{self.prefix}lines"

    def waiting(self) -> str:
        """Sorted set, waiting start (sandbox id) -> when it gives up (epoch seconds)."""
        return f"{self.prefix}waiting"

    def turn(self) -> str:
        """Counter, the turn that was given out last."""
        return f"{self.prefix}turn"

    def stock(self, part: str) -> str:
        """Set, the nodes that have a sandbox in stock of a mark (stock.mark_of); for `mark:node` the ids of those that are ready there."""
        return f"{self.prefix}stock:{part}"

    def node_stock(self, node_id: str) -> str:
        """Hash, sandbox of the node's pool, ready or starting -> its mark. They hold no capacity, and are nobody's."""
        return f"{self.prefix}node:{node_id}:stock"

    def ledger(self) -> dict[str, str]:
        """Return the names that the scripts on room and lines work with; `*` stands for a part found inside them."""
        return {
            "sandbox": self.sandbox("*"), "sandboxes": self.sandboxes(), "call": self.call("*"), "nodes": self.nodes(),
            "node": self.node("*"), "node_stopped": self.node_stopped("*"), "node_sandboxes": self.node_sandboxes("*"), "node_leases": self.node_leases("*"),
            "node_inflight": self.node_inflight("*"), "node_images": self.node_images("*"),
            "image_nodes": self.image_nodes("*"), "pools": self.pools(), "free_cpus": self.free_cpus("*"),
            "free_memory": self.free_memory("*"), "route": self.route("*"), "line": self.line("*"),
            "stock": self.stock("*"), "node_stock": self.node_stock("*"),
            "lines": self.lines(), "waiting": self.waiting(), "turn": self.turn(),
        }  # fmt: skip

    def call(self, call_id: str) -> str:
        """Hash, one call and later its envelope. Written by ResultStore; expires after completion."""
        return f"{self.prefix}call:{call_id}"

    def bulk(self, call_id: str) -> str:
        """String, a large text of a call's body (complete.lua knows this name, too). Dropped on completion, or expires."""
        return f"{self.call(call_id)}:bulk"

    def blob(self, call_id: str) -> str:
        """List, chunks of a file on their way (BlobStore). Bounded; expires when nobody moves it."""
        return f"{self.prefix}blob:{call_id}"

    def metrics(self) -> str:
        """Hash, what was counted (JSON of name, labels and bucket) -> number (Tally). Stays."""
        return f"{self.prefix}metrics"

    def done(self) -> str:
        """Channel; one message per completed call: its id, a space, and the envelope when that is small."""
        return f"{self.prefix}done"

    def broker_prefix(self) -> str:
        """Prefix of the keys that Celery's transport makes (queues, bindings, unacknowledged messages)."""
        return f"{self.prefix}celery:"

    @staticmethod
    def node_queue(node_id: str) -> str:
        """Queue of the node's session worker."""
        return f"node.{node_id}"

    @staticmethod
    def lifecycle_queue(node_id: str) -> str:
        """Queue of the node's lifecycle worker: the slow engine work."""
        return f"node.{node_id}.lifecycle"

    @staticmethod
    def control_queue() -> str:
        """Queue of cluster work that any node may do (the sweep)."""
        return "control"
