"""`rock sandbox run`, `exec` and `logs`: commands whose output somebody watches."""

from __future__ import annotations

from urllib.parse import quote

import click

from rock.actions import Command
from rock.cli import attended, copying, options
from rock.sdk import live
from rock.sdk.sandbox.client import Sandbox
from rock.sdk.sandbox.config import SandboxConfig

json_option, timeout_option = options.json_option, options.timeout_option
workdir_option = click.option("--workdir", "-w", metavar="PATH", help="Folder in the sandbox in which COMMAND runs.")
# What follows IMAGE or ID is COMMAND's, options too: `--` is not needed.
COMMAND_SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.command(context_settings=COMMAND_SETTINGS)
@click.argument("image")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--copy", "copies", multiple=True, metavar="LOCAL[:PATH]",
    help="Send a file or folder first, and run COMMAND beside it; may be repeated. PATH: ~/workspace.",
)  # fmt: skip
@workdir_option
@options.start_options
@timeout_option
@json_option
def run(
    image: str, command: tuple[str, ...], copies: tuple[str, ...], workdir: str | None, seconds: float, as_json: bool,
    **given: object,
) -> None:  # fmt: skip
    """Run COMMAND in a new sandbox of IMAGE, show what it prints as it comes, then throw the sandbox away; exits as COMMAND did.

    rock sandbox run --copy . python:3.11 -- pytest -q
    """
    sent = [copying.Copy.parse(text) for text in copies]
    config = options.config(image=image, auto_delete_seconds=0, **given)
    attended.finish(_run(config, _words(command), sent, workdir, seconds, as_json))


def _words(command: tuple[str, ...]) -> list[str]:
    """Return a command without the `--` that sets it apart. Raises UsageError when nothing else is there."""
    words = list(command[1:] if command[0] == "--" else command)
    if not words:
        raise click.UsageError("Missing argument 'COMMAND...'.")
    return words


async def _run(
    config: SandboxConfig, words: list[str], sent: list[copying.Copy], workdir: str | None, seconds: float, as_json: bool
) -> int:  # fmt: skip
    sandbox = Sandbox(config)
    await attended.start(sandbox, quiet=as_json)
    try:
        folder = await copying.send(sandbox, sent, quiet=as_json) if sent else None
        command = Command(command=words, timeout=seconds, cwd=workdir or folder)
        return await attended.execute(sandbox, command, as_json)
    finally:
        await sandbox.close()


@click.command("exec", context_settings=COMMAND_SETTINGS)
@options.sandbox_argument
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@workdir_option
@timeout_option
@json_option
def exec_(sandbox_id: str, command: tuple[str, ...], workdir: str | None, seconds: float, as_json: bool) -> None:
    """Run COMMAND in a running sandbox, show what it prints as it comes; exits as COMMAND did."""
    attended.finish(_exec(sandbox_id, Command(command=_words(command), timeout=seconds, cwd=workdir), as_json))


async def _exec(sandbox_id: str, command: Command, as_json: bool) -> int:
    sandbox = Sandbox(options.config())
    await sandbox.attach(sandbox_id)
    return await attended.execute(sandbox, command, as_json)


@click.command()
@options.sandbox_argument
@click.option("--session", help="Of this session; else of the one that was used last.")
@click.option("--follow", "-f", is_flag=True, help="Go on until the command has ended.")
@json_option
def logs(sandbox_id: str, session: str | None, follow: bool, as_json: bool) -> None:
    """Show what the command that a session runs, or ran last, has printed. Commands of `exec` and `run` are in no session."""
    attended.finish(_logs(sandbox_id, session, follow, as_json))


async def _logs(sandbox_id: str, session: str | None, follow: bool, as_json: bool) -> int:
    transport = options.config().transport()
    asked = {"session": session} if session else {}
    last = await transport.get(f"/sandboxes/{quote(sandbox_id, safe='')}/last_command", asked)
    printed: list[str] = []

    def tell(_: str, text: str) -> None:
        """Print a part, or keep it for the JSON."""
        if as_json:
            printed.append(text)
        else:
            click.echo(text, nl=False)

    await live.follow(transport, last["request_id"], ("stdout",), tell, to_end=follow)
    options.say(as_json, {"sandbox_id": sandbox_id, **last, "output": "".join(printed)})
    return 0
