"""`rock sandbox`: use the service from a terminal. Where it is: ROCK_BASE_URL, and ROCK_API_KEY if it wants one."""

import asyncio
import json
import sys
from contextlib import suppress
from typing import Any

import click

from rock.actions import Command, SandboxListResponse, SandboxRequest, State, dump, parse
from rock.cli.faults import faults
from rock.cli.shell import shell
from rock.errors import CommandFault, NotFound, RockError
from rock.sdk import loop
from rock.sdk.sandbox.config import SandboxConfig
from rock.sdk.sandbox.sync import Sandbox

COMMAND_SECONDS = 1200.0


def _attached(sandbox_id: str) -> Sandbox:
    """Return a client of a sandbox that runs already."""
    sandbox = Sandbox(SandboxConfig())
    sandbox.attach(sandbox_id)
    return sandbox


def _execute(sandbox: Sandbox, command: tuple[str, ...], seconds: float) -> int:
    """Run a command, print what it printed where it printed it, and return its exit code."""
    try:
        seen = sandbox.execute(Command(command=list(command), timeout=seconds))
    except CommandFault as error:
        click.echo(str(error), err=True)
        return error.exit_code or 1
    click.echo(seen.stdout, nl=False)
    click.echo(seen.stderr, nl=False, err=True)
    return seen.exit_code or 0


@click.group()
def sandbox() -> None:
    """Work with sandboxes."""


@sandbox.command()
@click.argument("image")
@click.argument("command", nargs=-1, required=True)
@click.option("--memory", default="2g", show_default=True)
@click.option("--cpus", type=float, default=1.0, show_default=True)
@click.option("--timeout", "seconds", type=float, default=COMMAND_SECONDS, show_default=True, help="Seconds.")
def run(image: str, command: tuple[str, ...], memory: str, cpus: float, seconds: float) -> None:
    """Run COMMAND in a new sandbox of IMAGE, then throw the sandbox away; exits as COMMAND did."""
    config = SandboxConfig(image=image, memory=memory, cpus=cpus, auto_delete_seconds=0)
    with faults(), Sandbox(config) as started:
        code = _execute(started, command, seconds)
    sys.exit(code)


@sandbox.command()
@click.argument("image")
@click.option("--memory", default="2g", show_default=True)
@click.option("--cpus", type=float, default=1.0, show_default=True)
def start(image: str, memory: str, cpus: float) -> None:
    """Start a sandbox of IMAGE and print its id."""
    with faults():
        started = Sandbox(SandboxConfig(image=image, memory=memory, cpus=cpus))
        started.start()
        click.echo(started.sandbox_id)


@sandbox.command("exec")
@click.argument("sandbox_id")
@click.argument("command", nargs=-1, required=True)
@click.option("--timeout", "seconds", type=float, default=COMMAND_SECONDS, show_default=True, help="Seconds.")
def exec_(sandbox_id: str, command: tuple[str, ...], seconds: float) -> None:
    """Run COMMAND in a running sandbox; exits as COMMAND did."""
    with faults():
        code = _execute(_attached(sandbox_id), command, seconds)
    sys.exit(code)


@sandbox.command("shell")
@click.argument("sandbox_id")
@click.option("--session", default="default", show_default=True, help="Made if it is not there.")
def shell_(sandbox_id: str, session: str) -> None:
    """Open a terminal in a session of a running sandbox; exits as its shell did. The session stays as it was."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.ClickException("a shell needs a terminal on stdin and stdout; use `rock sandbox exec` in scripts")
    with faults():
        code = asyncio.run(shell(sandbox_id, session))
    sys.exit(code)


@sandbox.command()
@click.argument("sandbox_id")
def status(sandbox_id: str) -> None:
    """Print what is known of a sandbox, as JSON."""
    with faults():
        click.echo(json.dumps(dump(_attached(sandbox_id).get_status(include_all_states=True)), indent=2))


@sandbox.command()
@click.argument("sandbox_id")
def stop(sandbox_id: str) -> None:
    """Stop a sandbox."""
    with faults():
        _attached(sandbox_id).stop()


@sandbox.command()
@click.option("--state", type=click.Choice([state.value for state in State]), help="Only those in this state.")
@click.option("--user", "user_id", help="Only those of this user id.")
@click.option("--experiment", "experiment_id", help="Only those of this experiment id.")
@click.option("--namespace", help="Only those of this namespace.")
@click.option("--image", help="Only those of this image.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ls(as_json: bool, **filters: str | None) -> None:
    """List sandboxes, newest first: those that live, and those that have stopped and are kept."""
    with faults():
        rows = _rows({name: value for name, value in filters.items() if value})
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        shown = (row["sandbox_id"], row["state"], row["image"], row["host_name"], row["create_time"], row["message"])
        click.echo("\t".join(str(cell or "-") for cell in shown))


def _rows(filters: dict[str, str]) -> list[dict[str, Any]]:
    """Return all rows of a list, page by page."""
    transport, rows, page = SandboxConfig().transport(), [], 0
    while True:
        page += 1
        answer = loop.run(transport.get("/sandboxes", {**filters, "page": str(page)}))
        rows += answer["items"]
        if not parse(SandboxListResponse, answer).has_more:
            return rows


@sandbox.command()
@click.argument("sandbox_ids", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Stop those that run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def rm(sandbox_ids: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Delete stopped sandboxes with their files; exits with 1 if one could not be deleted."""
    transport, failed = SandboxConfig().transport(), {}
    for sandbox_id in sandbox_ids:
        body = dump(SandboxRequest(sandbox_id=sandbox_id))
        try:
            if force:
                with suppress(NotFound):
                    loop.run(transport.post("/stop", body))
            loop.run(transport.post("/delete", body))
        except RockError as error:
            failed[sandbox_id] = str(error)
    if as_json:
        click.echo(
            json.dumps({"deleted": [one for one in sandbox_ids if one not in failed], "failed": failed}, indent=2)
        )
    for reason in () if as_json else failed.values():
        click.echo(reason, err=True)
    sys.exit(1 if failed else 0)
