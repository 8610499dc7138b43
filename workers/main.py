"""Celery entry of both worker processes of a node: `celery -A workers.main worker …`; ROCK_WORKER_ROLE says which one."""

from __future__ import annotations

import logging
import sys
from typing import Any

from celery.signals import setup_logging, worker_ready, worker_shutdown

from app import log
from app.config import load
from rock.errors import RockError
from rock.settings import read
from workers import Worker, create_worker

_ROLE = str(read("ROCK_WORKER_ROLE"))

# The task's thread hands a command to the relay's and goes on for a while; with the default of 5 ms the relay would wait for that.
sys.setswitchinterval(0.0001)


def _create() -> Worker:
    try:
        return create_worker(load(), session=_ROLE == "session", lifecycle=_ROLE == "lifecycle")
    except RockError as error:
        sys.exit(f"rock worker: {error}")


_worker = _create()
celery = _worker.celery


@setup_logging.connect(weak=False)
def _set_up_logging(**kwargs: Any) -> None:
    log.set_up(_worker.config, _ROLE)


@worker_ready.connect(weak=False)
def _start(**kwargs: Any) -> None:
    try:
        _worker.start()
    except RockError as error:
        logging.getLogger(__name__).error("rock worker: %s", error)
        _worker.close()
        sys.exit(1)


@worker_shutdown.connect(weak=False)
def _close(**kwargs: Any) -> None:
    _worker.close()


__all__ = ["celery"]
