"""Where the gates of nodes are, in Redis."""

from app.database import Client, redis_faults
from app.gate import Gate
from app.keys import Keys

# Seconds after which a gate that nobody speaks for is forgotten.
TTL = 60


class GateStore:
    """One gate per node."""

    def __init__(self, redis: Client, keys: Keys) -> None:
        self._redis, self._keys = redis, keys

    def put(self, node_id: str, gate: Gate) -> None:
        """Write down where the way into the node's sandboxes begins; forgotten when it is not said again in TTL seconds."""
        with redis_faults():
            self._redis.set(self._keys.node_gate(node_id), gate.to_json(), ex=TTL)

    def drop(self, node_id: str, gate: Gate) -> None:
        """Take back what `put` wrote, unless another has written since."""
        with redis_faults():
            if self._redis.get(self._keys.node_gate(node_id)) == gate.to_json():
                self._redis.delete(self._keys.node_gate(node_id))

    def get(self, node_id: str) -> Gate | None:
        """Return where the way into the node's sandboxes begins; None while there is none."""
        with redis_faults():
            text = self._redis.get(self._keys.node_gate(node_id))
        return Gate.from_json(text) if text else None
