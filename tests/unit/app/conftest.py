"""Stores over a real Redis, each test under a prefix of its own."""

import uuid
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from app.calls import Call, ClaimWord, call_id
from app.database import connect
from app.keys import Keys
from app.records import Event, NodeRecord, SandboxRecord, State
from app.results import ResultStore
from app.store import NodeStore, SandboxStore

GB = 1024**3


@dataclass
class World:
    """Stores, and the moves that tests make with them. Time is `now`, in seconds; nobody waits."""

    redis: Any
    keys: Keys
    now: float = 1000.0
    nodes: NodeStore = field(init=False)
    sandboxes: SandboxStore = field(init=False)
    results: ResultStore = field(init=False)

    def __post_init__(self):
        self.nodes = NodeStore(self.redis, self.keys)
        self.sandboxes = SandboxStore(self.redis, self.keys)
        self.results = ResultStore(self.redis, self.keys)

    def node(self, node_id="n1", cpus=2.0, memory=8 * GB, token="t"):
        self.nodes.register(node_id, token, NodeRecord(node_id, cpus, memory), self.now)

    def call(self, request_id, route="run_in_session", sandbox_id="s1", body=None, owner=""):
        return Call(
            call_id(owner, request_id), request_id, owner, route, sandbox_id, body or {"command": "x"}, created=self.now
        )

    def create(
        self,
        sandbox_id="s1",
        node="n1",
        cpus=1.0,
        memory=GB,
        lease=60.0,
        owner="",
        request_id=None,
        retention=0.0,
        restarts="",
    ):
        call = self.call(request_id or f"start-{sandbox_id}", "start", sandbox_id, {"image": "x"}, owner)
        record = SandboxRecord(
            sandbox_id, owner, node, cpus, memory, lease, self.now, retention, start_call=call.call_id
        )
        return self.sandboxes.create(record, replace(call, node=node), self.now, restarts=restarts)

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
