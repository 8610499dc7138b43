"""Which node a new sandbox goes to. Pure: nodes and wishes in, one node out."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from app.records import NodeRecord, NodeState, millicpus
from rock.errors import BadRequest, NoCapacity


@dataclass(frozen=True)
class Want:
    """What a sandbox needs of its node."""

    cpus: float
    # Bytes.
    memory: int
    # Sandboxes with one key go to one node.
    route_key: str = ""
    # Label `cluster` of the nodes to prefer; a wish, see `choose_node`.
    cluster: str = ""


def choose_node(alive: Sequence[NodeRecord], want: Want) -> NodeRecord:
    """Return the node for a sandbox.

    A `route_key` always leads to the same node as long as the set of nodes stays the same, even when others have more
    room: that is what it is for. Otherwise nodes of the wanted cluster come first, and among those the one that is left
    with the largest free share. An unknown cluster is not an error: clients send a default of their own ("zb"), which
    must not keep them from a service of one machine.

    Params:
        alive: nodes with a fresh heartbeat, draining ones included.
    Raises:
        BadRequest: more is asked for than any node has.
        NoCapacity: no node is alive, all are draining, or there is no room now.
    """
    if not alive:
        raise NoCapacity("no node is alive; start one with `rock worker start`")
    large = [node for node in alive if node.cpus >= want.cpus and node.memory >= want.memory]
    if not large:
        raise BadRequest(_too_large(alive, want))
    open_ = [node for node in large if node.state is NodeState.ACTIVE]
    if not open_:
        raise NoCapacity("every node that is large enough is draining; resume one, or add one")
    if want.route_key:
        open_ = [max(open_, key=lambda node: _affinity(node.node_id, want.route_key))]
    free = [node for node in open_ if node.fits(want.cpus, want.memory)]
    if not free:
        raise NoCapacity(_full(open_, want))
    local = [node for node in free if want.cluster and node.labels.get("cluster") == want.cluster]
    return max(local or free, key=lambda node: (_room(node, want), node.node_id))


def _affinity(node_id: str, route_key: str) -> bytes:
    """Return the node's weight for a key (rendezvous hashing: when a node leaves, only its own keys move)."""
    return hashlib.sha256(f"{route_key}\0{node_id}".encode()).digest()


def _room(node: NodeRecord, want: Want) -> float:
    """Return the share of the node that is left after placing, by its scarcer resource."""
    cpus = (millicpus(node.cpus) - millicpus(node.used_cpus) - millicpus(want.cpus)) / millicpus(node.cpus)
    memory = (node.memory - node.used_memory - want.memory) / node.memory
    return min(cpus, memory)


def _too_large(nodes: Sequence[NodeRecord], want: Want) -> str:
    """Return the message that says which field is beyond every node."""
    cpus, memory = max(node.cpus for node in nodes), max(node.memory for node in nodes)
    if want.cpus > cpus:
        return f"cpus: {want.cpus:g} is more than any node has (at most {cpus:g})"
    if want.memory > memory:
        return f"memory: {want.memory} bytes is more than any node has (at most {memory} bytes)"
    return f"cpus and memory: no one node has {want.cpus:g} CPUs and {want.memory} bytes together"


def _full(nodes: Sequence[NodeRecord], want: Want) -> str:
    """Return the message that says what is short."""
    cpus = max(node.cpus - node.used_cpus for node in nodes)
    memory = max(node.memory - node.used_memory for node in nodes)
    where = f"the node of route_key {want.route_key!r}" if want.route_key else "any node"
    return (
        f"no room now: {want.cpus:g} CPUs and {want.memory} bytes are asked for; free on {where} are at most "
        f"{cpus:g} CPUs and {memory} bytes; try again when a sandbox has stopped"
    )
