"""`rock worker`: join this machine to a service that runs elsewhere."""

import click

from app import log, processes, running
from app.broker import make_celery
from app.cli import configured, env_option
from app.database import connect
from app.sections import ConfigError
from app.stores import make_stores
from app.supervisor import Supervisor
from rock.errors import RockError
from workers.heartbeat import check_id


@click.group()
def worker() -> None:
    """Join this machine as a node."""


@worker.command()
@click.option("--node-id", help="Name of this node, one of its own in the cluster (default: the host name).")
@click.option("--label", "labels", multiple=True, help="NAME=VALUE, for placement; may be repeated.")
@click.option("--runtime", help="auto, docker, podman, local or remote.")
@env_option
def start(node_id: str | None, labels: tuple[str, ...], runtime: str | None, env: str | None) -> None:
    """Run this node's two workers until told to stop. Needs ROCK_REDIS_URL."""
    given = {
        "ROCK_ADMIN_ENV": env,
        "ROCK_NODE__ID": node_id,
        "ROCK_NODE__LABELS": ",".join(labels) or None,
        "ROCK_RUNTIME__TYPE": runtime,
    }
    overrides = {name: value for name, value in given.items() if value is not None}
    config = configured(overrides)
    if config.redis.embedded:
        raise click.ClickException("set ROCK_REDIS_URL to the Redis of the service that this node is to join")
    if doubt := processes.open_redis(config):
        click.echo(doubt, err=True)
    log.set_up(config, "node")
    folder = f"{config.server.data_dir}/node-{config.node.id}"
    try:
        with running.hold(folder):
            processes.wait_for_redis(config.redis.url)
            stores = make_stores(config, connect(config.redis.url), make_celery(config))
            check_id(config, stores.nodes, stores.results.clock)
            _supervise(processes.with_variables(processes.node(config), overrides))
    except running.AlreadyRunning as error:
        raise click.ClickException(f"node {config.node.id} already runs here") from error
    except (ConfigError, RockError) as error:
        raise click.ClickException(str(error)) from error


def _supervise(children: tuple[processes.Process, ...]) -> None:
    """Run the workers until told to stop."""
    supervisor = Supervisor(children)
    try:
        for child in children:
            supervisor.start(child.name)
        supervisor.watch(lambda: None)
    finally:
        supervisor.stop()
