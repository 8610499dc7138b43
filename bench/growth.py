"""What a start and a step cost beside ever more idle sandboxes: time at the caller, processor time in the server's processes."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import memory, processes
from bench.client import Client, Server
from bench.crowd import bring_up
from bench.measures import Run, stop_owned
from bench.wire import BenchError

TICK = 1.0 / os.sysconf("SC_CLK_TCK")


def measure_growth(run: Run) -> None:
    """Bring up sandboxes until there are so many of them, for each number of the plan; measure starts and steps there."""
    for size in run.plan.sizes:
        run.book.define(f"growth{size}.first_command", "ms", f"start until the first command, beside {size} sandboxes")
        run.book.define(f"growth{size}.step", "ms", f"`echo hi` in one of {size} sandboxes after another")
        run.book.define(
            f"growth{size}.start_cpu", "ms", "processor time of the server's processes for each start and stop"
        )
        run.book.define(f"growth{size}.step_cpu", "ms", "processor time of the server's processes for each step")
    for server in run.servers:
        usable: list[str] = []
        try:
            for size in run.plan.sizes:
                run.say(f"{size} sandboxes on {server.name} ...")
                usable += bring_up(run, server, size - len(usable), f"growth{size}.step")
                time.sleep(run.plan.settle)
                _costs(run, server, usable, f"growth{size}")
        except BenchError as error:
            run.book.fail(f"growth{size}.step", server.name, str(error))
        finally:
            stop_owned(server, run.say)


def _costs(run: Run, server: Server, usable: list[str], name: str) -> None:
    client = server.client()
    try:
        with _cpu(run, server, f"{name}.step_cpu", run.plan.steps):
            for place in range(run.plan.steps):
                begin = time.perf_counter()
                client.say_hi(usable[place % len(usable)])
                run.book.add(f"{name}.step", server.name, (time.perf_counter() - begin) * 1e3)
        with _cpu(run, server, f"{name}.start_cpu", run.plan.starts):
            for _ in range(run.plan.starts):
                run.book.add(f"{name}.first_command", server.name, _one(run, client) * 1e3)
    finally:
        client.close()


def _one(run: Run, client: Client) -> float:
    begin = time.perf_counter()
    sandbox_id = client.usable(run.shape)
    took = time.perf_counter() - begin
    client.stop(sandbox_id)
    return took


@contextmanager
def _cpu(run: Run, server: Server, name: str, count: int) -> Iterator[None]:
    """Note what the server's processes use during the block, for each of `count` things that are done in it."""
    own = memory.server_processes(processes.table(), server, sorted(server.owned))
    before = _used(own)
    yield
    if own:
        run.book.add(name, server.name, (_used(own) - before) / count * 1e3)


def _used(pids: set[int]) -> float:
    """Return the processor seconds that processes have used; those that have ended count as nothing."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += int(fields[11]) + int(fields[12])
    return total * TICK
