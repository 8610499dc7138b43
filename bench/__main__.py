"""The command line: `python -m bench`."""

import dataclasses
import json
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from bench import machine, report
from bench.client import Server, Shape
from bench.crowd import measure_crowds, measure_memory
from bench.growth import measure_growth
from bench.measures import (
    Run,
    measure_executes,
    measure_files,
    measure_outputs,
    measure_starts,
    measure_steps,
    stop_owned,
)
from bench.memory import Engine
from bench.own import measure_own
from bench.plan import QUICK, Plan
from bench.samples import Book
from bench.strain import measure_busy, measure_cancels, measure_flight, measure_recovery
from bench.wire import Address, BenchError
from rock import __version__, settings

PARTS: dict[str, Callable[[Run], None]] = {
    "own": measure_own,
    "start": measure_starts,
    "step": measure_steps,
    "execute": measure_executes,
    "files": measure_files,
    "output": measure_outputs,
    "crowd": measure_crowds,
    "memory": measure_memory,
    "cancel": measure_cancels,
    "busy": measure_busy,
    "flight": measure_flight,
    "growth": measure_growth,
    "recovery": measure_recovery,
}
USUAL = ("own", "start", "step", "execute", "files", "output", "crowd", "memory")
"""The parts that any server of the protocol can be measured with; the others ask for more: routes of ours, hundreds of sandboxes,
leave to kill."""
RESULTS = Path(__file__).resolve().parent / "results"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--url",
    "urls",
    multiple=True,
    metavar="[NAME=]URL",
    help="A server; give two to compare them. Default: ROCK_BASE_URL.",
)
@click.option(
    "--only",
    default=",".join(USUAL),
    metavar="PARTS",
    show_default=True,
    help=f"Which parts to run; there are also {', '.join(part for part in PARTS if part not in USUAL)}.",
)
@click.option("--quick", is_flag=True, help="A few samples of everything: to try it, not to quote it.")
@click.option("--image", default=Shape.image, show_default=True)
@click.option("--cpus", default=Shape.cpus, show_default=True, help="CPUs that each sandbox reserves.")
@click.option("--limit-cpus", default=Shape.limit_cpus, show_default=True, help="CPUs that each may use.")
@click.option("--memory", default=Shape.memory, show_default=True)
@click.option("--starts", type=click.IntRange(1), help="How many starts to measure.")
@click.option("--steps", type=click.IntRange(1), help="How many steps to measure.")
@click.option("--crowds", metavar="N,N", help="Numbers of sandboxes at once.")
@click.option("--sizes", metavar="N,N", help="Numbers of idle sandboxes beside which `growth` measures.")
@click.option("--flight", type=click.IntRange(1, 20_000), help="Commands at once in `flight`.")
@click.option("--pull", metavar="IMAGE", help="An image of a registry that is pulled again and again during `busy`.")
@click.option(
    "--kill", metavar="REGEX", help="Command lines of the processes that `recovery` kills.  [default: our workers]"
)
@click.option("--seconds", type=click.FloatRange(0.5, 600), help="Length of one closed loop.")
@click.option("--budget", type=click.FloatRange(1, 3600), help="Most seconds per measure and server.")
@click.option("--api-key", default=None, help="Sent to every server as X-API-Key. Default: ROCK_API_KEY.")
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="Sent to every server.")
@click.option(
    "--server-match",
    "matches",
    multiple=True,
    metavar="[NAME=]REGEX",
    help="Command lines that count as a server's processes too.",
)
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Default: a new file in bench/results."
)
def main(urls: tuple[str, ...], only: str, json_file: Path | None, **options: Any) -> None:
    """Measure running servers that speak the ROCK protocol; print a table and write JSON."""
    servers = _servers(urls or (settings.read("ROCK_BASE_URL"),), options)
    parts = _parts(only)
    shape = Shape(options["image"], options["cpus"], options["limit_cpus"], options["memory"])
    run = Run(servers, shape, _plan(options), Book(), say=lambda text: click.echo(text, err=True))
    about = _about(run, parts)
    # A run that is ended by a signal cleans up like one that is interrupted at the keyboard.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    interrupted = _measure(run, parts)
    about["load_average_after"], about["complete"] = machine.load(), not interrupted
    _publish(run, about, json_file)
    sys.exit(130 if interrupted else 0)


