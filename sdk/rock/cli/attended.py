"""Commands that somebody watches: they print while they run, and clean up when they are interrupted."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, NoReturn

import click

from rock.actions import Command, CommandResponse, StatusResponse, dump, parse
from rock.cli.faults import faults
from rock.errors import CommandFault, RockError
from rock.sdk.sandbox.client import Sandbox
from rock.sdk.transport import new_request_id

_NOT_FOUND = 127
LOOK_SECONDS = 0.5
"""Between two looks at how far a start is."""


def finish(work: Coroutine[Any, Any, int]) -> NoReturn:
    """Run work and exit with the code that it returns.

    Ctrl-C or SIGTERM cancels it: it cleans up, and the exit code is 130 or 143. A second one ends it at once.
    """
    with faults():
        code = asyncio.run(_interruptible(work))
    sys.exit(code)


async def _interruptible(work: Coroutine[Any, Any, int]) -> int:
    loop, told = asyncio.get_running_loop(), []
    task = loop.create_task(work)

    def end(number: signal.Signals) -> None:
        told.append(number)
        loop.remove_signal_handler(number)
        click.echo("cancelling and cleaning up …", err=True)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end, number)
    try:
        return await task
    except asyncio.CancelledError as error:
        for note in getattr(error, "__notes__", ()):
            click.echo(note, err=True)
        if told:
            return 128 + told[0]
        raise


async def execute(sandbox: Sandbox, command: Command, as_json: bool) -> int:
    """Run a command (a list), print what it prints where it prints it as it comes, and return its exit code; as JSON, print all at its end."""
    try:
        seen = await sandbox.execute(command, None if as_json else _print)
    except CommandFault as error:
        code = error.exit_code or 1
        if not as_json:
            click.echo(str(error), err=True)
            return code
        printed = {name: str(error.details.get(name, "")) for name in ("stdout", "stderr")}
        seen = CommandResponse(**printed, exit_code=code, failure_reason=str(error))
    if as_json:
        value = {"sandbox_id": sandbox.sandbox_id, **vars(seen)}
        click.echo(json.dumps(value, indent=2))
    elif seen.failure_reason:
        click.echo(seen.failure_reason, err=True)
    elif seen.exit_code == _NOT_FOUND and len(command.command) == 1 and len(command.command[0].split()) > 1:
        click.echo("Try: what a shell is to read needs one: -- sh -c '…'", err=True)
    return seen.exit_code or 0


def _print(stream: str, text: str) -> None:
    """Print a part of an output at once."""
    click.echo(text, nl=False, err=stream == "stderr")


async def start(sandbox: Sandbox, quiet: bool) -> None:
    """Start a sandbox; at a terminal, say meanwhile how far it is. `quiet`: say nothing."""
    if quiet or not sys.stderr.isatty():
        await sandbox.start()
        return
    sandbox.config.request_id = new_request_id()
    watcher = asyncio.create_task(_tell_phases(sandbox))
    try:
        await sandbox.start()
    finally:
        watcher.cancel()
        click.echo("\r\033[K", nl=False, err=True)


async def _tell_phases(sandbox: Sandbox) -> None:
    """Keep one line of the terminal that says what the start is doing."""
    asked: dict[str, str] = {}
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        # What is wrong with it the start itself says.
        with suppress(RockError):
            if not asked:
                # The same request again attaches to the start, and is answered at once: with the id that it was given.
                placed = await sandbox.transport.post("/start_async", dump(sandbox.config.to_request()))
                asked = {"sandbox_id": placed["sandbox_id"]}
            status = parse(StatusResponse, await sandbox.transport.get("/get_status", asked))
            doing = [phase["message"] for phase in status.status.values() if phase["status"] == "running"]
            click.echo(f"\r\033[K{sandbox.config.image}: {doing[0] if doing else 'starting'}"[:120], nl=False, err=True)
