"""What the commands of the client share: options, and how a result is printed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from rock import settings
from rock.errors import RockError
from rock.sdk import loop
from rock.sdk.sandbox.config import SandboxConfig

PATIENCE_SECONDS = 5.0
"""A person at a terminal learns sooner than a trainer that nobody answers."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, errors too.")
timeout_option = click.option(
    "--timeout", "seconds", type=click.FloatRange(min=0, min_open=True), default=1200.0, show_default=True,
    metavar="SECONDS", help="After them COMMAND is ended.",
)  # fmt: skip


class SandboxId(click.ParamType):
    """The id of a sandbox; a shell completes it from those that the service has."""

    name = "id"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the newest ids that begin so; none when nobody answers."""
        with contextlib.suppress(RockError, settings.SettingError):
            asked = SandboxConfig(patience=0).transport().get("/sandboxes", {"page_size": "100"})
            rows = loop.run(asked)["items"]
            return [
                CompletionItem(row["sandbox_id"], help=f"{row['state']} {row['image']}")
                for row in rows if row["sandbox_id"].startswith(incomplete)
            ]  # fmt: skip
        return []


sandbox_argument = click.argument("sandbox_id", metavar="ID", type=SandboxId())
sandboxes_argument = click.argument("sandbox_ids", metavar="ID...", nargs=-1, required=True, type=SandboxId())


def start_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what a command says about a sandbox that it starts; it gets them as keywords for `config`."""
    for option in (
        click.option("--env", "-e", "variables", multiple=True, metavar="NAME=VALUE", help="May be repeated."),
        click.option("--cpus", type=float, default=1.0, show_default=True, help="CPUs, its hard limit."),
        click.option("--memory", default="2g", show_default=True, help="Its hard limit, such as 512m or 8g."),
    ):
        command = option(command)
    return command


def config(**given: Any) -> SandboxConfig:
    """Return the configuration of a command: what it was given, and the environment.

    Params:
        given: fields of SandboxConfig; `variables`, texts `NAME=VALUE`, become its `env`.
    Raises:
        UsageError: one of the variables has no name or no value.
    """
    env = {}
    for text in given.pop("variables", ()):
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise click.UsageError(f"--env must be NAME=VALUE, is {text!r}")
        env[name] = value
    found = SandboxConfig(patience=PATIENCE_SECONDS, **given)
    found.env = env
    return found


def say(as_json: bool, value: Mapping[str, Any], text: str | None = None) -> None:
    """Print a result: as JSON, or the text if there is one."""
    if as_json:
        click.echo(json.dumps(value, indent=2))
    elif text:
        click.echo(text)
