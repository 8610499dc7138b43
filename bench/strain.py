"""The measures under strain: cancelled commands, steps while sandboxes start, thousands of commands in flight, a killed worker."""

import json
import os
import re
import resource
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from bench import memory, processes
from bench.client import HI, Client, Server, run_body, run_path
from bench.crowd import crowd
from bench.measures import Run, in_turns, sandboxes, stop_owned
from bench.wire import BenchError

BEGUN = 0.2
"""Seconds after which a command that was sent runs."""
NEVER = "sleep 1000"
PULL_LIMIT = 600
"""Seconds that the start with a pull may take."""
RECOVERED = 60.0
"""Seconds after which a server whose worker was killed counts as lost."""
REST = 3.0
"""Seconds between two kills: so that no supervisor takes them for a program that cannot run."""


def measure_cancels(run: Run) -> None:
    """Cancel a running command by its request id: what the cancel takes, and until the one who waits has the answer."""
    run.book.define("cancel", "ms", f"cancel of a running `{NEVER}` until its answer")
    run.book.define("cancel.waiter", "ms", "the same until the one who waits for the command has the answer")
    with sandboxes(run) as places:

        def take(server: Server) -> None:
            client, sandbox_id = places[server.name]
            request_id = uuid.uuid4().hex
            body = {**run_body(sandbox_id, NEVER), "request_id": request_id}
            with _waiting(server, body) as ended:
                time.sleep(BEGUN)
                begin = time.perf_counter()
                client.post(f"/results/{request_id}/cancel", {})
                run.book.add("cancel", server.name, (time.perf_counter() - begin) * 1e3)
                run.book.add("cancel.waiter", server.name, (ended() - begin) * 1e3)

        in_turns(run, "cancel", run.plan.starts, take, only=set(places))


@contextmanager
def _waiting(server: Server, body: dict[str, Any]) -> Iterator[Callable[[], float]]:
    """Send a command from a thread; yields a function that waits for its answer and returns when it came (perf_counter)."""
    moments: list[float] = []

    def wait() -> None:
        client = server.client()
        try:
            client.call("POST", "/run_in_session", body)
            moments.append(time.perf_counter())
        finally:
            client.close()

    def ended() -> float:
        thread.join(RECOVERED)
        if not moments:
            raise BenchError("the command's caller has no answer")
        return moments[0]

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    yield ended


def measure_busy(run: Run) -> None:
    """Time steps in one sandbox alone, then while eight others start and stop all the time, with or without a pull."""
    at_once = run.plan.at_a_time
    run.book.define("busy.alone", "ms", "run_in_session of `echo hi`, nothing else going on")
    run.book.define("busy.step", "ms", f"the same while {at_once} sandboxes are being started and stopped at any time")
    run.book.define("busy.starts", "starts/s", "those starts")
    run.book.define("busy.pulls", "pulls", f"of {run.plan.pull} meanwhile" if run.plan.pull else "none: no --pull")
    for server in run.servers:
        run.say(f"busy on {server.name} ...")
        client = server.client()
        try:
            sandbox_id = client.usable(run.shape)
            _steps(run, client, sandbox_id, "busy.alone", run.plan.seconds)
            with _noise(run, server):
                _steps(run, client, sandbox_id, "busy.step", run.plan.seconds)
        except BenchError as error:
            run.book.fail("busy.step", server.name, str(error))
        finally:
            client.close()
            stop_owned(server, run.say)


