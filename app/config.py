"""The configuration: frozen sections with their defaults, one sentence each, and `load`.

Defaults live here and nowhere else. A file `conf/rock-<env>.yml` holds only what differs from them, and the environment
overrides the file: `ROCK_<SECTION>__<KEY>` for every key, and the short names in `NAMED`.
"""

import dataclasses
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from app import config_source as source
from app.config_proxy import Proxy
from app.config_values import ApiKey, Pooled, parse_database, parse_keys, parse_pool, parse_zone
from app.sections import build

MB, GB = 1024**2, 1024**3
LOOPBACK = ("127.0.0.1", "localhost", "::1")

NAMED = {
    "ROCK_HOST": "server.host",
    "ROCK_PORT": "server.port",
    "ROCK_DATA_DIR": "server.data_dir",
    "ROCK_REDIS_URL": "redis.url",
    "ROCK_NODE_ID": "node.id",
    "ROCK_RUNTIME": "runtime.type",
    "ROCK_DEFAULT_AUTO_CLEAR_TIME_MINUTES": "runtime.auto_clear_minutes",
    "DOCKER_IMAGE_CACHE_DIR": "runtime.image_cache_dir",
    "DOCKER_HOST": "runtime.docker_host",
    "DOCKER_CERT_PATH": "runtime.docker_cert_path",
    "ROCK_API_KEYS": "auth.keys",
    "ROCK_ENVHUB_BASE_URL": "envhub.base_url",
    "ROCK_ENVHUB_DB_URL": "envhub.db_url",
    "ROCK_ENVHUB_DEFAULT_DOCKER_IMAGE": "envhub.default_docker_image",
    "ROCK_MONITOR_ENABLE": "metrics.enable",
    "ROCK_LOGGING_PATH": "log.path",
    "ROCK_LOGGING_LEVEL": "log.level",
    "ROCK_TIME_ZONE": "log.time_zone",
}
"""Environment names with a short form, and the key that each sets."""


@dataclass(frozen=True)
class Server:
    """The API process."""

    host: str = "127.0.0.1"
    """Listening address; anything but loopback needs `auth.keys`."""
    port: int = field(default=8080, metadata={"least": 1})
    """Listening port of the API."""
    workers: int = field(default=1, metadata={"least": 1})
    """gunicorn processes; each holds thousands of waiting calls."""
    connections: int = field(default=10_000, metadata={"least": 1})
    """Open connections per process: a long poll is one."""
    graceful_seconds: int = field(default=10, metadata={"least": 1})
    """How long open requests may finish after SIGTERM."""
    json_limit: int = field(default=64 * MB, metadata={"size": True})
    """Largest JSON body; above it 413."""
    upload_limit: int = field(default=2 * GB, metadata={"size": True})
    """Largest upload; above it 413."""
    data_dir: str = "~/.rock"
    """Embedded Redis data, process files and logs."""


@dataclass(frozen=True)
class Redis:
    """Where everything that must outlive a process is kept."""

    url: str = ""
    """Empty: an embedded server on `port`; the loader then fills in its address."""
    port: int = field(default=6390, metadata={"least": 1})
    """Of the embedded server; not 6379, where another Redis may be."""
    prefix: str = "rock:"
    """Of every key, so that several services can share one Redis."""
    embedded: bool = field(default=False, metadata={"derived": True})


@dataclass(frozen=True)
class Celery:
    """The two worker processes of a node."""

    lifecycle_threads: int = field(default=8, metadata={"least": 1})
    """Starts, stops and transfers at once."""


@dataclass(frozen=True)
class Node:
    """This machine as a node."""

    id: str = ""
    """Empty: the host name."""
    host_name: str = ""
    """Told to callers; empty: the host name."""
    host_ip: str = "127.0.0.1"
    """Where API processes reach this node, and callers the ports that its sandboxes publish."""
    labels: dict[str, str] = field(default_factory=dict)
    """For placement: `cluster` reserves the node for that cluster."""
    cpus: float = field(default=0, metadata={"least": 0})
    """CPUs to hand out; 0: those of the machine."""
    memory: int = field(default=0, metadata={"size": True})
    """Bytes to hand out; 0: those of the machine."""
    overcommit: float = field(default=4.0, metadata={"least": 0.01})
    """Sandboxes are mostly idle: reserve up to this many times the CPUs and the memory."""
    heartbeat_seconds: float = field(default=2.0, metadata={"least": 0.1})
    """How often the node says that it is alive."""
    lost_after_seconds: float = field(default=15.0, metadata={"least": 0.5})
    """Silence after which a node counts as lost."""
    sweep_seconds: float = field(default=5.0, metadata={"least": 0.1})
    """How often the node looks for expired sandboxes, and repairs what a lost event left."""
    allowed_mounts: tuple[str, ...] = ()
    """Host folders that `docker_args` may mount from; none by default."""
    seccomp_profiles: tuple[str, ...] = ()
    """Profiles that `docker_args` may choose by `--security-opt seccomp=`: paths of JSON files on the node, or `unconfined`; none by
    default."""


