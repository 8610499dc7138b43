"""What this program itself costs: the same code against the least that answers HTTP."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench import loop
from bench.client import HI, Client, Server, check_hi, run_body, run_path, success_of
from bench.measures import Run

CALLERS = 32


def measure_own(run: Run) -> None:
    """Time the step and the closed loop against bench.trivial. Subtract them, or see that there is nothing to subtract."""
    run.say("the cost of this program ...")
    run.book.define("own.step", "ms", "a step against a server that does nothing")
    run.book.define("own.cpu", "ms", "CPU time of this program for one such step")
    run.book.define("own.steps", "steps/s", f"{CALLERS} connections in a closed loop against it")
    with _trivial() as server:
        client = Client(server)
        cpu, count = time.process_time(), run.plan.steps
        for _ in range(count):
            begin = time.perf_counter()
            client.say_hi("none")
            run.book.add("own.step", "(none)", (time.perf_counter() - begin) * 1e3)
        run.book.add("own.cpu", "(none)", (time.process_time() - cpu) / count * 1e3)
        client.close()
        body = json.dumps(run_body("none", HI)).encode()
        requests = [server.address.request("POST", run_path(), {}, body)] * CALLERS
        outcome = loop.run(server.address, requests, _check, min(run.plan.seconds, 3.0))
        run.book.add("own.steps", "(none)", outcome.rate)


def _check(status: int, body: bytes) -> None:
    check_hi(str(success_of("run_in_session", status, body)["output"]))


@contextmanager
def _trivial() -> Iterator[Server]:
    with subprocess.Popen([sys.executable, "-m", "bench.trivial"], stdout=subprocess.PIPE, text=True) as process:
        try:
            port = process.stdout.readline().strip() if process.stdout else ""
            yield Server("(none)", f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