def _measure(run: Run, parts: list[str]) -> bool:
    """Run the parts; return whether they were interrupted. Nothing is left running either way."""
    try:
        for part in parts:
            PARTS[part](run)
    except KeyboardInterrupt:
        run.say("interrupted: stopping what was started ...")
        return True
    finally:
        for server in run.servers:
            if server.owned:
                stop_owned(server, run.say)
    return False


def _publish(run: Run, about: dict[str, Any], json_file: Path | None) -> None:
    """Print the table and write the JSON."""
    facts = [f"{name} {value}" for name, value in about["machine"].items()]
    load = f"load before {about['load_average_before']}, after {about['load_average_after']}"
    click.echo("; ".join([*facts, load]))
    click.echo(report.table(run.book, [server.name for server in run.servers]))
    if about["busy"]:
        click.echo("! the machine was busy before the run began: these figures say little")
    path = json_file or RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report.document(run.book, about), indent=1) + "\n", encoding="utf-8")
    click.echo(f"written: {path}", err=True)


def _about(run: Run, parts: list[str]) -> dict[str, Any]:
    """Return what belongs beside the figures. Ends the program when a server does not answer."""
    said = {}
    for server in run.servers:
        client = server.client()
        try:
            said[server.name] = {"url": server.url, "root": client.about()}
        except BenchError as error:
            raise click.ClickException(
                f"{error}; start it first, for example with `rock admin start --detach`"
            ) from error
        finally:
            client.close()
    before, engine = machine.load(), Engine()
    engine.close()
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "bench": __version__,
        "machine": {**machine.facts(), "engine": engine.version or f"none ({engine.missing[:100]})"},
        "load_average_before": before,
        "busy": machine.busy(before),
        "servers": said,
        "parts": parts,
        "sandbox": dataclasses.asdict(run.shape),
        "plan": dataclasses.asdict(run.plan),
    }


def _servers(urls: tuple[str, ...], options: dict[str, Any]) -> list[Server]:
    """Return the servers named on the command line. Ends the program when they make no sense."""
    headers = dict(_header(text) for text in options["headers"])
    key = options["api_key"] or settings.read("ROCK_API_KEY")
    if key:
        headers["X-API-Key"] = key
    servers = []
    for text in urls:
        name, url = _named(text)
        try:
            address = Address.of(url)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--url") from error
        servers.append(Server(name or f"{address.host}:{address.port}", url, headers))
    names = [server.name for server in servers]
    if len(set(names)) < len(names):
        raise click.BadParameter("two servers have one name; write NAME=URL", param_hint="--url")
    for text in options["matches"]:
        name, pattern = _named(text)
        for server in servers:
            if name in ("", server.name):
                server.match = pattern
    return servers


def _named(text: str) -> tuple[str, str]:
    """Return name and value of `NAME=VALUE`; a value that is not so marked has no name."""
    name, mark, value = text.partition("=")
    return (name, value) if mark and name.replace("-", "").replace("_", "").isalnum() else ("", text)


def _header(text: str) -> tuple[str, str]:
    name, mark, value = text.partition(":")
    if not mark or not name.strip() or "\n" in text:
        raise click.BadParameter(f"{text!r} is not NAME: VALUE", param_hint="--header")
    return name.strip(), value.strip()


def _parts(text: str) -> list[str]:
    wanted = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [part for part in wanted if part not in PARTS]
    if unknown or not wanted:
        raise click.BadParameter(f"choose from {', '.join(PARTS)}", param_hint="--only")
    return wanted


def _plan(options: dict[str, Any]) -> Plan:
    """Return the plan with what the command line changes."""
    plain = ("starts", "steps", "seconds", "budget", "flight", "pull", "kill")
    changes = {name: options[name] for name in plain if options[name] is not None}
    for name in ("crowds", "sizes"):
        if options[name]:
            try:
                changes[name] = tuple(max(1, int(part)) for part in options[name].split(","))
            except ValueError as error:
                raise click.BadParameter("numbers separated by commas", param_hint=f"--{name}") from error
    return dataclasses.replace(QUICK if options["quick"] else Plan(), **changes)


if __name__ == "__main__":
    main()