@dataclass(frozen=True)
class Runtime:
    """How sandboxes run, and their limits."""

    type: str = field(default="auto", metadata={"choices": ("auto", "docker", "podman", "local", "remote")})
    """auto: an engine if one answers, else `local` (no isolation)."""
    docker_host: str = ""
    """The engine's address (`unix://`, `tcp://`, `ssh://`); empty: the usual sockets."""
    docker_cert_path: str = ""
    """Folder with ca.pem, cert.pem and key.pem, for an engine that speaks TLS at a `tcp://` address; empty: plain TCP."""
    enable_auto_clear: bool = True
    """False: sandboxes that nobody calls are not stopped."""
    auto_clear_minutes: float = field(default=360.0, metadata={"least": 0})
    """Idle lease of a start that names none."""
    cpus: float = field(default=2.0, metadata={"least": 0.01})
    """Of a start that names none."""
    memory: int = field(default=8 * GB, metadata={"size": True})
    """Of a start that names none."""
    tell_cpus: bool = True
    """Tell programs by variables (OMP_NUM_THREADS and the like) how many CPUs a sandbox may use, unless its start or image sets them: they
    see all CPUs of the machine."""
    pids_limit: int = field(default=4096, metadata={"least": 16})
    """Processes and threads in one sandbox."""
    tmpfs_size: int = field(default=256 * MB, metadata={"size": True})
    """Of the keeper's folder in a sandbox: commands in flight and their output."""
    output_limit: int = field(default=10 * MB, metadata={"size": True})
    """Carried by an answer; of longer output the middle is left out, and the whole stays readable by offset."""
    waiting_limit: int = field(default=10_000, metadata={"least": 1})
    """Starts that may wait for room at once; more are refused with 503, and may be sent again."""
    start_timeout_seconds: float = field(default=600.0, metadata={"least": 1})
    """Over pull and start, when a start names none."""
    stop_retention_seconds: float = field(default=600.0, metadata={"least": 0})
    """How long a stopped sandbox, or a deleted one, can still be asked for."""
    keep_stopped_seconds: float = field(default=600.0, metadata={"least": 0})
    """How long the container and files of a stopped sandbox are kept for a restart or a commit, unless its start names
    auto_delete_seconds; 0: they go with the stop."""
    keep_stopped_limit: int = field(default=50, metadata={"least": 0})
    """Stopped containers kept on a node at most; of more, those whose time is over first are removed."""
    result_ttl_seconds: float = field(default=3600.0, metadata={"least": 600})
    """How long an answer can be fetched again by its request id."""
    image_evict_percent: float = field(default=90.0, metadata={"least": 0})
    """How full the engine's disk is when a node begins to remove images that its sandboxes used before and do not use now; 0: always,
    more than 100: never."""
    image_evict_seconds: float = field(default=3600.0, metadata={"least": 0})
    """For how long such an image must not have been used."""
    disk_check_seconds: float = field(default=30.0, metadata={"least": 0})
    """How often a node measures the files of its sandboxes, where the engine cannot limit them; what is above its limit is
    stopped. 0: never."""
    network: str = "bridge"
    """The engine's network that sandboxes join."""
    image_cache_dir: str = ""
    """Folder of `<image>.tar`, loaded before any registry pull."""


@dataclass(frozen=True)
class Warmup:
    """Images that every node pulls when it starts."""

    images: tuple[str, ...] = ()
    """Names of images."""


@dataclass(frozen=True)
class Pool:
    """Sandboxes that every node keeps started, for starts that ask for just these."""

    sandboxes: tuple[Pooled, ...] = field(default=(), metadata={"parse": parse_pool})
    """Each `{image, count}`, and what its starts name: memory, cpus, limit_cpus, disk, runtime, docker_args. They take no room until
    somebody has them, and a node keeps no more than it has room for."""


@dataclass(frozen=True)
class EnvHub:
    """The registry of environments."""

    enable: bool = True
    """False: none is started or asked, and every GEM environment gets the default image."""
    host: str = "127.0.0.1"
    """Listening address; anything but loopback needs `auth.keys`."""
    port: int = field(default=8081, metadata={"least": 1})
    """Listening port."""
    base_url: str = ""
    """Where it is found; empty: on this machine. One that is elsewhere is not started here."""
    db_url: str = field(default="~/.rock/rock_envs.db", metadata={"parse": parse_database})
    """Its SQLite file: a path or a sqlite:/// URL."""
    default_docker_image: str = "python:3.11"
    """Image of GEM environments that are not registered."""

    def is_here(self) -> bool:
        """Return whether it is to run on this machine."""
        parts = urlsplit(self.base_url)
        return self.enable and parts.hostname in (*LOOPBACK, self.host) and parts.port == self.port


