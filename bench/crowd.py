"""The measures with many sandboxes: all of them up, steps in all of them at once, and what idle ones cost."""

import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from bench import loop, memory, processes
from bench.client import HI, Server, check_hi, run_body, run_path, success_of
from bench.measures import Run, stop_owned
from bench.wire import BenchError

MB = 1024 * 1024


@dataclass
class Crowd:
    """Sandboxes of one server that came up together."""

    usable: list[str]
    seconds: float


def measure_crowds(run: Run) -> None:
    """Start N sandboxes, a few starts at a time; then repeat a step in all of them; then stop all."""
    for size in run.plan.crowds:
        run.book.define(
            f"crowd{size}.up", "s", f"{size} sandboxes, {run.plan.at_a_time} starts at a time, until all are usable"
        )
        run.book.define(f"crowd{size}.usable", "sandboxes", f"how many of {size} were usable")
        run.book.define(f"crowd{size}.steps", "steps/s", f"`echo hi` in {size} sandboxes, closed loop")
        run.book.define(f"crowd{size}.latency", "ms", "each of those steps")
        run.book.define(f"crowd{size}.generator", "% of a core", "what this program used meanwhile")
        run.book.define(f"crowd{size}.down", "s", "until all are stopped")
        order = list(run.servers)
        for _ in range(run.plan.rounds):
            for server in order:
                run.say(f"{size} sandboxes on {server.name} ...")
                _one_crowd(run, server, size)
            order.append(order.pop(0))


def _one_crowd(run: Run, server: Server, size: int) -> None:
    name = f"crowd{size}"
    with crowd(run, server, size, f"{name}.up") as up:
        run.book.add(f"{name}.usable", server.name, len(up.usable))
        if len(up.usable) == size:
            run.book.add(f"{name}.up", server.name, up.seconds)
        if up.usable:
            _load(run, server, up.usable, name)
        begin = time.perf_counter()
        stop_owned(server, run.say, run.plan.at_a_time)
        run.book.add(f"{name}.down", server.name, time.perf_counter() - begin)


def _load(run: Run, server: Server, sandbox_ids: list[str], name: str) -> None:
    """Repeat a step in every sandbox at once and note what came of it."""
    address = server.address
    requests = [
        address.request("POST", run_path(), server.headers, json.dumps(run_body(one, HI)).encode())
        for one in sandbox_ids
    ]
    try:
        outcome = loop.run(address, requests, _check, run.plan.seconds)
    except BenchError as error:
        run.book.fail(f"{name}.steps", server.name, str(error))
        return
    run.book.add(f"{name}.steps", server.name, outcome.rate)
    run.book.add(f"{name}.latency", server.name, *(seconds * 1e3 for seconds in outcome.latencies))
    run.book.add(f"{name}.generator", server.name, outcome.cpu * 100)
    for failure in outcome.failures:
        run.book.fail(f"{name}.steps", server.name, failure)


def _check(status: int, body: bytes) -> None:
    check_hi(str(success_of("run_in_session", status, body)["output"]))


@contextmanager
def crowd(run: Run, server: Server, size: int, name: str) -> Iterator[Crowd]:
    """So many sandboxes with a session each; what this run has on the server is stopped at the end.

    Params:
        name: the measure that failed starts are noted under.
    """
    try:
        begin = time.perf_counter()
        usable = bring_up(run, server, size, name)
        yield Crowd(usable, time.perf_counter() - begin)
    finally:
        stop_owned(server, run.say)


def bring_up(run: Run, server: Server, size: int, name: str) -> list[str]:
    """Start so many sandboxes with a session each, a few at a time; return those that were usable.

    Params:
        name: the measure that failed starts are noted under.
    """
    usable: list[str] = []
    halted = threading.Event()

    def one(_: int) -> None:
        if halted.is_set():
            return
        client = server.client()
        try:
            usable.append(client.usable(run.shape))
        except BenchError as error:
            run.book.fail(name, server.name, str(error))
        finally:
            client.close()

    with ThreadPoolExecutor(run.plan.at_a_time) as pool:
        try:
            for _ in pool.map(one, range(size)):
                pass
        except KeyboardInterrupt:
            # Starts that are under way end first; whoever asked for them stops all.
            halted.set()
            raise
    return usable


