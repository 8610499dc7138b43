"""Sandboxes in Redis. Each change is one Lua script (app/lua), so that no half of it is ever seen."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from app.database import Client, Scripts, flat, redis_faults
from app.keys import Keys
from app.line import Line
from app.records import (
    TRANSITIONS,
    Commit,
    Event,
    PhaseName,
    PhaseStatus,
    SandboxRecord,
    State,
    phase_field,
)
from app.tally import MOVES, PHASE_SECONDS, Tally

# Named here because inside the classes `list` is a method.
Ids = list[str]
Records = list[SandboxRecord]


class SandboxStore:
    """Records, leases and reservations of sandboxes."""

    def __init__(
        self, redis: Client, keys: Keys, line: Line, keep_stopped: float = 3600.0, tally: Tally | None = None
    ) -> None:
        """
        Params:
            redis: client with decoded responses.
            line: makes sandboxes, and lets the next go when one ends.
            keep_stopped: seconds for which the record of an ended sandbox can still be read.
            tally: counts moves and phases.
        """
        self._redis, self._keys, self._line, self._keep_stopped = redis, keys, line, keep_stopped
        self._tally = tally
        scripts = Scripts(redis)
        self._transition = scripts.load("room", "line", "stock", "transition")
        self._renew, self._expired, self._patch = (scripts.load(name) for name in ("renew", "expired", "patch"))

    def last_command(self, sandbox_id: str, session: str | None) -> str | None:
        """Return the id of the last command's call in a session, or in any (None); None when none is known."""
        with redis_faults():
            lines = self._redis.hget(self._keys.sandbox(sandbox_id), "last") or ""
        noted = [line.split(" ", 1) for line in lines.split("\n") if line]
        return next((call_id for call_id, name in noted if session in (None, name)), None)

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
        """As `renew`; also returns the last heartbeat (epoch seconds, 0 without a node) of the node that has the sandbox."""
        keys = self._keys
        args = [sandbox_id, now, owner, int(admin), keys.node_leases("*"), keys.node("*"), keys.line("*")]
        with redis_faults():
            reply = self._renew([self._keys.sandbox(sandbox_id)], args)
        if not reply:
            return None
        fields = dict(zip(reply[0][::2], reply[0][1::2], strict=True))
        return replace(SandboxRecord.from_hash(sandbox_id, fields), place=int(reply[2])), float(reply[1])

    def transition(
        self, sandbox_id: str, allowed_from: Iterable[State], to: State, event: Event, now: float,
        *, only_start: str = "", only_expired: bool = False, only_waiting: bool = False, only_stock: bool = False, reason: str = "",
        **fields: str,
    ) -> bool:  # fmt: skip
        """Move a sandbox to state `to`, if it is in one of `allowed_from`.

        Leaving for a state that needs no resources removes the lease and gives the capacity (or the place in line) back,
        once; whose turn it is then goes.

        Params:
            only_start: move only the life that this start call began (an id may be used again).
            only_expired: move only if the lease is over and no call is in flight (the reaper's check).
            only_waiting: move only if it still waits for room.
            only_stock: move only while it is in its node's pool.
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
        args = [*self._line.arguments(now), sandbox_id, ",".join(sources), to.value, event.value, only_start]
        args += [int(only_expired), int(only_waiting), int(self._keep_stopped), int(event.is_death), int(only_stock)]
        args += [*(("reason", reason) if reason else ()), *flat(fields)]
        with redis_faults():
            word = self._transition([self._keys.sandbox(sandbox_id)], args)
        if word == "freed":
            self._line.freed(now)
        moved = word in ("ok", "freed")
        if moved and self._tally is not None:
            self._tally.count(MOVES, event.value)
        return moved

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
            written = self._patch([key], ["start_call", only_start, name, json.dumps(entry)]) == 1
        if written and ended and self._tally is not None:
            self._tally.observe(PHASE_SECONDS, now - float(entry["started_at"]), phase.value, status.value)
        return written

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
            return self._patch([self._keys.sandbox(sandbox_id)], ["start_call", only_start, *flat(fields)]) == 1

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
        """Return the records of the sandboxes that hold capacity on `node`, and then of those in its pool."""
        with redis_faults():
            ids = sorted(self._redis.smembers(self._keys.node_sandboxes(node)))
            pooled = sorted(self._redis.hkeys(self._keys.node_stock(node)))
        return self.many([*ids, *pooled])

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
