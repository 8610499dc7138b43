"""`rock sandbox`: use the service from a terminal. Where it is: ROCK_BASE_URL, and ROCK_API_KEY if it wants one."""

import json
import sys

import click

from rock.actions import Command, dump
from rock.cli.faults import faults
from rock.errors import CommandFault
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
    with faults(), Sandbox(SandboxConfig(image=image, memory=memory, cpus=cpus)) as started:
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
