"""Stores over a real Redis, each test under a prefix of its own."""

import json
import uuid
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from app.calls import Call, ClaimWord, call_id
from app.database import connect
from app.gate_store import GateStore
from app.image_store import ImageStore
from app.keys import Keys
from app.line import Line
from app.node_store import NodeStore
from app.placement import line_of, pool_of
from app.records import Event, NodeRecord, SandboxRecord, State
from app.results import ResultStore
from app.stock import NO_OFFER, Stock, offer
from app.store import SandboxStore
from app.stores import Stores
from rock.actions import StartRequest

GB = 1024**3


def wish(**fields):
    """Return a start request for one CPU and one gigabyte."""
    return StartRequest(**{"image": "x", "cpus": 1.0, "memory": "1g", **fields})


@dataclass
class World:
    """Stores, and the moves that tests make with them. Time is `now`, in seconds; nobody waits."""

    redis: Any
    keys: Keys
    now: float = 1000.0
    line: Line = field(init=False)
    nodes: NodeStore = field(init=False)
    sandboxes: SandboxStore = field(init=False)
    results: ResultStore = field(init=False)

    def __post_init__(self):
        self.line = Line(self.redis, self.keys)
        self.nodes = NodeStore(self.redis, self.keys, self.line)
        self.sandboxes = SandboxStore(self.redis, self.keys, self.line)
        self.results = ResultStore(self.redis, self.keys)

    @property
    def stores(self):
        return Stores(self.line, self.sandboxes, self.nodes, self.results, ImageStore(self.redis, self.keys),
                      Stock(self.redis, self.keys), GateStore(self.redis, self.keys))  # fmt: skip

    def node(self, node_id="n1", cpus=2.0, memory=8 * GB, token="t", cluster=""):
        record = NodeRecord(node_id, cpus, memory, labels={"cluster": cluster}, pool=pool_of(cluster))
        self.nodes.register(node_id, token, record, self.now)

    def call(self, request_id, route="run_in_session", sandbox_id="s1", body=None, owner=""):
        return Call(
            call_id(owner, request_id), request_id, owner, route, sandbox_id, body or {"command": "x"}, created=self.now
        )

    def create(
        self, sandbox_id="s1", cpus=1.0, memory=GB, lease=60.0, owner="", request_id=None,
        cluster="", route_key="", image="x", limit=600.0, retention=0.0, only="", offered=None,
    ):  # fmt: skip
        """`offered`: the request that may be served from stock."""
        call = self.call(request_id or f"start-{sandbox_id}", "start", sandbox_id, {"image": "x"}, owner)
        record = SandboxRecord(
            sandbox_id, owner, "", cpus, memory, lease, self.now, retention, start_call=call.call_id, spec={"image": image},
            identity={"cluster": cluster}, line=line_of(cluster, only), route_key=route_key,
        )  # fmt: skip
        taken = offer(offered, record, self.now, 600.0) if offered else NO_OFFER
        return self.line.enter(record, replace(call, deadline=self.now + limit), self.now, taken)

    def pool(self, node_id="n1", running=True, **wishes):
        """Put a sandbox into a node's pool; return its id."""
        call = self.stores.stock.begin(wish(**wishes), self.nodes.get(node_id), 60.0, self.now)
        if running:
            assert self.run(call.sandbox_id)
            assert self.results.complete(call.call_id, {"status": "Success"}, self.now)
        return call.sandbox_id

    def take(self, sandbox_id="s1", wished=None, **options):
        """Start one that a pool may have; return the claim, and the id of what was taken from stock ("": nothing was)."""
        claim = self.create(sandbox_id, offered=wished or wish(), **options)
        return claim, json.loads(claim.envelope)["result"]["sandbox_id"] if claim.word is ClaimWord.DONE else ""

    def restart(self, ended, sandbox_id="s1", request_id="again"):
        call = self.call(request_id, "restart", sandbox_id, {})
        record = replace(self.sandboxes.get(sandbox_id), state=State.PENDING, start_call=call.call_id)
        return self.line.restart(record, call, self.now, ended)

    def where(self, sandbox_id="s1"):
        return self.sandboxes.get(sandbox_id).node

    def run(self, sandbox_id="s1", to=State.RUNNING, event=Event.STARTED, **options):
        return self.sandboxes.transition(sandbox_id, [State.PENDING], to, event, self.now, **options)

    def stop(self, sandbox_id="s1", event=Event.STOP, **options):
        living = [State.PENDING, State.RUNNING]
        return self.sandboxes.transition(sandbox_id, living, State.STOPPED, event, self.now, **options)

    def running(self, sandbox_id="s1", **options):
        assert self.create(sandbox_id, **options).word is ClaimWord.NEW
        assert self.run(sandbox_id)
        assert self.results.complete(self.sandboxes.get(sandbox_id).start_call, {"status": "Success"}, self.now)

    def raw_keys(self):
        return {key.removeprefix(self.keys.prefix) for key in self.redis.scan_iter(f"{self.keys.prefix}*")}


@pytest.fixture
def world(redis_url):
    made = World(connect(redis_url), Keys(f"u{uuid.uuid4().hex[:8]}:"))
    yield made
    made.results.close()
    made.redis.close()
