"""What Redis keeps of sandboxes and nodes, and the moves a sandbox may make. Pure: no Redis, no clock."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

# One definition on both sides of the wire; offered from here too, where the rest of a record is.
from rock.actions import CommitPhase
from rock.actions import PhaseStatus as PhaseStatus
from rock.actions import State as State
from rock.errors import RockError


class Event(StrEnum):
    """Why a sandbox moved; stands in `state_history` and in `stop_event`."""

    CREATE = "create"
    STARTED = "started"
    START_FAILED = "start_failed"
    STOP = "stop"
    RESTART = "restart"
    TAKEN = "taken_from_pool"
    EXPIRED = "lease_expired"
    GONE = "container_gone"
    OUT_OF_MEMORY = "out_of_memory"
    DISK_LIMIT = "disk_limit"
    NODE_LOST = "node_lost"
    DELETE = "delete"
    AUTO_DELETE = "auto_delete"

    @property
    def is_death(self) -> bool:
        """True when nobody asked for the end: later calls are told `sandbox_gone` (5000), not the caller's fault."""
        return self in (Event.GONE, Event.OUT_OF_MEMORY, Event.NODE_LOST)


class PhaseName(StrEnum):
    """The phases of a start, as clients show them."""

    IMAGE_PULL = "image_pull"
    DOCKER_RUN = "docker_run"


class NodeState(StrEnum):
    """Whether a node takes new sandboxes."""

    ACTIVE = "active"
    DRAINING = "draining"


# The only allowed moves; app/lua/transition.lua carries them out.
TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.PENDING: frozenset({State.RUNNING, State.STOPPED}),
    State.RUNNING: frozenset({State.STOPPED}),
    State.STOPPED: frozenset({State.PENDING, State.ARCHIVING, State.DELETED}),
    State.ARCHIVING: frozenset({State.ARCHIVED, State.STOPPED}),
    State.ARCHIVED: frozenset({State.PENDING, State.DELETED}),
    State.DELETED: frozenset(),
}

_JSON = ("spec", "identity", "port_mapping", "container", "commit")
_NUMBERS = ("lease", "retention", "created", "expires", "started", "stopped", "deleted")
_TEXTS = ("stop_event", "reason", "host_name", "host_ip", "runtime", "start_call", "route_key", "line", "stock")


@dataclass(frozen=True)
class SandboxRecord:
    """One sandbox as Redis keeps it. Times are epoch seconds, 0 = not yet."""

    sandbox_id: str
    owner: str
    # "" while it waits for room.
    node: str
    # CPUs and bytes that are reserved on the node while the sandbox is in its `sandboxes` set.
    cpus: float
    memory: int
    # Idle lease in seconds; 0: never expires.
    lease: float
    created: float
    # Seconds for which its container and files are kept once it has stopped; 0: not at all.
    retention: float = 0.0
    # The StartRequest without credentials, variables and docker_args: what status shows.
    spec: dict[str, Any] = field(default_factory=dict)
    # user_id, experiment_id, namespace, cluster of the caller's headers.
    identity: dict[str, str] = field(default_factory=dict)
    state: State = State.PENDING
    # The start call, which also tells one life of a reused id from the next.
    start_call: str = ""
    route_key: str = ""
    expires: float = 0.0
    # Calls in flight: the lease does not end while there are any.
    inflight: int = 0
    started: float = 0.0
    stopped: float = 0.0
    deleted: float = 0.0
    # Event that ended it, and the reason in words.
    stop_event: str = ""
    reason: str = ""
    # Where it runs, as the node says.
    host_name: str = ""
    host_ip: str = ""
    runtime: str = ""
    port_mapping: dict[str, int] = field(default_factory=dict)
    # What the node keeps of its container: its start, mounts, and notes on what is not enforced.
    container: dict[str, Any] = field(default_factory=dict)
    # The last commit (`Commit`), {} before the first.
    commit: dict[str, Any] = field(default_factory=dict)
    phases: dict[str, dict[str, Any]] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    # The line that it waits in: the pool of the cluster that was asked for (placement.pool_of).
    line: str = ""
    # Its place there, from 1, while it waits for room; read with the record, never kept.
    place: int = 0
    # Mark under which it waits in the pool of its node (stock.mark_of); "" for everybody's own.
    stock: str = ""

    @property
    def waits(self) -> bool:
        """True while it is starting and has no node yet."""
        return self.state is State.PENDING and not self.node

    @property
    def kept(self) -> bool:
        """True when its container outlives its end: it has run, and is to be kept for a while."""
        return self.retention > 0 and self.started > 0

    @property
    def has_container(self) -> bool:
        """True when its node has made (or started again) the container of this life."""
        return self.container.get("start") == self.start_call

    @property
    def failed_start(self) -> bool:
        """True when it never ran: its status stays visible so that polling clients learn why."""
        return self.stop_event == Event.START_FAILED.value

    def to_hash(self) -> dict[str, str]:
        """Return the fields of the Redis hash; CPUs become thousandths, so that sums are exact."""
        fields: dict[str, Any] = {
            "owner": self.owner, "node": self.node, "cpus": millicpus(self.cpus), "memory": self.memory,
            "lease": self.lease, "retention": self.retention, "created": self.created, "state": self.state.value, "start_call": self.start_call,
            "route_key": self.route_key, "line": self.line, "expires": self.expires, "inflight": self.inflight, "started": self.started,
            "stopped": self.stopped, "deleted": self.deleted, "stop_event": self.stop_event, "reason": self.reason, "host_name": self.host_name,
            "host_ip": self.host_ip, "runtime": self.runtime, "stock": self.stock, "history": ",".join(map(json.dumps, self.history)),
        }  # fmt: skip
        fields.update({name: json.dumps(getattr(self, name)) for name in _JSON})
        fields.update({phase_field(name): json.dumps(phase) for name, phase in self.phases.items()})
        return {name: str(value) for name, value in fields.items()}

    @classmethod
    def from_hash(cls, sandbox_id: str, fields: Mapping[str, str]) -> "SandboxRecord":
        """Return the record in the hash `fields`. Raises KeyError when it is not one."""
        decoded: dict[str, Any] = {name: json.loads(fields.get(name) or "{}") for name in _JSON}
        decoded.update({name: float(fields.get(name) or 0) for name in _NUMBERS})
        decoded.update({name: fields.get(name, "") for name in _TEXTS})
        return cls(
            sandbox_id=sandbox_id, owner=fields["owner"], node=fields["node"], state=State(fields["state"]),
            cpus=int(fields["cpus"]) / 1000, memory=int(fields["memory"]), inflight=int(fields.get("inflight") or 0),
            phases={phase.value: json.loads(fields[phase_field(phase.value)])
                    for phase in PhaseName if phase_field(phase.value) in fields},
            history=json.loads(f"[{fields.get('history', '')}]"), **decoded,
        )  # fmt: skip


