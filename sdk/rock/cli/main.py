"""The root of the `rock` command.

The table below is the whole command line on one screen. A group is imported when it is typed, so the client alone
(installed without the `server` extra) starts quickly and simply lacks what it does not have.
"""

import click
from click.shell_completion import get_completion_class

from rock.cli.lazy import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "admin": ("app.cli:admin", "Run this machine's service: start, stop, status."),
    "config": ("app.cli:config", "Show the effective configuration."),
    "proc": ("app.cli:proc", "Run one process of the service (what the Procfile calls)."),
    "worker": ("workers.cli:worker", "Join this machine as a node."),
    "node": ("rock.cli.node:node", "Look at the nodes, drain and resume them."),
    "sandbox": ("rock.cli.sandbox:sandbox", "Work with sandboxes."),
    "image": ("rock.cli.image:image", "Fetch images on the nodes ahead of time, and remove them."),
    "envhub": ("rock.cli.envhub:envhub", "Which image an environment runs in: run the server, and ask it."),
}


SHELLS = ("bash", "zsh", "fish")


@click.group(cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rock-on-celery", prog_name="rock")
def cli() -> None:
    """Sandboxes for reinforcement learning, over the ROCK protocol."""


@cli.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes `rock` in a shell.

    bash: rock completion bash > ~/.local/share/bash-completion/completions/rock

    zsh: rock completion zsh > a folder of $fpath/_rock

    fish: rock completion fish > ~/.config/fish/completions/rock.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows all of SHELLS"
    made = kind(cli, {}, "rock", "_ROCK_COMPLETE")
    # Only the text: click's own `source()` would run bash to look at its version.
    click.echo(made.source_template % made.source_vars())
