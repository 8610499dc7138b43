"""Random lives of sandboxes on a few small nodes, next to a plain model of what must hold."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from app.calls import ClaimWord
from app.database import connect
from app.keys import Keys
from app.records import Event, NodeState, State, millicpus
from app.sweep import Sweep
from rock.errors import BadRequest, NoCapacity
from tests.unit.app.conftest import GB, World

IDS = st.sampled_from([f"s{index}" for index in range(7)])
CLUSTERS = st.sampled_from(["", "x", "zb"])
# node -> (CPUs, cluster label)
NODES = {"n1": (2.0, ""), "n2": (2.0, ""), "n3": (1.0, "x")}
NAMES = st.sampled_from(sorted(NODES))
LOST_AFTER = 15.0


class Ledger(RuleBasedStateMachine):
    """Starts, ends, losses and drains; the model knows who holds what, and who came when."""

    redis_url = ""

    def __init__(self):
        super().__init__()
        self.world = World(connect(self.redis_url), Keys("ledger:"))
        for key in self.world.redis.scan_iter("ledger:*"):
            self.world.redis.delete(key)
        self.beats, self.drained = {}, set()
        # sandbox -> (cpus, cluster); in order of arrival. Calls in flight, and who was placed when they came.
        self.living, self.calls, self.number = {}, {}, 0
        # Sandboxes in stock, ready or starting -> their node.
        self.stock = {}
        for name in NODES:
            self.join(name)

    def join(self, name):
        cpus, cluster = NODES[name]
        self.world.node(name, cpus, 4 * GB, cluster=cluster)
        self.beats[name] = self.world.now

    def teardown(self):
        for sandbox_id in [*self.living, *self.stock]:
            self.world.stop(sandbox_id)
        for call_id in self.calls:
            self.world.results.complete(call_id, {}, self.world.now)
        for name in NODES:
            node = self.world.nodes.get(name)
            assert (node.used_cpus, node.used_memory) == (0, 0)
            assert not [call for call in self.world.results.inflight(name) if not self.is_start(call)]
            assert not self.world.redis.exists(self.world.keys.node_stock(name))
        assert not list(self.world.redis.scan_iter(self.world.keys.stock("*")))
        assert self.world.line.waiting() == 0
        assert not self.world.redis.exists(self.world.keys.lines())
        self.world.redis.close()

    def is_start(self, call_id):
        return self.world.results.load(call_id).route == "start"

    def alive(self):
        return [name for name, beat in self.beats.items() if beat >= self.world.now - LOST_AFTER]

    def may_take(self, name, cluster):
        return not cluster or NODES[name][1] in ("", cluster)

    def open_now(self):
        return [name for name in self.alive() if name not in self.drained]

    @rule(
        sandbox_id=IDS,
        cpus=st.sampled_from([0.1, 0.7, 1.0, 2.0, 3.0]),
        cluster=CLUSTERS,
        route=st.sampled_from(["", "k"]),
    )
    def start(self, sandbox_id, cpus, cluster, route):
        self.number += 1
        options = {"cpus": cpus, "cluster": cluster, "route_key": route, "request_id": str(self.number), "limit": 30.0}
        large = [name for name in self.alive() if self.may_take(name, cluster) and NODES[name][0] >= cpus]
        if sandbox_id in self.living:
            assert self.world.create(sandbox_id, **options).word is ClaimWord.EXISTS
        elif not large:
            with pytest.raises((BadRequest, NoCapacity)):
                self.world.create(sandbox_id, **options)
        else:
            assert self.world.create(sandbox_id, **options).word is ClaimWord.NEW
            self.living[sandbox_id] = (cpus, cluster)

    @rule(name=NAMES, running=st.booleans())
    def put_into_stock(self, name, running):
        self.stock[self.world.pool(name, running)] = name

    @rule(data=st.data())
    def stock_is_ready_or_ends(self, data):
        if self.stock:
            sandbox_id = data.draw(st.sampled_from(sorted(self.stock)))
            if not self.world.run(sandbox_id):
                assert self.world.stop(sandbox_id, only_stock=True)
                del self.stock[sandbox_id]

    @rule(cluster=CLUSTERS, route=st.sampled_from(["", "", "k"]), filled=NAMES)
    def take(self, cluster, route, filled):
        self.put_into_stock(filled, True)
        self.number += 1
        waited, ready = self.world.line.waiting(), self.ready(cluster)
        options = {"cluster": cluster, "route_key": route, "request_id": str(self.number), "limit": 30.0}
        try:
            claim, sandbox_id = self.world.take(f"t{self.number}", **options)
        except (BadRequest, NoCapacity):
            assert not ready
            return
        if sandbox_id:
            # Once more: the same answer, and no other sandbox.
            assert self.world.take(f"t{self.number}", **options)[1] == sandbox_id
            assert not waited and claim.node == ready[sandbox_id] == self.stock.pop(sandbox_id)
            assert not self.world.stop(sandbox_id, only_stock=True)
        else:
            assert waited or route or not ready
            sandbox_id = f"t{self.number}"
        self.living[sandbox_id] = (1.0, cluster)

    def ready(self, cluster):
        """Return what of the stock a start of that cluster could take now: sandbox -> node."""
        found = {}
        for record in self.world.sandboxes.many(self.stock):
            node = self.world.nodes.get(record.node)
            free = self.world.redis.zscore(self.world.keys.free_cpus(node.pool), node.node_id)
            room = node.cpus - node.used_cpus >= 1.0 and node.memory - node.used_memory >= GB
            open_ = free is not None and node.node_id in self.open_now() and self.may_take(node.node_id, cluster)
            if record.state is State.RUNNING and room and open_:
                found[record.sandbox_id] = record.node
        return found

    @rule(sandbox_id=IDS)
    def started(self, sandbox_id):
        record = self.world.sandboxes.get(sandbox_id)
        if record is not None and record.node:
            assert self.world.run(sandbox_id) == (record.state is State.PENDING)

    @rule(sandbox_id=IDS)
    def failed(self, sandbox_id):
        if self.world.run(sandbox_id, State.STOPPED, Event.START_FAILED):
            del self.living[sandbox_id]

    @rule(sandbox_id=IDS)
    def stop(self, sandbox_id):
        assert self.world.stop(sandbox_id) == (sandbox_id in self.living)
        self.living.pop(sandbox_id, None)

    @rule(name=NAMES)
    def drain(self, name):
        self.world.nodes.admit(name, NodeState.DRAINING, self.world.now)
        self.drained.add(name)

    @rule(name=NAMES)
    def resume(self, name):
        self.world.nodes.admit(name, NodeState.ACTIVE, self.world.now)
        self.drained.discard(name)

    @rule(name=NAMES)
    def beat(self, name):
        self.world.nodes.heartbeat(name, "t", self.world.now)
        self.beats[name] = self.world.now

    @rule(name=NAMES)
    def rejoin(self, name):
        self.join(name)

    @rule(seconds=st.sampled_from([1.0, 7.0, 16.0]))
    def time_passes(self, seconds):
        self.world.now += seconds

    @rule()
    def sweep(self):
        Sweep(self.world.stores).run(self.world.now)
        for sandbox_id in list(self.living):
            record = self.world.sandboxes.get(sandbox_id)
            if record.state is State.STOPPED:
                lost = record.node and record.node not in self.alive()
                expired = not record.node and record.created + 30 <= self.world.now
                hopeless = not record.node and "no living node" in record.reason
                # Of an earlier death: a start on a lost node is over at its own end, 30 s after its limit.
                overdue = record.node and record.created + 60 <= self.world.now
                assert lost or expired or hopeless or overdue, record
                del self.living[sandbox_id]
        for sandbox_id, name in list(self.stock.items()):
            record = self.world.sandboxes.get(sandbox_id)
            if record.state is State.STOPPED:  # one that was starting when its node was lost, or for too long
                assert not record.started and (name not in self.alive() or record.created + 60 <= self.world.now)
                del self.stock[sandbox_id]

    @rule(sandbox_id=IDS)
    def command(self, sandbox_id):
        self.number += 1
        call = self.world.call(str(self.number), sandbox_id=sandbox_id)
        record = self.world.sandboxes.get(sandbox_id)
        if record is not None and record.state is State.RUNNING and record.node in self.alive():
            self.world.results.claim(call, self.world.now)
            self.calls[call.call_id] = record.node

    @rule(data=st.data())
    def complete(self, data):
        if self.calls:
            call_id = data.draw(st.sampled_from(sorted(self.calls)))
            done = self.world.results.load(call_id).done
            assert self.world.results.complete(call_id, {}, self.world.now) == (not done)
            assert not self.world.results.complete(call_id, {}, self.world.now)
            del self.calls[call_id]

    def records(self):
        return {record.sandbox_id: record for record in self.world.sandboxes.many(self.living)}

    @invariant()
    def nothing_is_lost_or_counted_twice(self):
        records = self.records()
        for name, (cpus, _) in NODES.items():
            node = self.world.nodes.get(name)
            mine = {key: self.living[key] for key, record in records.items() if record.node == name}
            assert millicpus(node.used_cpus) == sum(millicpus(held[0]) for held in mine.values())
            assert node.used_cpus <= cpus and node.used_memory == GB * len(mine) <= 4 * GB
            assert self.world.redis.smembers(self.world.keys.node_sandboxes(name)) == set(mine)
            assert all(self.may_take(name, held[1]) for held in mine.values())
            free = self.world.redis.zscore(self.world.keys.free_cpus(node.pool), name)
            assert free is None or (free == 1000 * cpus - millicpus(node.used_cpus) and name not in self.drained)
        assert all(record.inflight >= 0 for record in records.values())

    @invariant()
    def what_is_in_stock_is_nobodys(self):
        for name in NODES:
            mine = {sandbox_id for sandbox_id, node in self.stock.items() if node == name}
            assert set(self.world.stores.stock.ids(name)) == mine
            assert self.world.nodes.counts([name])[name][1] == len(mine)
        assert not {record.sandbox_id for record in self.world.sandboxes.list()} & set(self.stock)

    @invariant()
    def the_line_holds_those_without_a_node_in_order_of_arrival(self):
        lines, records = {}, self.records()
        for name, (_, cluster) in self.living.items():
            if not records[name].node:
                lines.setdefault(cluster, []).append(name)
        keys, redis = self.world.keys, self.world.redis
        assert set(redis.zrange(keys.lines(), 0, -1)) == set(lines)
        for cluster, names in lines.items():
            assert redis.zrange(keys.line(cluster), 0, -1) == names
            assert redis.zscore(keys.lines(), cluster) == redis.zscore(keys.line(cluster), names[0])
        assert redis.zcard(keys.waiting()) == sum(map(len, lines.values()))

    @invariant()
    def nobody_waits_who_could_go(self):
        """The first of all who wait fits nowhere; a later one fits only where an earlier one waits for the node, too."""
        free, records = {}, self.records()
        for name in self.open_now():
            node = self.world.nodes.get(name)
            if self.world.redis.zscore(self.world.keys.free_cpus(node.pool), name) is not None:
                free[name] = (node.cpus - node.used_cpus, node.memory - node.used_memory)
        for sandbox_id, (cpus, cluster) in self.living.items():
            if records[sandbox_id].node:
                continue
            for name, (free_cpus, free_memory) in list(free.items()):
                if self.may_take(name, cluster):
                    assert free_cpus + 1e-6 < cpus or free_memory < GB, (sandbox_id, name)
                    del free[name]


def test_random_lives_never_leak_or_overbook_and_go_in_order(redis_url):
    machine = type("Machine", (Ledger,), {"redis_url": redis_url})
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        machine, settings=settings(max_examples=15, stateful_step_count=30, deadline=None, suppress_health_check=checks)
    )
