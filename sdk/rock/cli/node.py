"""`rock node`: look at the machines that run sandboxes, and steer them. Where the service is: ROCK_BASE_URL, and ROCK_API_KEY (an admin's)."""

import json
from typing import Any
from urllib.parse import quote

import click

from rock.actions import NodeListResponse, NodeResponse, dump, parse
from rock.cli import options
from rock.cli.faults import faults
from rock.sdk import loop

GIB = 1024**3


@click.group()
def node() -> None:
    """Work with the machines that run sandboxes."""


@node.command("ls")
@options.json_option
def list_(as_json: bool) -> None:
    """List the nodes: what each has, and what of it is taken."""
    with faults():
        found = parse(NodeListResponse, loop.run(options.config().transport().get("/nodes")))
    if as_json:
        click.echo(json.dumps(dump(found), indent=2))
        return
    rows = [("NODE", "STATE", "SANDBOXES", "POOLED", "CPUS", "MEMORY", "RUNTIME", "LABELS"), *map(_row, found.nodes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if found.waiting:
        click.echo(f"{found.waiting} starts wait for room")


@node.command()
@click.argument("node_id")
@options.json_option
def drain(node_id: str, as_json: bool) -> None:
    """Give a node nothing new; the sandboxes that it has go on."""
    found = _steer(node_id, "drain")
    _say(found, as_json, f"{node_id} takes nothing new; {found.sandboxes} sandboxes are left on it")


@node.command()
@click.argument("node_id")
@options.json_option
def resume(node_id: str, as_json: bool) -> None:
    """Let a drained node take new sandboxes again."""
    _say(_steer(node_id, "resume"), as_json, f"{node_id} takes new sandboxes")


def _steer(node_id: str, verb: str) -> NodeResponse:
    """Ask the service to drain or resume a node."""
    with faults():
        sent = options.config().transport().post(f"/nodes/{quote(node_id, safe='')}/{verb}", {})
        return parse(NodeResponse, loop.run(sent))


def _say(found: NodeResponse, as_json: bool, text: str) -> None:
    """Print what has become of a node."""
    click.echo(json.dumps(dump(found), indent=2) if as_json else text)


def _row(one: NodeResponse) -> tuple[str, ...]:
    """Return a node as a row of the table."""
    state = f"{one.state} (draining)" if one.draining and one.state != "draining" else one.state
    labels: dict[str, Any] = one.labels
    return (
        one.node_id, state, str(one.sandboxes), str(one.pooled), f"{one.used_cpus:g}/{one.cpus:g}",
        f"{one.used_memory / GIB:.1f}/{one.memory / GIB:.1f} GiB", one.runtime or "",
        ",".join(f"{name}={value}" for name, value in sorted(labels.items())),
    )  # fmt: skip
