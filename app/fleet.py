"""The nodes as people see and steer them: list, drain, resume."""

import logging
from collections.abc import Callable

from app import status
from app.line import Line
from app.node_store import NodeStore
from app.records import NodeRecord, NodeState
from rock.actions import NodeListResponse, NodeResponse
from rock.errors import NotFound

log = logging.getLogger(__name__)


class Fleet:
    """The nodes of one service."""

    def __init__(self, nodes: NodeStore, line: Line, clock: Callable[[], float]) -> None:
        """`clock`: tells the epoch time in seconds."""
        self._nodes, self._line, self._clock = nodes, line, clock

    def list(self) -> NodeListResponse:
        """Return all nodes, lost ones too, and how many starts wait for room. Raises Unavailable."""
        nodes = self._nodes.list()
        counts = self._nodes.counts([node.node_id for node in nodes])
        shown = [self._show(node, counts[node.node_id]) for node in nodes]
        return NodeListResponse(nodes=shown, waiting=self._line.waiting())

    def admit(self, node_id: str, state: NodeState) -> NodeResponse:
        """Let a node take new sandboxes, or drain it: those that it has go on to their own end. Raises NotFound, Unavailable."""
        self._nodes.admit(node_id, state, self._clock())
        log.info("node is %s now", state.value, extra={"node": node_id})
        node = self._nodes.get(node_id)
        if node is None:
            raise NotFound(f"node {node_id!r} not found", node=node_id)
        return self._show(node, self._nodes.counts([node_id])[node_id])

    def _show(self, node: NodeRecord, counts: tuple[int, int]) -> NodeResponse:
        """Return a node as clients see it."""
        return NodeResponse(
            node_id=node.node_id, state=self._state(node), draining=not node.is_active,
            cpus=node.cpus, used_cpus=node.used_cpus, memory=node.memory, used_memory=node.used_memory,
            sandboxes=counts[0], pooled=counts[1], labels=dict(node.labels), runtime=node.deployment, host_name=node.host_name,
            host_ip=node.host_ip, last_seen=status.iso(node.heartbeat),
        )  # fmt: skip

    def _state(self, node: NodeRecord) -> str:
        """Return in a word whether a node takes new sandboxes, and why not."""
        now = self._clock()
        if not self._nodes.is_alive(node, now):
            return "lost"
        return "full" if node.is_active and node.full_until > now else node.state.value
