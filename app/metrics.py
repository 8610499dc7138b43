"""The page for Prometheus: what was counted (`app.tally`), and how the fleet is at this moment, read from Redis when it is asked for."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from app.database import Client, redis_faults
from app.keys import Keys
from app.records import NodeRecord
from app.stores import Stores
from app.tally import METERS, SECONDS, SUM, Meter, Tally

CONTENT_TYPE = CONTENT_TYPE_LATEST
"""Of the page."""
Counted = dict[tuple[str, ...], dict[int, float]]
"""Of one meter: label values -> bucket (0 for a counter) -> number."""


@dataclass(frozen=True)
class Load:
    """What is under way on a node: sandboxes, those of its pool, calls, and messages in its two queues."""

    sandboxes: int
    pooled: int
    inflight: int
    quick: int
    slow: int


Rows = Sequence[tuple[NodeRecord, Load]]


class Metrics:
    """Reads, and renews no lease by it."""

    def __init__(self, redis: Client, keys: Keys, stores: Stores, tally: Tally) -> None:
        """
        Params:
            redis: client with decoded responses.
            tally: what this process counts; metrics are off where it counts nothing.
        """
        self._redis, self._keys, self.tally = redis, keys, tally
        self._nodes, self._line = stores.nodes, stores.line

    def page(self, now: float) -> bytes:
        """Return everything in Prometheus' text format (`CONTENT_TYPE`) at `now` (epoch seconds). Raises DatabaseAway."""
        registry = CollectorRegistry(auto_describe=False)
        families = [*self._counted(), *self._fleet(now), *self._waiting(now)]
        registry.register(_Families(families))
        return generate_latest(registry)

    def _counted(self) -> Iterator[Metric]:
        """Yield what all processes have counted."""
        with redis_faults():
            fields = self._redis.hgetall(self._keys.metrics())
        found: dict[str, Counted] = {meter.name: {} for meter in METERS}
        for field, number in fields.items():
            name, *labels = json.loads(field)
            bucket = labels.pop() if labels and isinstance(labels[-1], int) else 0
            if name in found:  # else of another version
                found[name].setdefault(tuple(labels), {})[bucket] = float(number)
        for meter in METERS:
            yield _family(meter, found[meter.name])

    def _fleet(self, now: float) -> Iterator[Metric]:
        """Yield capacity, reservations and work of each node."""
        nodes = self._nodes.list()
        loads = self._loads([node.node_id for node in nodes])
        rows = list(zip(nodes, loads, strict=True))
        yield _gauge(
            "rock_node_up", "Whether the node is alive.", rows, lambda node, load: self._nodes.is_alive(node, now)
        )
        yield _gauge(
            "rock_node_draining", "Whether it takes no new sandboxes.", rows, lambda node, load: not node.is_active
        )
        yield _gauge("rock_node_cpus", "CPUs to hand out, overcommit included.", rows, lambda node, load: node.cpus)
        yield _gauge("rock_node_reserved_cpus", "CPUs handed out.", rows, lambda node, load: node.used_cpus)
        yield _gauge("rock_node_memory_bytes", "Memory to hand out.", rows, lambda node, load: node.memory)
        yield _gauge("rock_node_reserved_memory_bytes", "Memory handed out.", rows, lambda node, load: node.used_memory)
        yield _gauge("rock_node_sandboxes", "Sandboxes with room on the node.", rows, lambda node, load: load.sandboxes)
        yield _gauge("rock_node_pooled", "Sandboxes of its warm pool.", rows, lambda node, load: load.pooled)
        yield _gauge("rock_node_calls_in_flight", "Calls given to the node.", rows, lambda node, load: load.inflight)
        queues = GaugeMetricFamily(
            "rock_node_queue_length", "Messages that no process took yet.", labels=("node", "queue")
        )
        for node, load in rows:
            queues.add_metric((node.node_id, "session"), load.quick)
            queues.add_metric((node.node_id, "lifecycle"), load.slow)
        yield queues

    def _loads(self, node_ids: Sequence[str]) -> list[Load]:
        """Return what is under way on each node, in one round trip."""
        keys, broker = self._keys, self._keys.broker_prefix()
        with redis_faults():
            pipe = self._redis.pipeline(transaction=False)
            for node_id in node_ids:
                pipe.scard(keys.node_sandboxes(node_id)).hlen(keys.node_stock(node_id)).zcard(
                    keys.node_inflight(node_id)
                )
                pipe.llen(broker + keys.node_queue(node_id)).llen(broker + keys.lifecycle_queue(node_id))
            found = iter(pipe.execute())
        return [Load(*numbers) for numbers in zip(*[found] * 5, strict=True)]

    def _waiting(self, now: float) -> Iterator[Metric]:
        """Yield the lines of starts that wait for room."""
        length = GaugeMetricFamily("rock_starts_waiting", "Starts that wait for room.", labels=("cluster",))
        oldest = GaugeMetricFamily("rock_starts_waiting_seconds", "How long the first has waited.", labels=("cluster",))
        for cluster, (count, since) in self._line.lengths().items():
            length.add_metric((cluster,), count)
            oldest.add_metric((cluster,), max(0.0, now - since) if since else 0.0)
        yield length
        yield oldest


class _Families:
    """What the library asks for: an object that yields families."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self._families


def _gauge(name: str, help: str, rows: Rows, read: Callable[[NodeRecord, Load], float]) -> Metric:
    """Return a gauge with one number per node."""
    family = GaugeMetricFamily(name, help, labels=("node",))
    for node, load in rows:
        family.add_metric((node.node_id,), float(read(node, load)))
    return family


def _family(meter: Meter, counted: Counted) -> Metric:
    """Return what was counted for one meter."""
    if not meter.histogram:
        counter = CounterMetricFamily(meter.name, meter.help, labels=meter.labels)
        for labels, numbers in sorted(counted.items()):
            counter.add_metric(labels, numbers.get(0, 0.0))
        return counter
    histogram = HistogramMetricFamily(meter.name, meter.help, labels=meter.labels)
    for labels, numbers in sorted(counted.items()):
        total, buckets = 0.0, []
        for place, bound in enumerate((*map(str, SECONDS), "+Inf")):
            total += numbers.get(place, 0.0)
            buckets.append((bound, total))
        histogram.add_metric(labels, buckets, numbers.get(SUM, 0.0))
    return histogram
