"""A node's processes. `create_worker` is their composition root: the only place where clients are built."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from celery import Celery
from celery.worker import state

from app.blobs import BlobStore
from app.broker import make_celery
from app.clock import Clock
from app.config import Config
from app.database import connect
from app.keys import Keys
from app.node_store import NodeStore
from app.nodes import Nodes
from app.service_id import service_id
from app.stores import make_stores
from app.sweep import Sweep
from app.tally import Tally
from rock.errors import RockError
from rock.settings import with_prefix
from workers.agent import Coroner, NodeAgent
from workers.deployments.abstract import AbstractDeployment, ContainerEvent
from workers.deployments.manager import DeploymentManager
from workers.fullness import LOOK_EVERY
from workers.heartbeat import Heartbeat, wait_for_id
from workers.keeper import BOOT_ARGV
from workers.lifecycle import NodeLifecycle
from workers.pool import LOOK_EVERY as POOL_EVERY
from workers.relay import Relay
from workers.tasks import register

log = logging.getLogger(__name__)

IMAGES_EVERY = 60.0
"""Seconds between two looks at which images the engine has, and whether its disk is full."""


@dataclass
class Worker:
    """One process of a node (or, in tests, all of it): its Celery application and what runs beside the tasks."""

    celery: Celery
    config: Config
    deployment: AbstractDeployment
    description: str
    nodes: NodeStore
    tally: Tally
    clock: Clock
    agent: NodeAgent | None = None
    lifecycle: NodeLifecycle | None = None
    relay: Relay | None = None
    heartbeat: Heartbeat | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Take the node id, take up what an earlier process left, begin the periodic work. Raises AlreadyExists."""
        log.info("node %s runs sandboxes with %s", self.config.node.id, self.description)
        if self.relay and self.agent:
            self.relay.start()
            if self.heartbeat:
                self.heartbeat.start()
            self._patiently(lambda now: self.agent and self.agent.recover(now, all=True))
            self._spawn("watch", lambda: self.deployment.watch(self._container_event, self._stop))
            self._every("recover", self.agent.recover)
        if self.lifecycle:
            lifecycle = self.lifecycle
            if not wait_for_id(self.config, self.nodes, self._stopping):
                return
            self._patiently(lifecycle.reaper.adopt)
            self._patiently(lifecycle.gate.announce)
            self._patiently(lifecycle.commits.settle)
            if self.config.warmup.images:
                lifecycle.images.warm_up(self.config.warmup.images)
            self._spawn("recover", lambda: self._patiently(lambda now: lifecycle.recover(now, all=True)))
            self._every("reaper", lifecycle.reaper.run)
            self._every("recover", lifecycle.recover)
            if seconds := self.config.runtime.disk_check_seconds:
                self._every("disk", lifecycle.disk_guard.run, seconds)
            self._every("pool", lifecycle.pool.look, POOL_EVERY if self.config.pool.sandboxes else None)
            self._every("gate", lifecycle.gate.announce)
            self._every("fullness", lifecycle.watch_disk, LOOK_EVERY)
            self._every("forks", lifecycle.forks.clean)
            self._patiently(lifecycle.tell_images)
            self._every("images", lifecycle.tend_images, IMAGES_EVERY)

    def _stopping(self) -> bool:
        """Return whether this process was told to end; Celery's signal handler only notes it."""
        return self._stop.is_set() or state.should_stop not in (None, False)

    def close(self) -> None:
        """End the threads; sandboxes and their commands go on."""
        self._stop.set()
        if self.heartbeat:
            self.heartbeat.close()
        if self.relay:
            self.relay.close()
        if self.lifecycle:
            self.lifecycle.gate.close()
        for thread in self._threads:
            thread.join(timeout=2)
        self.tally.close()
        if self.lifecycle:
            self._patiently(self.lifecycle.pool.close)
            self._patiently(self.lifecycle.forks.close)
        self.deployment.close()

    def _container_event(self, event: ContainerEvent) -> None:
        if event.event in ("die", "destroy") and self.relay:
            self.relay.examine(event.sandbox_id)

    def _every(self, name: str, work: Callable[[float], object], seconds: float | None = None) -> None:
        def loop() -> None:
            while not self._stop.wait(seconds or self.config.node.sweep_seconds):
                self._patiently(work)

        self._spawn(name, loop)

    def _patiently(self, work: Callable[[float], object]) -> None:
        """Do one round of periodic work; a fault is logged, and the next round tries again."""
        try:
            work(self.clock())
        except RockError as error:
            log.warning("periodic work failed: %s", error)
        except Exception:
            log.exception("periodic work failed")

    def _spawn(self, name: str, target: Callable[[], object]) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()


def create_worker(config: Config, *, session: bool, lifecycle: bool, celery: Celery | None = None) -> Worker:
    """Return a node's process, nothing of it started yet.

    Params:
        session, lifecycle: which sides of the node it is.
        celery: register the tasks there (tests); None makes the application.
    Raises:
        Unavailable: the configured engine, or Redis, does not answer.
    """
    keys = Keys(config.redis.prefix)
    redis = connect(config.redis.url)
    celery = celery or make_celery(config)
    tally = Tally(redis, keys, enable=config.metrics.enable)
    nodes, stores = Nodes(celery), make_stores(config, redis, celery, tally)
    clock, data_dir = stores.results.clock, Path(config.server.data_dir).expanduser()
    choice = DeploymentManager(
        cluster=service_id(redis, keys, config.redis.url, data_dir), node=config.node.id, boot_argv=BOOT_ARGV, data_dir=data_dir, environ=with_prefix(""),
        docker_host=config.runtime.docker_host, certificates=_folder(config.runtime.docker_cert_path),
        image_cache_dir=_folder(config.runtime.image_cache_dir),
    ).select(config.runtime.type)  # fmt: skip
    worker = Worker(celery, config, choice.deployment, choice.reason, stores.nodes, tally, clock)
    if session:
        coroner = Coroner(choice.deployment, stores.sandboxes, clock)
        worker.relay = Relay(choice.deployment, stores.results, coroner, config.runtime.output_limit)
        worker.agent = NodeAgent(
            config.node.id, stores.results, stores.sandboxes, nodes, choice.deployment, worker.relay
        )
        worker.heartbeat = Heartbeat(config, stores.nodes, clock, choice.deployment.name, choice.reason)
    if lifecycle:
        blobs = BlobStore(connect(config.redis.url, decode_responses=False), keys)
        worker.lifecycle = NodeLifecycle(config, stores, blobs, nodes, choice.deployment)
    register(celery, worker.agent, worker.lifecycle, Sweep(stores))
    return worker


def _folder(path: str) -> Path | None:
    """Return a configured folder, None for none."""
    return Path(path).expanduser() if path else None
