"""Nodes in Redis: who they are, whether they live, which images they have. Each change is one Lua script (app/lua)."""

from collections.abc import Iterable
from contextlib import suppress

from app.database import Client, Scripts, flat, redis_faults
from app.keys import Keys
from app.line import Line
from app.placement import image_mark
from app.records import NodeRecord, NodeState
from rock.errors import AlreadyExists, BadRequest, NodeLost, NotFound

# Named here because inside the class `list` is a method.
Ids = list[str]
NodeRecords = list[NodeRecord]


class NodeStore:
    """Records and heartbeats of nodes."""

    def __init__(self, redis: Client, keys: Keys, line: Line, lost_after: float = 15.0) -> None:
        """
        Params:
            line: who waits for a node to join, to come back or to be resumed.
            lost_after: seconds without a heartbeat after which a node counts as lost.
        """
        self._redis, self._keys, self._line, self.lost_after = redis, keys, line, lost_after
        scripts = Scripts(redis)
        self._register, self._beat, self._admit = (scripts.load("room", name) for name in ("register", "beat", "admit"))
        self._forget = scripts.load("room", "stock", "forget")
        self._patch = scripts.load("patch")

    def register(self, node_id: str, token: str, record: NodeRecord, now: float) -> None:
        """Take the id `node_id` for the holder of `token` (one per worker life, shared by its processes).

        Raises AlreadyExists while another living holder has it.
        """
        args = [self._line.names, node_id, token, now, now - self.lost_after, *flat(record.to_hash())]
        with redis_faults():
            taken = self._register([self._keys.node(node_id), self._keys.nodes()], args)
        if not taken:
            raise AlreadyExists(
                f"node id {node_id!r} is held by another living worker; choose another id, or end that worker "
                f"(a dead one frees the id after {self.lost_after:g} s)",
                node=node_id,
            )
        self._line.freed(now)

    def heartbeat(self, node_id: str, token: str, now: float) -> None:
        """Say that the node lives. Raises NodeLost when another holder has taken the id."""
        with redis_faults():
            held = self._beat([self._keys.node(node_id)], [self._line.names, node_id, token, now])
        if not held:
            raise NodeLost(f"node id {node_id!r} was taken over by another worker, or forgotten", node=node_id)
        if held == 2:
            self._line.freed(now)

    def admit(self, node_id: str, state: NodeState, now: float) -> None:
        """Let a node take new sandboxes, or not (drain); those that it has go on. Raises NotFound."""
        with redis_faults():
            found = self._admit([self._keys.node(node_id)], [self._line.names, node_id, state.value])
        if not found:
            raise NotFound(f"node {node_id!r} not found", node=node_id)
        if state is NodeState.ACTIVE:
            self._line.freed(now)

    def holds(self, node_id: str, token: str) -> bool:
        """Return whether `token` holds the node id."""
        with redis_faults():
            return bool(self._redis.hget(self._keys.node(node_id), "token") == token)

    def set_images(self, node_id: str, images: Iterable[str]) -> None:
        """Write down which images a node has: a hint for placement, so that a late one does no harm."""
        keys, marks = self._keys, set()
        for image in images:
            with suppress(BadRequest):  # an engine may have names that nobody can ask for
                marks.add(image_mark(image))
        with redis_faults():
            known = self._redis.smembers(keys.node_images(node_id))
            pipe = self._redis.pipeline()
            for mark in known - marks:
                pipe.srem(keys.node_images(node_id), mark).srem(keys.image_nodes(mark), node_id)
            for mark in marks - known:
                pipe.sadd(keys.node_images(node_id), mark).sadd(keys.image_nodes(mark), node_id)
            pipe.execute()

    def add_image(self, node_id: str, image: str) -> None:
        """Write down that a node has one image more."""
        keys, mark = self._keys, image_mark(image)
        with redis_faults():
            self._redis.pipeline().sadd(keys.node_images(node_id), mark).sadd(keys.image_nodes(mark), node_id).execute()

    def counts(self, node_ids: Ids) -> dict[str, tuple[int, int]]:
        """Return how many sandboxes each node holds room for, and how many are in its pool, in one round trip."""
        with redis_faults():
            pipe = self._redis.pipeline(transaction=False)
            for node_id in node_ids:
                pipe.scard(self._keys.node_sandboxes(node_id)).hlen(self._keys.node_stock(node_id))
            found = pipe.execute()
        return dict(zip(node_ids, zip(found[::2], found[1::2], strict=True), strict=True))

    def leave(self, node_id: str, token: str) -> bool:
        """Give the id back at a clean end; True if `token` held it. Reservations stay with the sandboxes.

        It gets no new sandboxes. Its calls wait for it as they would after a crash: it may only be restarting.
        """
        with redis_faults():
            args = ["token", token, "token", "", "left", "1"]
            return self._patch([self._keys.node(node_id)], args) == 1

    def get(self, node_id: str) -> NodeRecord | None:
        """Return the record of `node_id`, or None."""
        with redis_faults():
            fields = self._redis.hgetall(self._keys.node(node_id))
        return NodeRecord.from_hash(node_id, fields) if "cpus" in fields else None

    def list(self) -> NodeRecords:
        """Return all nodes, sorted by id, in two round trips."""
        with redis_faults():
            ids = sorted(self._redis.smembers(self._keys.nodes()))
            pipe = self._redis.pipeline(transaction=False)
            for node_id in ids:
                pipe.hgetall(self._keys.node(node_id))
            found = pipe.execute()
        pairs = zip(ids, found, strict=True)
        return [NodeRecord.from_hash(node_id, fields) for node_id, fields in pairs if "cpus" in fields]

    def alive(self, now: float) -> NodeRecords:
        """Return the nodes that can be given something at `now`."""
        return [node for node in self.list() if self.is_alive(node, now)]

    def is_alive(self, node: NodeRecord, now: float) -> bool:
        """Return whether `node` works: not silent, and not signed off."""
        return not node.left and not self.is_lost(node, now)

    def is_lost(self, node: NodeRecord, now: float) -> bool:
        """Return whether `node` has been silent for so long that its calls are given up."""
        return node.heartbeat < now - self.lost_after

    def heartbeats(self, node_ids: Ids) -> dict[str, float]:
        """Return the last heartbeat (epoch seconds, 0 = none) of each node, in one round trip."""
        with redis_faults():
            pipe = self._redis.pipeline(transaction=False)
            for node_id in node_ids:
                pipe.hget(self._keys.node(node_id), "heartbeat")
            beats = pipe.execute()
        return {node_id: float(beat or 0) for node_id, beat in zip(node_ids, beats, strict=True)}

    def forget(self, node_id: str, before: float) -> bool:
        """Drop a node that was last seen before `before` and holds nothing; True if dropped."""
        keys = self._keys
        names = [keys.node(node_id), keys.node_sandboxes(node_id), keys.node_inflight(node_id), keys.nodes()]
        names += [keys.node_leases(node_id), keys.node_images(node_id), keys.node_stopped(node_id)]
        names += [keys.node_uses(node_id)]
        with redis_faults():
            return self._forget(names, [self._line.names, node_id, before]) == 1
