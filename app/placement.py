"""Which node a new sandbox goes to: names that the choice works with, and what is said when there is none. Pure.

The choice itself is app/lua/room.lua, one step with the reservation; who waits for room, and in which order, app/lua/line.lua. The rules:

* A node with a label `cluster` takes starts of that cluster (header X-Cluster) and those that name none. A node without the label takes
  every start: clients send a default of their own ("zb"), which must not keep them from a service of one machine.
  A start that names a cluster prefers the nodes that carry its label.
* A `route_key` leads to the node of its last start, as long as that can take the sandbox, else to another, which is then the key's.
* Of the nodes that are left the freest is taken: that with room for most sandboxes of this size, by the scarcer of CPUs and memory.
  One that has the image comes first, as long as it has at least half the room of the freest.
* An image that was committed on a node and not pushed binds a start to that node.
* More than any living node has is refused at once. A start that finds no room waits in the line of its cluster (or of its node), first come, first served,
  until its startup_timeout. A node never takes a start while an earlier one waits that it could take: small ones do not starve a large one.
"""

import hashlib
from collections.abc import Sequence

from app.keys import check_name
from app.records import NodeRecord, SandboxRecord
from app.references import canonical
from rock.errors import BadRequest, NoCapacity, RockError

# Stands before the node of a start that is bound to it, where the cluster of any other would be; no cluster begins so.
BOUND = "@"


def pool_of(cluster: str) -> str:
    """Return the pool of a cluster label as a part of a key; any label may come from outside."""
    try:
        return check_name(cluster, "cluster") if cluster else ""
    except BadRequest:
        return f"~{_digest(cluster)}"


def line_of(cluster: str, node: str = "") -> str:
    """Return the line of a start: that of the cluster that it names, or of the only node that it can go to (`node`)."""
    return BOUND + node if node else pool_of(cluster)


def image_mark(image: str) -> str:
    """Return the mark of an image, the same for its short and its full name. Raises BadRequest when it is no image's name."""
    return _digest(canonical(image))


def route_mark(owner: str, route_key: str) -> str:
    """Return the mark of an owner's route key, "" for none."""
    return _digest(f"{owner}\0{route_key}") if route_key else ""


def too_large(record: SandboxRecord, cpus: float, memory: int, alive: int) -> RockError:
    """Return the error for a start that no living node could ever take.

    Params:
        cpus, memory: the most that one of them has.
        alive: how many there are that are open to its cluster.
    Returns:
        BadRequest naming the field, or NoCapacity when there is no such node at all (one may join: sending it again can help).
    """
    if not alive and record.line.startswith(BOUND):
        node = record.line.removeprefix(BOUND)
        return BadRequest(
            f"image {record.spec.get('image')} was committed on node {node}, which is lost, and was not pushed to a registry",
            field="image",
        )
    if not alive:
        cluster = record.identity.get("cluster")
        which = f" that is open to cluster {cluster!r}" if cluster else ""
        return NoCapacity(f"no node is alive{which}; start one with `rock worker start`")
    if record.cpus > cpus:
        text = f"cpus: {record.cpus:g} is more than any node has (at most {cpus:g})"
    elif record.memory > memory:
        text = f"memory: {record.memory} bytes is more than any node has (at most {memory} bytes)"
    else:
        text = f"cpus and memory: no one node has {record.cpus:g} CPUs and {record.memory} bytes together"
    return BadRequest(text)


def could_take(record: SandboxRecord, nodes: Sequence[NodeRecord]) -> list[NodeRecord]:
    """Return those of the nodes that are large enough for the sandbox and open to its cluster, full or not."""
    wanted, bound = record.line, record.line.startswith(BOUND)
    return [
        node for node in nodes
        if (node.node_id == wanted.removeprefix(BOUND) if bound else not wanted or node.pool in ("", wanted))
        and node.cpus >= record.cpus and node.memory >= record.memory
    ]  # fmt: skip


def shortage(record: SandboxRecord, alive: Sequence[NodeRecord], place: int) -> str:
    """Return what keeps a waiting start waiting, in words; `place` is its place in line, `alive` all living nodes."""
    large = could_take(record, alive)
    open_ = [node for node in large if node.is_active]
    wish = f"{record.cpus:g} CPUs and {record.memory} bytes are asked for"
    if not large:
        return f"{wish}; no living node is that large any more"
    if not open_:
        return f"{wish}; every node that is large enough is draining"
    cpus = max(node.cpus - node.used_cpus for node in open_)
    memory = max(node.memory - node.used_memory for node in open_)
    ahead = f"; {place - 1} starts are ahead in line" if place > 1 else ""
    return f"{wish}; free on one node are at most {cpus:g} CPUs and {memory} bytes{ahead}"


def _digest(text: str) -> str:
    """Return a short digest of any text, for use in a key."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]
