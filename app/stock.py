"""The warm pool: sandboxes that nodes start ahead, and which start may have one of them.

A pooled sandbox is a running one like any other (its record, container and keeper), but nobody's: no list shows it, it has no lease, and it takes
nothing of its node's room. A start that asks for just the same takes it in the script that would have placed it (app/lua/enter.lua): the record
becomes the caller's, the room is reserved, the answer stored. No node is asked, so there is no moment in which a killed process could lose it, or
give it to two. Its id is the one that it was started under, which the container bears.
"""

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from app import status
from app.calls import Call, Route, call_id, encode
from app.database import Client, redis_faults
from app.keys import Keys
from app.records import Event, NodeRecord, PhaseName, PhaseStatus, SandboxRecord, State
from app.references import canonical
from app.tally import MOVES, Tally
from rock.actions import StartRequest, dump
from rock.errors import success

OWNER = "\0pool"
"""Whose pooled sandboxes are; no key's owner can have that name."""

# What of a caller's record a sandbox from stock gets.
_GIVEN = (
    "owner", "lease", "retention", "created", "route_key", "spec", "identity", "started", "expires", "history", "stock",
)  # fmt: skip


@dataclass(frozen=True)
class Offer:
    """What a start would take from stock. An empty `mark`: nothing."""

    mark: str = ""
    # Fields of the record to set on what is taken.
    fields: Mapping[str, str] = field(default_factory=dict)
    # Envelope of the start's answer, as JSON; the script puts in which sandbox it is, and where.
    answer: str = ""
    # Seconds for which the answer can be fetched again.
    kept: int = 0


NO_OFFER = Offer()


def mark_of(request: StartRequest) -> str:
    """Return the mark of what a start asks of its container, the same for equal wishes; "" when it must have one of its own.

    It must for an id of its own, variables of its own (they are part of the container), an image that is to be fetched or asked for with a
    login, and GPUs. What is no part of a container (lease, metadata, route key, headers, time limits) does not matter.
    """
    own = request.sandbox_id or request.env or request.num_gpus or request.accelerator_type
    if own or request.pull == "always" or request.registry_username or request.registry_password:
        return ""
    wishes = [
        canonical(request.image), request.image_os, request.memory_bytes(), float(request.cpus),
        None if request.limit_cpus is None else float(request.limit_cpus), request.disk_bytes(),
        request.runtime or ("kata" if request.use_kata_runtime else None), list(request.docker_args),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(wishes).encode("utf-8", "surrogatepass")).hexdigest()[:24]


def offer(request: StartRequest, record: SandboxRecord, now: float, kept: float) -> Offer:
    """Return what the start of `record` would take from stock.

    Params:
        now: epoch seconds.
        kept: seconds for which its answer can be fetched again.
    """
    mark = mark_of(request)
    if not mark:
        return NO_OFFER
    moves = [(State.PENDING, State.RUNNING, Event.TAKEN)]
    taken = replace(
        record, started=now, expires=now + record.lease if record.lease else 0.0,
        history=[{"from_state": one.value, "to_state": to.value, "event": event.value, "timestamp": now}
                 for one, to, event in moves],
        phases={name.value: {"status": PhaseStatus.SUCCESS.value, "message": "taken from the warm pool",
                             "started_at": now, "completed_at": now} for name in PhaseName},
    )  # fmt: skip
    fields = {name: value for name, value in taken.to_hash().items() if name in _GIVEN or name.startswith("phase:")}
    return Offer(mark, fields, encode(success(status.to_start(record))), int(kept))


class Stock:
    """The pooled sandboxes in Redis."""

    def __init__(self, redis: Client, keys: Keys, tally: Tally | None = None) -> None:
        """`tally`: counts what is taken; None: nobody does."""
        self._redis, self._keys, self._tally = redis, keys, tally

    def begin(self, request: StartRequest, node: NodeRecord, limit: float, now: float) -> Call:
        """Make a pooled sandbox that is to start on `node`: record and call, in flight there. Whoever calls it carries the start out.

        Params:
            limit: seconds that it may take.
            now: epoch seconds.
        """
        body = {key: value for key, value in dump(request).items() if key not in ("request_id", "wait", "sandbox_id")}
        request_id = uuid.uuid4().hex
        id_ = call_id(OWNER, request_id)
        call = Call(id_, request_id, OWNER, Route.START.value, id_, body, node.node_id, now, now + limit)
        record = SandboxRecord(
            id_, OWNER, node.node_id, request.cpus, request.memory_bytes(), 0.0, now, start_call=id_, spec={"image": request.image},
            host_name=node.host_name, host_ip=node.host_ip, runtime=node.deployment, stock=mark_of(request),
        )  # fmt: skip
        keys = self._keys
        with redis_faults():
            pipe = self._redis.pipeline(transaction=True)
            pipe.hset(keys.sandbox(id_), mapping=record.to_hash()).hset(keys.call(id_), mapping=call.to_hash())
            pipe.hset(keys.node_stock(node.node_id), id_, record.stock).zadd(
                keys.node_inflight(node.node_id), {id_: now}
            )
            pipe.execute()
        return call

    def taken(self) -> None:
        """Count a sandbox that a start has taken."""
        if self._tally is not None:
            self._tally.count(MOVES, Event.TAKEN.value)

    def ids(self, node: str) -> list[str]:
        """Return the pooled sandboxes of a node, ready or starting."""
        with redis_faults():
            return sorted(self._redis.hkeys(self._keys.node_stock(node)))