def measure_memory(run: Run) -> None:
    """Weigh the server, then idle sandboxes with a session each, on this machine."""
    book, count = run.book, run.plan.idle
    book.define("memory.server", "MB", "the server's own processes before, PSS")
    book.define("memory.server_processes", "processes", "how many they are")
    book.define("memory.inside", "MB", "processes in an idle sandbox, PSS")
    book.define("memory.outside", "MB", "processes that run for it alone (the engine's shim, proxies), PSS")
    book.define("memory.sandbox", "MB", "both: what an idle sandbox costs, PSS")
    book.define("memory.kernel", "MB", "kernel memory and tmpfs files of its cgroup, not in the sum")
    book.define("memory.server_growth", "MB", f"growth of the server's processes per sandbox, with {count} of them")
    book.define("memory.machine", "MB", "growth of all processes of the machine per sandbox, PSS")
    book.define("memory.available", "MB", "fall of the machine's available memory per sandbox")
    engine = memory.Engine()
    try:
        for server in run.servers:
            run.say(f"memory on {server.name} ...")
            _weigh(run, server, engine)
    finally:
        engine.close()


@dataclass(frozen=True)
class _State:
    """Memory of a server and of the whole machine at one moment, in bytes."""

    table: dict[int, processes.Process]
    server: int
    machine: int | None
    """None when this user may not read every process."""
    available: int


def _weigh(run: Run, server: Server, engine: memory.Engine) -> None:
    before = _state(run, server)
    if before is None:
        return
    with crowd(run, server, run.plan.idle, "memory.sandbox") as up:
        time.sleep(run.plan.settle)
        after = _state(run, server)
        if after is None or not up.usable:
            return
        for sandbox_id in up.usable:
            _weigh_sandbox(run, server, after.table, sandbox_id, engine.container(sandbox_id))
    count = len(up.usable)
    run.book.add("memory.server_growth", server.name, (after.server - before.server) / count / MB)
    if after.machine is not None and before.machine is not None:
        run.book.add("memory.machine", server.name, (after.machine - before.machine) / count / MB)
    run.book.add("memory.available", server.name, (before.available - after.available) / count / MB)


def _state(run: Run, server: Server) -> _State | None:
    """Weigh the server and the machine; None, with the reason in the book, when that cannot be seen from here."""
    table = processes.table()
    own = memory.server_processes(table, server, sorted(server.owned))
    weight = processes.pss(own)
    # Root sees all but what the machine itself hides from everybody; others see too little for a sum.
    everything = processes.pss(set(table) - {os.getpid()}, skip_hidden=True) if os.geteuid() == 0 else None
    if not own or weight is None:
        why = "may not be read by this user" if own else "were not found: it is on another machine, or hidden"
        run.book.fail("memory.server", server.name, f"the server's processes {why}")
        return None
    if not server.owned:
        run.book.add("memory.server", server.name, weight / MB)
        run.book.add("memory.server_processes", server.name, len(own))
    return _State(table, weight, everything, memory.available())


def _weigh_sandbox(
    run: Run, server: Server, table: processes.Table, sandbox_id: str, container: memory.Container | None
) -> None:
    found = memory.footprint(table, sandbox_id, container)
    inside, outside = processes.pss(found.inside), processes.pss(found.outside)
    if not found.inside or inside is None or outside is None:
        run.book.fail("memory.sandbox", server.name, f"the processes of {sandbox_id} cannot be seen from here")
        return
    run.book.add("memory.inside", server.name, inside / MB)
    run.book.add("memory.outside", server.name, outside / MB)
    run.book.add("memory.sandbox", server.name, (inside + outside) / MB)
    kernel = memory.kernel_share(table[min(found.inside)]) if container else None
    if kernel is not None:
        run.book.add("memory.kernel", server.name, kernel / MB)
