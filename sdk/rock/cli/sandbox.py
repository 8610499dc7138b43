"""`rock sandbox`: use the service from a terminal. Where it is: ROCK_BASE_URL, and ROCK_API_KEY if it wants one."""

import asyncio
import json
import sys
from contextlib import suppress
from typing import Any

import click

from rock.actions import SandboxListResponse, SandboxRequest, State, dump, parse
from rock.cli import attended, copying, options, running
from rock.cli.faults import faults
from rock.cli.shell import shell
from rock.errors import NotFound, RockError
from rock.sdk import loop
from rock.sdk.sandbox.client import Sandbox as AsyncSandbox
from rock.sdk.sandbox.config import SandboxConfig
from rock.sdk.sandbox.sync import Sandbox

json_option = options.json_option


def _attached(sandbox_id: str) -> Sandbox:
    """Return a client of a sandbox that is there already."""
    sandbox = Sandbox(options.config())
    sandbox.attach(sandbox_id)
    return sandbox


@click.group()
def sandbox() -> None:
    """Work with sandboxes."""


for command in (running.run, running.exec_, running.logs, copying.cp):
    sandbox.add_command(command)


@sandbox.command()
@click.argument("image")
@options.start_options
@json_option
def start(image: str, as_json: bool, **given: Any) -> None:
    """Start a sandbox of IMAGE and print its id. It stops after 4 hours without a call."""
    config = options.config(image=image, **given)
    attended.finish(_start(config, as_json))


async def _start(config: SandboxConfig, as_json: bool) -> int:
    started = AsyncSandbox(config)
    await attended.start(started, quiet=as_json)
    value = {"sandbox_id": started.sandbox_id, "host_name": started.host_name, "host_ip": started.host_ip}
    options.say(as_json, value, started.sandbox_id)
    return 0


@sandbox.command()
@options.sandbox_argument
@click.option("--count", "-n", type=click.IntRange(1, 64), default=1, show_default=True, help="All of them, or none.")
@click.option("--env", "-e", "variables", multiple=True, metavar="NAME=VALUE", help="May be repeated.")
@json_option
def fork(sandbox_id: str, count: int, as_json: bool, **given: Any) -> None:
    """Make new sandboxes with the files that sandbox ID has now, and print their ids.

    They are like it in image, limits, lease and metadata, and go their own ways. Processes and sessions are not copied, and
    variables that it was started with have to be said again: --env.
    """
    config = options.config(**given)
    attended.finish(_fork(config, sandbox_id, count, as_json))


async def _fork(config: SandboxConfig, sandbox_id: str, count: int, as_json: bool) -> int:
    source = AsyncSandbox(config)
    await source.attach(sandbox_id)
    made = await source.fork(count)
    value = {
        "forks": [{"sandbox_id": one.sandbox_id, "host_name": one.host_name, "host_ip": one.host_ip} for one in made]
    }
    options.say(as_json, value, "\n".join(str(one.sandbox_id) for one in made))
    return 0


@sandbox.command("shell")
@options.sandbox_argument
@click.option("--session", default="default", show_default=True, help="Made if it is not there.")
def shell_(sandbox_id: str, session: str) -> None:
    """Open a terminal in a session of a running sandbox; exits as its shell did. The session stays as it was."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.ClickException("a shell needs a terminal on stdin and stdout; use `rock sandbox exec` in scripts")
    with faults():
        code = asyncio.run(shell(sandbox_id, session))
    sys.exit(code)


@sandbox.command()
@options.sandbox_argument
@json_option
def status(sandbox_id: str, as_json: bool) -> None:
    """Print what is known of a sandbox: always as JSON."""
    with faults():
        click.echo(json.dumps(dump(_attached(sandbox_id).get_status(include_all_states=True)), indent=2))


@sandbox.command()
@options.sandboxes_argument
@json_option
def stop(sandbox_ids: tuple[str, ...], as_json: bool) -> None:
    """Stop sandboxes; their files are kept for a while, `rock sandbox rm` removes them. Stopping again is no error."""
    with faults():
        for sandbox_id in sandbox_ids:
            _attached(sandbox_id).stop()
    options.say(as_json, {"stopped": list(sandbox_ids)})


@sandbox.command()
@click.option("--state", type=click.Choice([state.value for state in State]), help="Only those in this state.")
@click.option("--user", "user_id", help="Only those of this user id.")
@click.option("--experiment", "experiment_id", help="Only those of this experiment id.")
@click.option("--namespace", help="Only those of this namespace.")
@click.option("--image", help="Only those of this image.")
@json_option
def ls(as_json: bool, **filters: str | None) -> None:
    """List sandboxes, newest first: those that live, and those that have stopped and are kept."""
    with faults():
        rows = _rows({name: value for name, value in filters.items() if value})
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    if not rows and sys.stdout.isatty():
        click.echo("no sandboxes; `rock sandbox start IMAGE` starts one", err=True)
    for row in rows:
        shown = (row["sandbox_id"], row["state"], row["image"], row["host_name"], row["create_time"], row["message"])
        click.echo("\t".join(str(cell or "-") for cell in shown))


def _rows(filters: dict[str, str]) -> list[dict[str, Any]]:
    """Return all rows of a list, page by page."""
    transport, rows, page = options.config().transport(), [], 0
    while True:
        page += 1
        answer = loop.run(transport.get("/sandboxes", {**filters, "page": str(page)}))
        rows += answer["items"]
        if not parse(SandboxListResponse, answer).has_more:
            return rows


@sandbox.command()
@options.sandboxes_argument
@click.option("--force", is_flag=True, help="Stop those that run.")
@json_option
def rm(sandbox_ids: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Delete stopped sandboxes with their files; exits with 1 if one could not be deleted."""
    transport, failed = options.config().transport(), {}
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
        click.echo(f"Error: {reason}", err=True)
    if failed and not (as_json or force):
        click.echo("Try: `rock sandbox rm --force` stops those that run", err=True)
    sys.exit(1 if failed else 0)
