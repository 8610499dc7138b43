"""The measures on one sandbox per server: start and stop, steps, processes, files, output. Servers take turns."""

import random
import string
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from bench.client import Client, Server, Shape
from bench.plan import KB, MB, Plan
from bench.samples import Book
from bench.wire import BenchError

GIVE_UP = 3
"""Failures of one measure on one server after which it is left."""
BLOCK = 10
"""Samples taken on one server before the next one's turn."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Run:
    """What every part works with."""

    servers: list[Server]
    shape: Shape
    plan: Plan
    book: Book
    say: Say


Take = Callable[[Client, str], None]
"""Does one measured thing in a sandbox. Raises BenchError."""


def measure_starts(run: Run) -> None:
    """Start sandboxes one after another: request, first sign of life, session, first command, stop."""
    names = {
        "start.answered": "start_async until its answer",
        "start.alive": "start_async until get_status says alive",
        "start.first_command": "start_async until the output of the first command",
        "start.create_session": "create_session alone",
        "stop": "stop until its answer",
    }
    for name, meaning in names.items():
        run.book.define(name, "ms", meaning)

    def take(server: Server) -> None:
        client = server.client()
        try:
            for name, seconds in _one_start(client, run.shape):
                run.book.add(name, server.name, seconds * 1e3)
        finally:
            client.close()

    in_turns(run, "start.first_command", run.plan.starts, take, block=1)


def _one_start(client: Client, shape: Shape) -> Iterator[tuple[str, float]]:
    """Start and stop one sandbox; yield the name and the seconds of each stage."""
    begin = time.perf_counter()
    sandbox_id = client.start(shape)
    yield "start.answered", time.perf_counter() - begin
    client.wait_alive(sandbox_id)
    yield "start.alive", time.perf_counter() - begin
    opening = time.perf_counter()
    client.open_session(sandbox_id)
    opened = time.perf_counter()
    client.say_hi(sandbox_id)
    end = time.perf_counter()
    yield "start.first_command", end - begin
    yield "start.create_session", opened - opening
    begin = time.perf_counter()
    client.stop(sandbox_id)
    yield "stop", time.perf_counter() - begin


def measure_steps(run: Run) -> None:
    """Time `echo hi` in a session, and beside it the least that HTTP costs there."""
    with sandboxes(run) as places:
        _time(run, places, "step.echo_hi", "run_in_session of `echo hi`", run.plan.steps, Client.say_hi)
        _time(
            run,
            places,
            "http.root",
            "GET / : HTTP without a sandbox",
            run.plan.executes,
            lambda client, _: _root(client),
        )
        _time(run, places, "http.get_status", "get_status", run.plan.executes, lambda client, id_: _status(client, id_))


def measure_executes(run: Run) -> None:
    """Time `echo hi` as a process of its own."""
    with sandboxes(run) as places:
        _time(run, places, "execute.echo_hi", "execute of `echo hi`", run.plan.executes, _execute_hi)


def measure_files(run: Run) -> None:
    """Time writing and reading files of 1 KB and 1 MB; what is read is compared with what was written."""
    with sandboxes(run) as places:
        for label, size, count in (("1kb", KB, run.plan.executes), ("1mb", MB, run.plan.transfers)):
            content, path = text(size), f"/tmp/bench-{label}"

            def write(client: Client, sandbox_id: str, content: str = content, path: str = path) -> None:
                client.write(sandbox_id, path, content)

            def read(client: Client, sandbox_id: str, content: str = content, path: str = path) -> None:
                same("read_file", client.read(sandbox_id, path), content)

            _time(run, places, f"write.{label}", f"write_file of {label.upper()}", count, write)
            _time(run, places, f"read.{label}", f"read_file of {label.upper()}", count, read)


def measure_outputs(run: Run) -> None:
    """Time a step that prints a file that lies in the sandbox: 100 KB, 1 MB and 10 MB."""
    with sandboxes(run) as places:
        for size, count in run.plan.outputs.items():
            label = f"{size // MB}mb" if size >= MB else f"{size // KB}kb"
            content, path = text(size), f"/tmp/bench-output-{label}"
            if not _prepare(run, places, f"output.{label}", path, content):
                continue

            def show(client: Client, sandbox_id: str, content: str = content, path: str = path) -> None:
                same(f"cat {path}", client.run(sandbox_id, f"cat {path}"), content)

            _time(run, places, f"output.{label}", f"run_in_session that prints {label.upper()}", count, show)


def _prepare(run: Run, places: dict[str, tuple[Client, str]], name: str, path: str, content: str) -> bool:
    """Write the file whose output is timed, in parts of 1 MB; False when no server took it."""
    run.book.define(name, "ms", "run_in_session that prints a file")
    taken = 0
    for server, (client, sandbox_id) in places.items():
        try:
            for place in range(0, len(content), MB):
                client.write(sandbox_id, f"{path}.part", content[place : place + MB])
                client.execute(sandbox_id, "sh", "-c", f"cat {path}.part >> {path}")
            taken += 1
        except BenchError as error:
            run.book.fail(name, server, str(error))
    return taken > 0


@contextmanager
def sandboxes(run: Run) -> Iterator[dict[str, tuple[Client, str]]]:
    """A sandbox with an open session on every server, by the server's name; stopped at the end.

    A server that gives none is left out, with the reason in the book.
    """
    run.book.define("sandbox", "", "a sandbox for the measures that follow")
    places: dict[str, tuple[Client, str]] = {}
    try:
        for server in run.servers:
            client = server.client()
            try:
                places[server.name] = (client, client.usable(run.shape))
            except BenchError as error:
                run.book.fail("sandbox", server.name, str(error))
                client.close()
        yield places
    finally:
        for client, _ in places.values():
            client.close()
        for server in run.servers:
            stop_owned(server, run.say)


def stop_owned(server: Server, say: Say, at_once: int = 8) -> None:
    """Stop all that this run has on a server, several at a time; say what could not be stopped."""

    def stop(sandbox_id: str) -> None:
        client = server.client()
        try:
            client.stop(sandbox_id)
        except BenchError as error:
            say(f"{server.name}: {sandbox_id} could not be stopped ({error}); its lease ends it")
            server.owned.discard(sandbox_id)
        finally:
            client.close()

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(stop, sorted(server.owned)))


def _time(run: Run, places: dict[str, tuple[Client, str]], name: str, meaning: str, count: int, take: Take) -> None:
    """Take the time of one thing, `count` times on every server that has a sandbox, in turns."""
    run.book.define(name, "ms", meaning)

    def sample(server: Server) -> None:
        client, sandbox_id = places[server.name]
        begin = time.perf_counter()
        take(client, sandbox_id)
        run.book.add(name, server.name, (time.perf_counter() - begin) * 1e3)

    in_turns(run, name, count, sample, only=set(places))


def in_turns(
    run: Run, name: str, count: int, take: Callable[[Server], None], *, block: int = BLOCK, only: set[str] | None = None
) -> None:
    """Call `take` `count` times for every server, some of one and then some of the next, who is first changing.

    Params:
        name: the measure that failures are noted under; after a few of them a server is left.
        only: names of the servers to ask; None: all.
    """
    run.say(f"{name} ...")
    left = {server.name: count for server in run.servers if only is None or server.name in only}
    spent = dict.fromkeys(left, 0.0)
    order = [server for server in run.servers if server.name in left]
    while any(left.values()):
        for server in order:
            for _ in range(min(block, left[server.name])):
                begin = time.perf_counter()
                left[server.name] -= 1
                try:
                    take(server)
                except BenchError as error:
                    if run.book.fail(name, server.name, str(error)) >= GIVE_UP:
                        left[server.name] = 0
                spent[server.name] += time.perf_counter() - begin
                if spent[server.name] > run.plan.budget:
                    left[server.name] = 0
                if not left[server.name]:
                    break
        order.append(order.pop(0))


def text(size: int) -> str:
    """Return that many bytes of text in lines of 100, the same each time."""
    letters = random.Random(size)
    line = "".join(letters.choices(string.ascii_letters, k=99)) + "\n"
    return (line * (size // 100 + 1))[:size]


def same(what: str, got: str, wanted: str) -> None:
    """Raise BenchError unless the texts are the same but for the ends of lines, which some servers change."""
    if got.replace("\r\n", "\n").rstrip("\n") != wanted.rstrip("\n"):
        raise BenchError(f"{what} gave other contents ({len(got)} of {len(wanted)} characters)")


def _root(client: Client) -> None:
    client.about()


def _status(client: Client, sandbox_id: str) -> None:
    client.get(f"/get_status?sandbox_id={sandbox_id}")


def _execute_hi(client: Client, sandbox_id: str) -> None:
    out = client.execute(sandbox_id, "echo", "hi")
    if out != "hi\n":
        raise BenchError(f"execute of `echo hi` gave {out[:60]!r}")
