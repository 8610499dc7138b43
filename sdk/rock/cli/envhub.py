"""`rock envhub`: run EnvHub, and work with its entries. Where it is: ROCK_ENVHUB_BASE_URL, and ROCK_API_KEY if it wants one."""

import json
from typing import Any

import click

from rock.actions import EnvEntry, GemSpec, dump, load
from rock.cli import options
from rock.cli.faults import faults
from rock.cli.lazy import LazyGroup
from rock.errors import BadRequest
from rock.sdk import loop
from rock.sdk.envhub import EnvHubClient, EnvHubClientConfig

json_option = options.json_option


@click.group(cls=LazyGroup, table={"start": ("app.cli:envhub_start", "Run EnvHub in the foreground.")})
def envhub() -> None:
    """Which image an environment runs in."""


@envhub.command()
@click.option("--owner", help="Only entries of this owner.")
@click.option("--tag", "tags", multiple=True, help="Only entries with any of these; may be repeated.")
@json_option
def ls(owner: str | None, tags: tuple[str, ...], as_json: bool) -> None:
    """List the registered environments."""
    with faults():
        entries = loop.run(_client().list_envs(owner, list(tags) or None))
    if as_json:
        click.echo(json.dumps([dump(entry) for entry in entries], indent=2))
        return
    for entry in entries:
        click.echo(f"{entry.env_name}\t{entry.image}\t{entry.owner}\t{','.join(entry.tags)}")


@envhub.command()
@click.argument("env_name")
@click.argument("image")
@click.option("--owner", default="", help="Who it belongs to, for people and --owner of ls.")
@click.option("--description", default="", help="What it is, for people.")
@click.option("--tag", "tags", multiple=True, help="May be repeated.")
@click.option(
    "--extra-spec",
    help="A JSON object; GEM reads python, modules, cpus, limit_cpus, memory, disk, pull, docker_args and auto_clear_seconds from it.",
)
@json_option
def register(
    env_name: str,
    image: str,
    owner: str,
    description: str,
    tags: tuple[str, ...],
    extra_spec: str | None,
    as_json: bool,
) -> None:
    """Register ENV_NAME to run in IMAGE, or replace its entry."""
    with faults():
        asked = _client().register(env_name, image, owner, description, list(tags), _document(extra_spec))
        _show(loop.run(asked), as_json)


@envhub.command()
@click.argument("env_name")
@json_option
def get(env_name: str, as_json: bool) -> None:
    """Print an entry; exit code 1 if there is none."""
    with faults():
        _show(loop.run(_client().get_env(env_name)), as_json)


@envhub.command()
@click.argument("env_name")
@json_option
def rm(env_name: str, as_json: bool) -> None:
    """Delete an entry; exit code 1 if there is none."""
    with faults():
        there = loop.run(_client().delete_env(env_name))
    if as_json:
        click.echo(json.dumps({"env_name": env_name, "deleted": there}))
    if not there:
        raise click.ClickException(f"environment {env_name!r} is not registered")


def _client() -> EnvHubClient:
    """Return a client that does not try for long."""
    return EnvHubClient(EnvHubClientConfig(patience=options.PATIENCE_SECONDS))


def _document(text: str | None) -> dict[str, Any] | None:
    """Return the JSON object that an option holds."""
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"--extra-spec is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise click.UsageError("--extra-spec must be a JSON object")
    try:
        load(GemSpec, value)
    except BadRequest as error:
        # No more than that: an entry may be for something else than GEM.
        click.echo(f"warning: GEM will not run this environment: --extra-spec {error.message}", err=True)
    return value


def _show(entry: EnvEntry, as_json: bool) -> None:
    """Print an entry."""
    values = dump(entry)
    if as_json:
        click.echo(json.dumps(values, indent=2))
        return
    for name, value in values.items():
        click.echo(f"{name}: {value if isinstance(value, str) else json.dumps(value)}")
