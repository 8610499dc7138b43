"""`rock image`: the images on the service's nodes. Where it is: ROCK_BASE_URL, and ROCK_API_KEY if it wants one."""

import json
import re
import shutil
import sys
import time
from typing import Any
from urllib.parse import quote

import click

from rock.actions import RemoveImageRequest, RemoveImageResponse, WarmupRequest, WarmupResponse, dump, parse
from rock.cli import options
from rock.cli.faults import faults
from rock.sdk import loop

LOOK_SECONDS = 0.5
"""Between two looks at how far a warmup is."""

BAR = 24
"""Characters of a full bar."""

_MEGABYTES = re.compile(r"(\d+) of (\d+) MB")

json_option = options.json_option


@click.group()
def image() -> None:
    """Work with the images on the nodes."""


@image.command()
@click.argument("images", nargs=-1, required=True)
@click.option("--no-wait", is_flag=True, help="Begin it, and do not wait for its end.")
@json_option
def warm(images: tuple[str, ...], no_wait: bool, as_json: bool) -> None:
    """Fetch IMAGES on every living node; exits with 1 if one could not be fetched."""
    transport, board = options.config().transport(), Board(sys.stdout.isatty())
    with faults():
        task = parse(
            WarmupResponse, loop.run(transport.post("/warmup/tasks", dump(WarmupRequest(images=list(images)))))
        )
        while True:
            if not as_json:
                board.show(task.pulls)
            if no_wait or task.state not in ("pending", "running"):
                break
            time.sleep(LOOK_SECONDS)
            task = parse(WarmupResponse, loop.run(transport.get(f"/warmup/tasks/{quote(task.task_id, safe='')}")))
    if as_json:
        click.echo(json.dumps(dump(task), indent=2))
    sys.exit(1 if task.state == "failed" else 0)


class Board:
    """How far pulls are: at a terminal a line with a bar for each, kept up to date; else a line for each change.

    Params:
        live: whether it is a terminal.
    """

    def __init__(self, live: bool) -> None:
        self._live, self._told, self._lines = live, set[str](), 0

    def show(self, pulls: list[Any]) -> None:
        """Print what has changed."""
        if not self._live:
            for pull in pulls:
                line = f"{pull['node']}\t{pull['image']}\t{pull['state']}\t{pull['message']}"
                if line not in self._told:
                    self._told.add(line)
                    click.echo(line)
            return
        width = shutil.get_terminal_size().columns - 1
        text = "".join(f"\033[K{bar(pull)[:width]}\n" for pull in pulls)
        click.echo((f"\033[{self._lines}A" if self._lines else "") + text, nl=False)
        self._lines = len(pulls)


def bar(pull: dict[str, Any]) -> str:
    """Return a pull as a line: node, image, a bar of the megabytes that came, and what its node says."""
    found = _MEGABYTES.search(pull["message"] or "")
    done, whole = (int(found[1]), int(found[2])) if found else (0, 0)
    filled = BAR if pull["state"] == "success" else BAR * min(done, whole) // whole if whole else 0
    said = f"{done} of {whole} MB" if found and pull["state"] == "running" else pull["message"] or pull["state"]
    return f"{pull['node']}  {pull['image']}  [{'#' * filled}{'.' * (BAR - filled)}]  {said}"


@image.command()
@click.argument("image")
@click.option("--node", help="Only on this node; otherwise on every one that has it.")
@json_option
def rm(image: str, node: str | None, as_json: bool) -> None:
    """Remove IMAGE from the nodes; exits with 1 if it stays on one, or may stay on one that does not answer."""
    with faults():
        request = dump(RemoveImageRequest(image=image, node=node))
        found = parse(RemoveImageResponse, loop.run(options.config().transport().post("/remove_image", request)))
    if as_json:
        click.echo(json.dumps(dump(found), indent=2))
    else:
        for name in found.removed:
            click.echo(f"{name}\tremoved")
        for failure in found.failed:
            click.echo(f"{failure['node']}\t{failure['error']}", err=True)
        for name in found.lost:
            click.echo(f"{name}\tdoes not answer", err=True)
    sys.exit(1 if found.failed or found.lost else 0)
