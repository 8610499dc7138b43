"""The node's own record: taken when the session worker starts, renewed while it lives, given back when it ends."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

from app.clock import Clock
from app.config import Config
from app.database import DatabaseAway
from app.node_store import NodeStore
from app.placement import pool_of
from app.records import NodeRecord
from rock.errors import AlreadyExists, NodeLost, RockError

log = logging.getLogger(__name__)

LOOK_AGAIN = 0.1
"""Seconds between two looks at who holds the node id."""


class Heartbeat:
    """Holds the node id, and says that the node lives."""

    def __init__(self, config: Config, nodes: NodeStore, clock: Clock, deployment: str, description: str) -> None:
        """`deployment`, `description`: how this node runs sandboxes, for status and people."""
        self._config, self._nodes, self._clock = config, nodes, clock
        node = config.node
        self._record = NodeRecord(
            node_id=node.id, cpus=node.cpus * node.overcommit, memory=int(node.memory * node.overcommit), labels=dict(node.labels),
            deployment=deployment, host_name=node.host_name, host_ip=node.host_ip, info={"runtime": description},
            pool=pool_of(node.labels.get("cluster", "")),
        )  # fmt: skip
        self._token = ""
        self._lock_file: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Register and begin to beat. Raises AlreadyExists when a living worker holds the id."""
        self._token = self._take_token()
        self._nodes.register(self._config.node.id, self._token, self._record, self._clock())
        self._thread.start()

    def close(self) -> None:
        """Stop beating and give the id back."""
        self._stop.set()
        try:
            self._nodes.leave(self._config.node.id, self._token)
        except DatabaseAway:
            # Expected where Redis is told to end along with us (Ctrl-C of a Procfile).
            log.info("node %s ends after Redis did: it counts as lost, until it is back", self._config.node.id)
        except RockError as error:
            log.warning("node %s could not sign off: %s", self._config.node.id, error)
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def _take_token(self) -> str:
        """Return this node's token, kept on disk so that the process after a crash holds the id at once.

        The lock is the kernel's: it goes with the process, however that ends.
        """
        path = token_path(self._config)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock_file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyExists(
                f"node id {self._config.node.id!r} is in use by another worker on this machine ({path} is locked)"
            ) from error
        token = os.pread(self._lock_file, 64, 0).decode("ascii", "ignore").strip()
        if not token:
            token = secrets.token_hex(16)
            os.pwrite(self._lock_file, token.encode(), 0)
        return token

    def _beat(self) -> None:
        while not self._stop.wait(self._config.node.heartbeat_seconds):
            try:
                self._nodes.heartbeat(self._config.node.id, self._token, self._clock())
            except NodeLost:
                self._register_again()
            except RockError as error:
                log.warning("heartbeat of node %s failed: %s", self._config.node.id, error)

    def _register_again(self) -> None:
        """Redis forgot the node (or gave its id away): take it again, or say who has it."""
        try:
            self._nodes.register(self._config.node.id, self._token, self._record, self._clock())
        except RockError as error:
            log.error("node %s is not ours any more: %s", self._config.node.id, error)


def token_path(config: Config) -> Path:
    """Return the file with the token under which this machine holds its node id."""
    return Path(config.server.data_dir).expanduser() / f"node-{config.node.id}.token"


def _own_token(config: Config) -> str:
    """Return the token that this machine has for its node id, "" when it has none yet."""
    try:
        return token_path(config).read_text(encoding="ascii", errors="ignore").strip()
    except FileNotFoundError:
        return ""


def check_id(config: Config, nodes: NodeStore, clock: Clock) -> None:
    """Return once the node id is this machine's to take: it was already, or nobody has it, or its holder is silent.

    A holder that has been killed is told from a living one by waiting for its next heartbeat, or until it counts as lost.

    Raises:
        AlreadyExists: another machine's worker holds it, and lives.
        Unavailable: Redis does not answer.
    """
    node_id, seen = config.node.id, nodes.get(config.node.id)
    while True:
        node = nodes.get(node_id)
        if node is None or seen is None or not nodes.is_alive(node, clock()):
            return
        if nodes.holds(node_id, _own_token(config)):
            return
        if node.heartbeat != seen.heartbeat:
            raise AlreadyExists(
                f"node id {node_id!r} is held by another living worker; choose another --node-id, or end that worker"
            )
        time.sleep(LOOK_AGAIN)


def wait_for_id(config: Config, nodes: NodeStore, stopping: Callable[[], bool]) -> bool:
    """Wait until this machine's session worker holds the node id; False when told to stop first.

    The lifecycle worker must touch nothing before: on another machine with the same node id it would find none of the node's
    containers here, and write them all off.
    """
    said = False
    while not stopping():
        try:
            token = _own_token(config)
            if token and nodes.holds(config.node.id, token):
                return True
        except RockError as error:
            log.warning("node %s cannot be looked up: %s", config.node.id, error)
        if not said:
            log.info("node %s: waiting for its session worker to take the node id", config.node.id)
        said = True
        time.sleep(LOOK_AGAIN)
    return False