def _steps(run: Run, client: Client, sandbox_id: str, name: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.perf_counter()
        client.say_hi(sandbox_id)
        run.book.add(name, client.server.name, (time.perf_counter() - begin) * 1e3)


@contextmanager
def _noise(run: Run, server: Server) -> Iterator[None]:
    """Sandboxes that start and stop, and an image that is pulled again and again, until the end of the block."""
    over = threading.Event()
    started: list[float] = []
    pulled: list[float] = []

    def again(once: Callable[[Client], None], done: list[float], name: str) -> None:
        client = server.client()
        try:
            while not over.is_set():
                once(client)
                done.append(time.perf_counter())
        except BenchError as error:
            run.book.fail(name, server.name, str(error))
        finally:
            client.close()

    def start(client: Client) -> None:
        client.stop(client.start(run.shape, path="/start"))

    def pull(client: Client) -> None:
        more = {"image": run.plan.pull, "pull": "always", "startup_timeout": PULL_LIMIT}
        client.stop(client.start(run.shape, path="/start", **more))
        client.post("/remove_image", {"image": run.plan.pull})

    work = [partial(again, start, started, "busy.starts")] * run.plan.at_a_time
    threads = [threading.Thread(target=one) for one in work]
    if run.plan.pull:
        threads.append(threading.Thread(target=again, args=(pull, pulled, "busy.pulls")))
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        took = time.perf_counter() - begin
        run.book.add("busy.starts", server.name, len(started) / took)
        run.book.add("busy.pulls", server.name, len(pulled))
        over.set()
        for thread in threads:
            thread.join()


def measure_flight(run: Run) -> None:
    """Time a status, a step and a stop while thousands of commands wait or run."""
    count = run.plan.flight
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each command has a connection
    run.book.define("flight.get_status", "ms", f"get_status with {count} commands in flight")
    run.book.define("flight.step", "ms", f"`echo hi` in another sandbox with {count} commands in flight")
    run.book.define("flight.stop", "ms", f"stop of another sandbox with {count} commands in flight")
    for server in run.servers:
        run.say(f"{count} commands in flight on {server.name} ...")
        with crowd(run, server, 8 + run.plan.starts + 1, "flight.stop") as up, ExitStack() as held:
            busy, (quiet, *spare) = up.usable[:8], up.usable[8:]
            for place in range(count):
                held.enter_context(_sent(server, busy[place % len(busy)]))
            client = server.client()
            try:
                for sandbox_id in spare:
                    _timed(run, client, "flight.get_status", partial(client.get, f"/get_status?sandbox_id={quiet}"))
                    _timed(run, client, "flight.step", partial(client.say_hi, quiet))
                    _timed(run, client, "flight.stop", partial(client.stop, sandbox_id))
            except BenchError as error:
                run.book.fail("flight.stop", server.name, str(error))
            finally:
                client.close()


@contextmanager
def _sent(server: Server, sandbox_id: str) -> Iterator[None]:
    """A command whose answer nobody waits for, on a connection of its own that stays open."""
    address = server.address
    body = json.dumps(run_body(sandbox_id, NEVER)).encode()
    with address.connect() as connection:
        connection.sendall(address.request("POST", run_path(), server.headers, body))
        yield


def _timed(run: Run, client: Client, name: str, take: Callable[[], object]) -> None:
    begin = time.perf_counter()
    take()
    run.book.add(name, client.server.name, (time.perf_counter() - begin) * 1e3)


def measure_recovery(run: Run) -> None:
    """Kill the workers of a node, and ask for a step at once: how long until its answer."""
    run.book.define("recovery", "ms", "kill -9 of a node's workers until a step's answer")
    with sandboxes(run) as places:

        def take(server: Server) -> None:
            client, sandbox_id = places[server.name]
            _kill(server, run.plan.kill)
            begin = time.perf_counter()
            _step_at_last(client, sandbox_id)
            run.book.add("recovery", server.name, (time.perf_counter() - begin) * 1e3)
            time.sleep(REST)

        in_turns(run, "recovery", run.plan.starts, take, block=1, only=set(places))


def _kill(server: Server, pattern: str) -> None:
    """Kill the server's processes that match. Raises BenchError when there are none on this machine."""
    table = processes.table()
    own = memory.server_processes(table, server, sorted(server.owned))
    found = [pid for pid in own if re.search(pattern, table[pid].command)]
    if not found:
        raise BenchError(f"no process of the server matches {pattern!r}; say which with --kill")
    for pid in found:
        os.kill(pid, signal.SIGKILL)


def _step_at_last(client: Client, sandbox_id: str) -> None:
    """Run `echo hi` under one request id, again while it fails. Raises BenchError when it never succeeds."""
    body, end = {**run_body(sandbox_id, HI), "request_id": uuid.uuid4().hex}, time.monotonic() + RECOVERED
    while True:
        try:
            client.post("/run_in_session", body)
            return
        except BenchError:
            if time.monotonic() > end:
                raise
        time.sleep(0.01)
