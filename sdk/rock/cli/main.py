"""The root of the `rock` command.

The table below is the whole command line on one screen. A group is imported when it is typed, so the client alone
(installed without the `server` extra) starts quickly and simply lacks what it does not have.
"""

import importlib

import click

COMMANDS: dict[str, tuple[str, str]] = {
    "admin": ("app.cli:admin", "Run this machine's service: start, stop, status."),
    "config": ("app.cli:config", "Show the effective configuration."),
    "proc": ("app.cli:proc", "Run one process of the service (what the Procfile calls)."),
    "worker": ("workers.cli:worker", "Join this machine as a node."),
    "sandbox": ("rock.cli.sandbox:sandbox", "Work with sandboxes."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported on use, by the table above."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name every command of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command `cmd_name`, or say what has to be installed for it."""
        if cmd_name not in COMMANDS:
            return None
        module_name, attribute = COMMANDS[cmd_name][0].split(":")
        try:
            command = getattr(importlib.import_module(module_name), attribute)
        except ModuleNotFoundError as error:
            raise click.ClickException(
                f"`rock {cmd_name}` needs the module {error.name!r}: "
                "install the server part with pip install 'rock-on-celery[server]'"
            ) from error
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rock-on-celery", prog_name="rock")
def cli() -> None:
    """Sandboxes for reinforcement learning, over the ROCK protocol."""
