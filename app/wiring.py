"""Builds the parts of an API process from its configuration."""

from zoneinfo import ZoneInfo

from celery import Celery

from app.afterlife import Afterlife
from app.auth import Keyring
from app.blobs import BlobStore
from app.broker import make_celery
from app.commands import Commands
from app.commits import Commits
from app.config import Config
from app.database import Client, connect
from app.dispatch import Dispatch
from app.downloads import Downloads
from app.fleet import Fleet
from app.gem.environments import Environments
from app.gem.recipes import Recipes
from app.images import Images
from app.keys import Keys
from app.letters import Letters
from app.lifecycle import Lifecycle
from app.metrics import Metrics
from app.nodes import Nodes
from app.output import Output
from app.roster import Roster
from app.services import Services
from app.stores import make_stores
from app.tally import Tally
from app.terminal import Desk
from app.tunnels import Tunnels
from app.watch import Watch


def build(
    config: Config, celery: Celery | None = None, redis: Client | None = None, raw_redis: Client | None = None,
    openapi: str = "",
) -> Services:  # fmt: skip
    """Return the parts of an API process; see `app.create_app`. `openapi` is the description to serve."""
    redis = redis or connect(config.redis.url)
    keys, celery = Keys(config.redis.prefix), celery or make_celery(config)
    tally = Tally(redis, keys, enable=config.metrics.enable)
    stores = make_stores(config, redis, celery, tally)
    watch, zone = Watch(stores), ZoneInfo(config.log.time_zone)
    dispatch = Dispatch(stores, Nodes(celery), watch, letters=Letters(celery, keys))
    lifecycle = Lifecycle(stores, dispatch, config.runtime, zone)
    blobs = BlobStore(raw_redis or connect(config.redis.url, decode_responses=False), keys)
    commands, output = Commands(dispatch, stores.results, blobs), Output(dispatch, stores.results)
    return Services(
        keyring=Keyring(config.auth.keys, config.metrics.key),
        lifecycle=lifecycle,
        afterlife=Afterlife(stores, dispatch, config.runtime),
        images=Images(stores, dispatch),
        commits=Commits(stores, dispatch, zone),
        roster=Roster(stores, dispatch.clock, zone),
        commands=commands,
        downloads=Downloads(dispatch, stores.results, blobs, watch),
        environments=Environments(lifecycle, commands, Recipes(config.envhub), config.gem, config.runtime.output_limit),
        dispatch=dispatch,
        results=stores.results,
        output=output,
        terminals=Desk(dispatch, output, stores.results, set()),
        tunnels=Tunnels(stores, config.proxy, dispatch.clock),
        fleet=Fleet(stores.nodes, stores.line, dispatch.clock),
        nodes=stores.nodes,
        watch=watch,
        redis=redis,
        metrics=Metrics(redis, keys, stores, tally),
        json_limit=config.server.json_limit,
        upload_limit=config.server.upload_limit,
        openapi=openapi,
    )
