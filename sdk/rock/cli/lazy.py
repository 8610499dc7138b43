"""Groups whose commands are imported when they are typed."""

import importlib
from collections.abc import Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """A group with commands that are imported on use.

    Params:
        table: name → (`module:command`, what it does).
    """

    def __init__(self, *args: Any, table: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*args, **options)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name every command, those of the table first."""
        return [*self._table, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command `cmd_name`, or say what has to be installed for it."""
        if cmd_name not in self._table:
            return super().get_command(ctx, cmd_name)
        module_name, attribute = self._table[cmd_name][0].split(":")
        try:
            command = getattr(importlib.import_module(module_name), attribute)
        except ModuleNotFoundError as error:
            raise click.ClickException(
                f"`rock {cmd_name}` needs the module {error.name!r}: "
                "install the server part with pip install 'rock-on-celery[server]'"
            ) from error
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command's name, or an option; those of the table without importing any."""
        mine = [
            CompletionItem(name, help=text) for name, (_, text) in self._table.items() if name.startswith(incomplete)
        ]
        names = {item.value for item in mine}
        known = [
            CompletionItem(name, help=self.commands[name].get_short_help_str())
            for name in super().list_commands(ctx)
            if name.startswith(incomplete) and name not in names
        ]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*mine, *known, *options]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands; those of the table without importing any."""
        rows = [(name, summary) for name, (_, summary) in self._table.items()]
        rows += [(name, self.commands[name].get_short_help_str(90)) for name in super().list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
