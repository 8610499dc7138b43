"""A call: one request with an id that a node answers once. Pure data, shared by the API and the nodes."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson


class CallState(StrEnum):
    """Where a call is: claimed, taken by its node, or answered."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"


class Route(StrEnum):
    """What a call asks for. Its value is the last part of the URL and stands in `Call.route`."""

    START = "start"
    STOP = "stop"
    RESTART = "restart"
    DELETE = "delete"
    COMMIT = "commit"
    FORK = "fork"
    # For a node itself, not for a sandbox on it.
    WARM = "warmup"
    REMOVE_IMAGE = "remove_image"
    CREATE_SESSION = "create_session"
    RUN_IN_SESSION = "run_in_session"
    CLOSE_SESSION = "close_session"
    EXECUTE = "execute"
    READ_FILE = "read_file"
    WRITE_FILE = "write_file"
    UPLOAD = "upload"
    DOWNLOAD = "download"
    STATISTICS = "get_sandbox_statistics"
    # A terminal for a person, and what is typed there; both asked by the API itself for the WebSocket of a terminal.
    TERMINAL = "terminal"
    TERMINAL_INPUT = "terminal_input"
    # Part of another call's output; asked by the API itself for GET /results/{id}/output.
    OUTPUT = "output"


# Routes whose calls run one after the other in a session.
QUEUEING = frozenset({Route.CREATE_SESSION.value, Route.RUN_IN_SESSION.value})


@dataclass(frozen=True)
class Call:
    """One request on its way to the node that answers it."""

    call_id: str
    request_id: str
    # Owner of the API key that asked; "" when the service runs without keys.
    owner: str
    route: str
    sandbox_id: str
    # The dumped request. {} once the call is done: it may hold file contents or a registry password.
    body: dict[str, Any] = field(default_factory=dict, repr=False)
    # Owning node; "" until the claim found it, or a start was placed.
    node: str = ""
    # Epoch seconds.
    created: float = 0.0
    # Epoch seconds after which a call that no node has taken is failed and must not run; None = never.
    deadline: float | None = None
    state: CallState = CallState.PENDING
    # Epoch seconds when the node took it; None before.
    started: float | None = None
    # Of a stop: start call of the life that it ends. Not of the body: sent again after a restart, it is the same stop.
    life: str = ""
    # The answer, once done.
    envelope: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def is_start(self) -> bool:
        """True for what begins a life of a sandbox: a start, or a restart."""
        return self.route in (Route.START, Route.RESTART)

    @property
    def about(self) -> dict[str, str]:
        """What a log line says of it (`extra=`)."""
        return {"request_id": self.request_id, "sandbox_id": self.sandbox_id}

    @property
    def done(self) -> bool:
        """True once the call has its envelope: a node must not run it any more."""
        return self.state is CallState.DONE

    def to_hash(self) -> dict[str, str]:
        """Return the fields of the Redis hash of a new call. A text that has a key of its own (`bulk_apart`) is not among them."""
        body, bulk = bulk_apart(self.body)
        body_json = encode(body)
        return {
            # A long one has a key of its own (Keys.bulk): through a script it would be copied four times.
            **({"bulk": bulk} if 0 < len(bulk) <= BULK_LIMIT else {"bulk_apart": "1"} if bulk else {}),
            **({"life": self.life} if self.life else {}),
            **({"session": str(self.body.get("session", ""))} if self.route in QUEUEING else {}),
            "request_id": self.request_id, "owner": self.owner, "route": self.route, "sandbox": self.sandbox_id,
            "node": self.node, "created": str(self.created), "fingerprint": fingerprint(self, body_json, bulk), "state": CallState.PENDING.value,
            "deadline": "" if self.deadline is None else str(self.deadline), "body": body_json,
        }  # fmt: skip

    @classmethod
    def from_hash(cls, id_: str, fields: Mapping[str, str]) -> "Call":
        """Return the call in the hash `fields`. Raises KeyError when it is not one."""
        return cls(
            call_id=id_, request_id=fields["request_id"], owner=fields["owner"], route=fields["route"],
            sandbox_id=fields["sandbox"], node=fields.get("node", ""), state=CallState(fields["state"]),
            body=_whole(json.loads(fields.get("body") or "{}"), fields.get("bulk", "")), created=float(fields["created"]),
            deadline=float(fields["deadline"]) if fields.get("deadline") else None,
            started=float(fields["started"]) if fields.get("started") else None,
            envelope=json.loads(fields["envelope"]) if fields.get("envelope") else None, life=fields.get("life", ""),
        )  # fmt: skip


