"""`rock image`: the images on the service's nodes. Where it is: ROCK_BASE_URL, and ROCK_API_KEY if it wants one."""

import json
import sys
import time
from urllib.parse import quote

import click

from rock.actions import RemoveImageRequest, RemoveImageResponse, WarmupRequest, WarmupResponse, dump, parse
from rock.cli.faults import faults
from rock.sdk import loop
from rock.sdk.sandbox.config import SandboxConfig

LOOK_SECONDS = 0.5
"""Between two looks at how far a warmup is."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def image() -> None:
    """Work with the images on the nodes."""


@image.command()
@click.argument("images", nargs=-1, required=True)
@click.option("--no-wait", is_flag=True, help="Begin it, and do not wait for its end.")
@json_option
def warm(images: tuple[str, ...], no_wait: bool, as_json: bool) -> None:
    """Fetch IMAGES on every living node; exits with 1 if one could not be fetched."""
    transport, told = SandboxConfig().transport(), set()
    with faults():
        task = parse(
            WarmupResponse, loop.run(transport.post("/warmup/tasks", dump(WarmupRequest(images=list(images)))))
        )
        while True:
            for pull in task.pulls:
                line = f"{pull['node']}\t{pull['image']}\t{pull['state']}\t{pull['message']}"
                if line not in told and not as_json:
                    told.add(line)
                    click.echo(line)
            if no_wait or task.state not in ("pending", "running"):
                break
            time.sleep(LOOK_SECONDS)
            task = parse(WarmupResponse, loop.run(transport.get(f"/warmup/tasks/{quote(task.task_id, safe='')}")))
    if as_json:
        click.echo(json.dumps(dump(task), indent=2))
    sys.exit(1 if task.state == "failed" else 0)


@image.command()
@click.argument("image")
@click.option("--node", help="Only on this node; otherwise on every one that has it.")
@json_option
def rm(image: str, node: str | None, as_json: bool) -> None:
    """Remove IMAGE from the nodes; exits with 1 if it stays on one, or may stay on one that does not answer."""
    with faults():
        request = dump(RemoveImageRequest(image=image, node=node))
        found = parse(RemoveImageResponse, loop.run(SandboxConfig().transport().post("/remove_image", request)))
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