@dataclass(frozen=True)
class Commit:
    """How a sandbox's last commit stands. Times are epoch seconds, 0 = not yet."""

    call: str
    image_tag: str
    phase: CommitPhase = CommitPhase.RUNNING
    started: float = 0.0
    completed: float = 0.0
    # Of a failed one: `commit` or `push`, a code from the clients' closed list, and why.
    stage: str = ""
    code: str = ""
    message: str = ""

    @classmethod
    def of(cls, record: SandboxRecord) -> "Commit | None":
        """Return the last commit of a record, None before the first."""
        return cls(**{**record.commit, "phase": CommitPhase(record.commit["phase"])}) if record.commit else None

    def on(self, record: SandboxRecord) -> SandboxRecord:
        """Return the record with this as its last commit."""
        return replace(record, commit={**asdict(self), "phase": self.phase.value})

    def succeeded(self, now: float) -> "Commit":
        """Return it, done at `now`."""
        return replace(self, phase=CommitPhase.SUCCEEDED, completed=now)

    def failed(self, error: RockError, stage: str, code: str, now: float) -> "Commit":
        """Return it, failed at `now` in a stage."""
        message = error.message[:2000]
        return replace(self, phase=CommitPhase.FAILED, completed=now, stage=stage, code=code, message=message)


@dataclass(frozen=True)
class NodeRecord:
    """One node as Redis keeps it."""

    node_id: str
    # What it has to give, overcommit included: CPUs and bytes.
    cpus: float
    memory: int
    used_cpus: float = 0.0
    used_memory: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    state: NodeState = NodeState.ACTIVE
    # Epoch seconds of the last sign of life.
    heartbeat: float = 0.0
    # Signed off at a clean end, and not back.
    left: bool = False
    # docker, podman, local or remote.
    deployment: str = ""
    host_name: str = ""
    host_ip: str = ""
    # Further facts for people (engine version, started, …), texts.
    info: dict[str, str] = field(default_factory=dict)
    # The pool of its cluster label (placement.pool_of); "" takes every start.
    pool: str = ""
    # Until when it takes nothing new, since its disk was full (epoch seconds; 0: it was not).
    full_until: float = 0.0

    @property
    def is_active(self) -> bool:
        """True when it takes new sandboxes, as far as it is up to people."""
        return self.state is NodeState.ACTIVE

    def to_hash(self) -> dict[str, str]:
        """Return what a registration writes: not the reservations, state and heartbeat, which are not the node's."""
        return {
            "cpus": str(millicpus(self.cpus)), "memory": str(self.memory), "labels": json.dumps(self.labels),
            "deployment": self.deployment, "host_name": self.host_name, "host_ip": self.host_ip,
            "info": json.dumps(self.info), "pool": self.pool, "left": "",
        }  # fmt: skip

    @classmethod
    def from_hash(cls, node_id: str, fields: Mapping[str, str]) -> "NodeRecord":
        """Return the record in the hash `fields`. Raises KeyError when it is not one."""
        return cls(
            node_id=node_id, cpus=int(fields["cpus"]) / 1000, memory=int(fields["memory"]),
            used_cpus=int(fields.get("used_cpus") or 0) / 1000, used_memory=int(fields.get("used_memory") or 0),
            labels=json.loads(fields.get("labels") or "{}"), state=NodeState(fields.get("state", "active")),
            heartbeat=float(fields.get("heartbeat") or 0), deployment=fields.get("deployment", ""),
            host_name=fields.get("host_name", ""), host_ip=fields.get("host_ip", ""),
            info=json.loads(fields.get("info") or "{}"), pool=fields.get("pool", ""), left=bool(fields.get("left")),
            full_until=float(fields.get("full_until") or 0),
        )  # fmt: skip


def millicpus(cpus: float) -> int:
    """Return `cpus` in thousandths, rounded up: a reservation is never smaller than what is used."""
    thousandths = round(cpus * 1000, 3)
    whole = int(thousandths)
    return whole if whole == thousandths else whole + 1


def phase_field(phase: str) -> str:
    """Return the hash field that holds a phase: fields of their own, so that two writers do not undo each other."""
    return f"phase:{phase}"
