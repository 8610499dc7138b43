"""Sandboxes and nodes in Redis. Each change is one Lua script (app/lua), so that no half of it is ever seen."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from app.calls import Call, Claim, bulk_apart, encode, fingerprint
from app.database import Client, Scripts, redis_faults
from app.keys import Keys
from app.records import (
    TRANSITIONS,
    Commit,
    Event,
    NodeRecord,
    PhaseName,
    PhaseStatus,
    SandboxRecord,
    State,
    millicpus,
    phase_field,
)
from rock.errors import AlreadyExists, NodeLost

# Named here because inside the classes `list` is a method.
Ids = list[str]
Records = list[SandboxRecord]
NodeRecords = list[NodeRecord]


class SandboxStore:
    """Records, leases and reservations of sandboxes."""

    def __init__(self, redis: Client, keys: Keys, lost_after: float = 15.0, keep_stopped: float = 3600.0) -> None:
        """
        Params:
            redis: client with decoded responses.
            lost_after: seconds without a heartbeat after which a node takes nothing new.
            keep_stopped: seconds for which the record of an ended sandbox can still be read.
        """
        self._redis, self._keys = redis, keys
        self._lost_after, self._keep_stopped = lost_after, keep_stopped
        scripts = Scripts(redis)
        self._create, self._transition = scripts.load("create"), scripts.load("transition")
        self._renew, self._expired, self._patch = (scripts.load(name) for name in ("renew", "expired", "patch"))

    def create(self, record: SandboxRecord, call: Call, now: float, *, restarts: str = "") -> Claim:
        """Make a pending sandbox: its record, the reservation on `record.node` and its start call, or nothing.

        Params:
            record: must carry `start_call=call.call_id`.
            now: epoch seconds.
            restarts: the start call of the ended life that this one goes on from, on the same node; it must still be stopped.
        Returns:
            Claim with word NEW, ATTACHED, DONE, CONFLICT (request id used for something else),
            EXISTS (id taken, or nothing to restart) or FULL (no room left on that node, or it is silent or draining).
        """
        keys, body = self._keys, encode(bulk_apart(call.body)[0])
        mark = fingerprint(call, body)
        fields = record.to_hash()
        args: list[Any] = [now, mark, call.owner, call.call_id, record.sandbox_id, millicpus(record.cpus)]
        args += [record.memory, now - self._lost_after, restarts, len(fields), *_flat(fields)]
        args += _flat(replace(call, node=record.node).to_hash(body, mark))
        names = [keys.call(call.call_id), keys.sandbox(record.sandbox_id), keys.node(record.node)]
        names += [keys.node_sandboxes(record.node), keys.node_inflight(record.node), keys.sandboxes()]
        names += [keys.node_stopped(record.node)]
        with redis_faults():
            return Claim.from_reply(self._create(names, args))

    def get(self, sandbox_id: str) -> SandboxRecord | None:
        """Return the record, or None when there is none. Reading changes nothing."""
        with redis_faults():
            fields = self._redis.hgetall(self._keys.sandbox(sandbox_id))
        return SandboxRecord.from_hash(sandbox_id, fields) if fields else None

    def renew(self, sandbox_id: str, now: float, owner: str = "", admin: bool = True) -> SandboxRecord | None:
        """Prolong the lease of a running sandbox and return its record; None when `owner` may see no such one."""
        found = self.touch(sandbox_id, now, owner, admin)
        return found[0] if found else None

    def touch(self, sandbox_id: str, now: float, owner: str, admin: bool) -> tuple[SandboxRecord, float] | None:
        """As `renew`; also returns the last heartbeat (epoch seconds) of the node that has the sandbox."""
        args = [sandbox_id, now, owner, int(admin), self._keys.node_leases("*"), self._keys.node("*")]
        with redis_faults():
            reply = self._renew([self._keys.sandbox(sandbox_id)], args)
        if not reply:
            return None
        fields = dict(zip(reply[0][::2], reply[0][1::2], strict=True))
        return SandboxRecord.from_hash(sandbox_id, fields), float(reply[1])

    def transition(
        self, sandbox_id: str, allowed_from: Iterable[State], to: State, event: Event, now: float,
        *, only_start: str = "", only_expired: bool = False, reason: str = "", **fields: str,
    ) -> bool:  # fmt: skip
        """Move a sandbox to state `to`, if it is in one of `allowed_from`.

        Leaving for a state that needs no resources removes the lease and gives the capacity back, once.

        Params:
            only_start: move only the life that this start call began (an id may be used again).
            only_expired: move only if the lease is over and no call is in flight (the reaper's check).
            reason: why, in words; kept with the record ("": what is there stays).
            fields: further record fields to set.
        Returns:
            True when this call moved it; False when it was not there, or not in such a state any more.
        Raises:
            ValueError: the table TRANSITIONS does not allow such a move.
        """
        sources = sorted(state.value for state in allowed_from)
        if any(to not in TRANSITIONS[State(source)] for source in sources):
            raise ValueError(f"no such transition: {sources} -> {to.value}")
        keys = self._keys
        args = [sandbox_id, ",".join(sources), to.value, event.value, now, only_start, int(only_expired)]
        args += [int(self._keep_stopped), keys.node("*"), keys.node_sandboxes("*"), keys.node_leases("*"), keys.done()]
        args += [keys.node_stopped("*"), int(event.is_death), *(("reason", reason) if reason else ()), *_flat(fields)]
        with redis_faults():
            return self._transition([keys.sandbox(sandbox_id)], args) == "ok"

    def set_phase(
        self, sandbox_id: str, phase: PhaseName, status: PhaseStatus, message: str, now: float, only_start: str = ""
    ) -> bool:
        """Write where a phase of the start is; True if the sandbox (of start call `only_start`) is still known.

        The first entry into RUNNING stamps `started_at`, an end stamps `completed_at` (epoch seconds).
        """
        key, name = self._keys.sandbox(sandbox_id), phase_field(phase.value)
        with redis_faults():
            known = json.loads(self._redis.hget(key, name) or "{}")
            entry = {"status": status.value, "message": message, "started_at": known.get("started_at") or now}
            if status is PhaseStatus.WAITING:
                entry["started_at"] = None
            ended = status not in (PhaseStatus.WAITING, PhaseStatus.RUNNING)
            entry["completed_at"] = now if ended else None
            return self._patch([key], ["start_call", only_start, name, json.dumps(entry)]) == 1

    def set_container(
        self, sandbox_id: str, *, container: Mapping[str, Any] | None = None,
        port_mapping: Mapping[str, int] | None = None, only_start: str = "", **fields: str,
    ) -> bool:  # fmt: skip
        """Write what the node knows of the container (`host_name`, `host_ip`, `runtime` as fields); True if kept."""
        if container is not None:
            fields["container"] = json.dumps(dict(container))
        if port_mapping is not None:
            fields["port_mapping"] = json.dumps({str(port): host for port, host in port_mapping.items()})
        with redis_faults():
            return self._patch([self._keys.sandbox(sandbox_id)], ["start_call", only_start, *_flat(fields)]) == 1

    def set_commit(self, record: SandboxRecord, commit: Commit) -> bool:
        """Write how a commit stands, unless that has changed since `record` was read; True if written."""
        text = json.dumps(commit.on(record).commit)
        with redis_faults():
            args = ["commit", json.dumps(record.commit), "commit", text]
            return self._patch([self._keys.sandbox(record.sandbox_id)], args) == 1

    def expired(self, node: str, now: float, limit: int = 100) -> Ids:
        """Return at most `limit` sandboxes of `node` whose lease is over and that have no call in flight."""
        with redis_faults():
            return self._expired([self._keys.node_leases(node)], [now, self._keys.sandbox("*"), limit])

    def retired(self, node: str, now: float, most: int) -> Ids:
        """Return the stopped sandboxes of `node` whose containers are to go: their time is over, or more than `most` are kept.

        Of too many, those whose time is over first go first.
        """
        key = self._keys.node_stopped(node)
        with redis_faults():
            pipe = self._redis.pipeline(transaction=False)
            ids, due = pipe.zrange(key, 0, -1).zcount(key, "-inf", now).execute()
        return ids[: max(due, len(ids) - most)]

    def forget_stopped(self, node: str, sandbox_id: str) -> None:
        """Note that `node` keeps no container of that stopped sandbox any more."""
        with redis_faults():
            self._redis.zrem(self._keys.node_stopped(node), sandbox_id)

    def by_node(self, node: str) -> Records:
        """Return the records of the sandboxes that hold capacity on `node`."""
        with redis_faults():
            ids = sorted(self._redis.smembers(self._keys.node_sandboxes(node)))
        return self.many(ids)

    def list(self) -> Records:
        """Return every record, newest first; ids whose record has expired are dropped from the index."""
        with redis_faults():
            ids = self._redis.zrevrange(self._keys.sandboxes(), 0, -1)
            records = self.many(ids)
            gone = set(ids) - {record.sandbox_id for record in records}
            if gone:
                self._redis.zrem(self._keys.sandboxes(), *gone)
        return records

    def many(self, ids: Iterable[str]) -> Records:
        """Return the records of `ids` that exist, in that order, in one round trip."""
        wanted = list(ids)
        with redis_faults():
            pipe = self._redis.pipeline(transaction=False)
            for sandbox_id in wanted:
                pipe.hgetall(self._keys.sandbox(sandbox_id))
            found = pipe.execute()
        pairs = zip(wanted, found, strict=True)
        return [SandboxRecord.from_hash(sandbox_id, fields) for sandbox_id, fields in pairs if fields]


class NodeStore:
    """Records and heartbeats of nodes."""

    def __init__(self, redis: Client, keys: Keys, lost_after: float = 15.0) -> None:
        """`lost_after`: seconds without a heartbeat after which a node counts as lost."""
        self._redis, self._keys, self.lost_after = redis, keys, lost_after
        scripts = Scripts(redis)
        self._register, self._patch, self._forget = (scripts.load(name) for name in ("register", "patch", "forget"))

    def register(self, node_id: str, token: str, record: NodeRecord, now: float) -> None:
        """Take the id `node_id` for the holder of `token` (one per worker life, shared by its processes).

        Raises AlreadyExists while another living holder has it.
        """
        args = [node_id, token, now, now - self.lost_after, *_flat(record.to_hash())]
        with redis_faults():
            taken = self._register([self._keys.node(node_id), self._keys.nodes()], args)
        if not taken:
            raise AlreadyExists(
                f"node id {node_id!r} is held by another living worker; choose another id, or end that worker "
                f"(a dead one frees the id after {self.lost_after:g} s)",
                node=node_id,
            )

    def heartbeat(self, node_id: str, token: str, now: float, info: Mapping[str, str] | None = None) -> None:
        """Say that the node lives, and update its facts. Raises NodeLost when another holder has taken the id."""
        fields = {"heartbeat": str(now), **({"info": json.dumps(dict(info))} if info is not None else {})}
        with redis_faults():
            held = self._patch([self._keys.node(node_id)], ["token", token, *_flat(fields)])
        if not held:
            raise NodeLost(f"node id {node_id!r} was taken over by another worker, or forgotten", node=node_id)

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
        with redis_faults():
            names += [keys.node_leases(node_id), keys.node_stopped(node_id)]
            return self._forget(names, [node_id, before]) == 1


def _flat(fields: Mapping[str, Any]) -> list[Any]:
    """Return a mapping as field, value, field, value, …, which is how Redis takes it."""
    return [part for pair in fields.items() for part in pair]