class ClaimWord(StrEnum):
    """What became of a claim; the first three carry on, the others are refusals."""

    NEW = "new"
    ATTACHED = "attached"
    DONE = "done"
    # The request id was used for another route, sandbox or body.
    CONFLICT = "conflict"
    # Commands: no such sandbox for this caller; not running; its node is silent.
    MISSING = "missing"
    STATE = "state"
    LOST = "lost"
    # Starts: the sandbox id is taken. Restarts: there is nothing to restart; no room on its node.
    EXISTS = "exists"
    FULL = "full"


@dataclass(frozen=True)
class Claim:
    """The answer to a claim."""

    word: ClaimWord
    # NEW and ATTACHED: the owning node, "" for a start that waits for room. LOST: the silent one. DONE: that of what was
    # taken from stock in this step, else "".
    node: str = ""
    # DONE: the answer, as JSON text.
    envelope: str = ""
    # STATE, LOST and EXISTS: the state of the sandbox; STATE also the event that ended it and why.
    state: str = ""
    stop_event: str = ""
    reason: str = ""

    @classmethod
    def from_reply(cls, reply: list[str]) -> "Claim":
        """Return the claim in a script's reply: a word and what belongs to it."""
        word, rest = ClaimWord(reply[0]), reply[1:]
        if word is ClaimWord.DONE:
            return cls(word, envelope=rest[0], node=rest[1] if len(rest) > 1 else "")
        if word is ClaimWord.STATE:
            return cls(word, state=rest[0], stop_event=rest[1], reason=rest[2])
        if word is ClaimWord.LOST:
            return cls(word, node=rest[0], state=rest[1])
        if word is ClaimWord.EXISTS:
            return cls(word, state=rest[0])
        return cls(word, node=rest[0] if rest else "")


def call_id(owner: str, request_id: str) -> str:
    """Return the id under which `owner`'s request is known everywhere: 32 hex digits.

    Hashing keeps caller-chosen text out of keys and queues, and one owner's ids out of another's reach.
    """
    return hashlib.sha256(f"{owner}\0{request_id}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


# Members of a body that may be large texts: kept as they are beside its JSON, since writing and reading a megabyte of that costs milliseconds each time.
_BULKY = ("content", "content_base64")


# Characters of it that still travel with the rest of the call.
BULK_LIMIT = 16 * 1024


def bulk_apart(body: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return `body` with its large text, if it has one, replaced by the mark that `_whole` looks for, and that text."""
    for name in _BULKY:
        text = body.get(name)
        if isinstance(text, str) and text:
            return {**body, name: None}, text
    return dict(body), ""


def _whole(body: dict[str, Any], bulk: str) -> dict[str, Any]:
    """Return `body` with its large text back in its place."""
    for name in _BULKY:
        if bulk and name in body and body[name] is None:
            return {**body, name: bulk}
    return body


def encode(value: Any) -> str:
    """Return `value` as compact JSON, the same text for the same value. Raises TypeError for foreign types."""
    try:
        # A megabyte of output costs 1 ms here, 3 ms there.
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:
        # Lone surrogates (a file read with errors="surrogateescape") and very large integers.
        return json.dumps(value, separators=(",", ":"), sort_keys=True)


def fingerprint(call: Call, body_json: str, bulk: str = "") -> str:
    """Return what must be equal when a request id is sent again: a digest of route, sandbox and body, in the parts of `bulk_apart`."""
    digest = hashlib.sha256(f"{call.route}\0{call.sandbox_id}\0".encode())
    digest.update(body_json.encode())
    digest.update(bulk.encode())
    return digest.hexdigest()[:32]