@dataclass(frozen=True)
class Gem:
    """Sandboxes of GEM environments."""

    cpus: float = field(default=0.05, metadata={"least": 0.01})
    """Reserved: an environment is idle while a model thinks, so many fit."""
    limit_cpus: float = field(default=1.0, metadata={"least": 0.01})
    """What one may use while it computes."""
    memory: int = field(default=512 * MB, metadata={"size": True})
    """Hard limit of one."""
    step_seconds: float = field(default=60.0, metadata={"least": 0.1})
    """After them a reset or a step is interrupted."""
    make_seconds: float = field(default=600.0, metadata={"least": 1})
    """For the pull and the start, and again for making the environment."""


@dataclass(frozen=True)
class Auth:
    """Who may call. With no key anyone may, and the service listens on loopback only."""

    keys: tuple[ApiKey, ...] = field(default=(), metadata={"parse": parse_keys})
    """`key=owner` or `key=owner:admin`; in the file a list of {key, owner, admin}."""


@dataclass(frozen=True)
class Log:
    """Logging of every process."""

    level: str = field(default="INFO", metadata={"choices": ("DEBUG", "INFO", "WARNING", "ERROR")})
    """What is written; DEBUG: steps that went well, too."""
    format: str = field(default="text", metadata={"choices": ("text", "json")})
    """A line of text or a JSON object per event."""
    path: str = ""
    """Folder of log files; empty: standard error."""
    time_zone: str = field(default="UTC", metadata={"parse": parse_zone})
    """Of the times in answers and logs."""


@dataclass(frozen=True)
class Metrics:
    """Numbers for Prometheus: /metrics of the API."""

    enable: bool = False
    """For the API and for each node: what they count comes together in Redis, and every API process shows all of it."""
    key: str = field(default="", repr=False)
    """A key that opens /metrics and nothing else, for a scraper; with `auth.keys`, an admin's key opens it, too."""


@dataclass(frozen=True)
class Config:
    """Everything, frozen. `env` and `source` say where it came from."""

    env: str = "local"
    source: str = ""
    """The file that was read; empty: defaults only."""
    server: Server = field(default_factory=Server)
    redis: Redis = field(default_factory=Redis)
    celery: Celery = field(default_factory=Celery)
    node: Node = field(default_factory=Node)
    runtime: Runtime = field(default_factory=Runtime)
    warmup: Warmup = field(default_factory=Warmup)
    pool: Pool = field(default_factory=Pool)
    envhub: EnvHub = field(default_factory=EnvHub)
    gem: Gem = field(default_factory=Gem)
    proxy: Proxy = field(default_factory=Proxy)
    auth: Auth = field(default_factory=Auth)
    log: Log = field(default_factory=Log)
    metrics: Metrics = field(default_factory=Metrics)


SECTIONS: dict[str, type] = {
    item.name: item.default_factory  # type: ignore[misc]  # every section's factory is its class
    for item in dataclasses.fields(Config)
    if item.name not in ("env", "source")
}


def load(env: str | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """Return the configuration of environment `env` (default: ROCK_ADMIN_ENV, else local).

    Params:
        environ: variables to use instead of the process's own, for tests.
    Raises:
        ConfigError: a file that cannot be read, an unknown key, or a value that does not fit; the message names it.
    """
    variables = source.environment() if environ is None else environ
    name = env or variables.get("ROCK_ADMIN_ENV") or "local"
    path = source.find_file(name, variables.get("ROCK_CONFIG", ""))
    values = source.read_file(path, SECTIONS) if path else {}
    for (section, key), text in source.overrides(variables, SECTIONS, NAMED).items():
        values.setdefault(section, {})[key] = text
    sections: dict[str, Any] = {
        section: build(kind, values.get(section, {}), section) for section, kind in SECTIONS.items()
    }
    return _complete(Config(env=name, source=str(path or ""), **sections))


def _complete(config: Config) -> Config:
    """Return the configuration with what only this machine knows: its name and size, its embedded Redis."""
    redis, node, server = config.redis, config.node, config.server
    if not redis.url:
        redis = dataclasses.replace(redis, url=f"redis://127.0.0.1:{redis.port}/0", embedded=True)
    name = socket.gethostname()
    node = dataclasses.replace(
        node,
        id=node.id or name,
        host_name=node.host_name or name,
        cpus=node.cpus or float(len(os.sched_getaffinity(0))),
        memory=node.memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
    server = dataclasses.replace(server, data_dir=str(Path(server.data_dir).expanduser().resolve()))
    hub = config.envhub
    hub = dataclasses.replace(
        hub, db_url=parse_database(hub.db_url), base_url=hub.base_url.rstrip("/") or f"http://127.0.0.1:{hub.port}"
    )
    return dataclasses.replace(config, redis=redis, node=node, server=server, envhub=hub)
