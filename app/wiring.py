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
from app.gem.environments import Environments
from app.gem.recipes import Recipes
from app.image_store import ImageStore
from app.images import Images
from app.keys import Keys
from app.letters import Letters
from app.lifecycle import Lifecycle, Stores
from app.nodes import Nodes
from app.output import Output
from app.results import ResultStore
from app.roster import Roster
from app.services import Services
from app.store import NodeStore, SandboxStore
from app.watch import Watch


def build(
    config: Config,
    celery: Celery | None = None,
    redis: Client | None = None,
    raw_redis: Client | None = None,
    openapi: str = "",
) -> Services:
    """Return the parts of an API process; see `app.create_app`. `openapi` is the description to serve."""
    redis = redis or connect(config.redis.url)
    raw_redis = raw_redis or connect(config.redis.url, decode_responses=False)
    keys, stores = Keys(config.redis.prefix), make_stores(config, redis)
    watch = Watch(stores.results, stores.nodes)
    celery = celery or make_celery(config)
    dispatch = Dispatch(stores.results, Nodes(celery), watch, letters=Letters(celery, keys))
    zone = ZoneInfo(config.log.time_zone)
    lifecycle = Lifecycle(stores, dispatch, config.runtime, zone)
    commands = Commands(dispatch, stores.results, BlobStore(raw_redis, keys))
    recipes = Recipes(config.envhub)
    return Services(
        keyring=Keyring(config.auth.keys),
        lifecycle=lifecycle,
        afterlife=Afterlife(stores, dispatch, config.runtime),
        images=Images(stores, dispatch),
        commits=Commits(stores, dispatch, zone),
        roster=Roster(stores, dispatch.clock, zone),
        commands=commands,
        environments=Environments(lifecycle, commands, recipes, config.gem, config.runtime.output_limit),
        dispatch=dispatch,
        results=stores.results,
        output=Output(dispatch, stores.results),
        nodes=stores.nodes,
        watch=watch,
        redis=redis,
        json_limit=config.server.json_limit,
        upload_limit=config.server.upload_limit,
        openapi=openapi,
    )


def make_stores(config: Config, redis: Client) -> Stores:
    """Return the stores that API processes and nodes share, with the configured times."""
    keys, lost_after, kept = Keys(config.redis.prefix), config.node.lost_after_seconds, config.runtime
    return Stores(
        sandboxes=SandboxStore(redis, keys, lost_after, kept.stop_retention_seconds),
        nodes=NodeStore(redis, keys, lost_after),
        results=ResultStore(redis, keys, lost_after, kept.result_ttl_seconds),
        images=ImageStore(redis, keys),
    )
