"""Ends sandboxes whose files have outgrown their disk limit, where the engine's storage cannot hold them to it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from app.config import Config
from app.database import DatabaseAway
from app.records import Event, SandboxRecord, State
from app.store import SandboxStore
from rock.actions.units import parse_disk
from rock.errors import RockError
from workers.deployments.abstract import AbstractDeployment
from workers.reaper import Reaper

log = logging.getLogger(__name__)

SHARE = 10.0
"""Of its time at most a tenth goes into measuring, which reads every folder that a sandbox has written to."""
LONGEST_PAUSE = 60.0


class DiskGuard:
    """Measures the sandboxes of a node, one after the other. What it does may be repeated; a failure ends nothing."""

    def __init__(
        self,
        config: Config,
        sandboxes: SandboxStore,
        deployment: AbstractDeployment,
        reaper: Reaper,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """
        Params:
            reaper: puts down what is to end.
            pause: rest for so many seconds.
        """
        self._node, self._sandboxes, self._deployment = config.node.id, sandboxes, deployment
        self._reaper, self._pause = reaper, pause

    def run(self, now: float) -> int:
        """Look at every running sandbox that has a limit; return how many were ended.

        Params:
            now: epoch seconds at the beginning; a round may take long.
        """
        ended, began = 0, time.monotonic()
        for record in self._sandboxes.by_node(self._node):
            limit = parse_disk(record.spec.get("disk"))
            if record.state is not State.RUNNING or limit is None:
                continue
            start = time.monotonic()
            ended += self._look_at(record, limit, now + start - began)
            self._pause(min((time.monotonic() - start) * (SHARE - 1), LONGEST_PAUSE))
        return ended

    def _look_at(self, record: SandboxRecord, limit: int, now: float) -> bool:
        try:
            used = self._deployment.disk_use(record.sandbox_id)
            return used is not None and used > limit and self._end(record, used, limit, now)
        except DatabaseAway:
            raise  # it would be the same for each of them
        except (RockError, OSError) as error:
            about = {"sandbox_id": record.sandbox_id}
            log.info("the files of a sandbox could not be measured: %s", error, extra=about)
            return False

    def _end(self, record: SandboxRecord, used: int, limit: int, now: float) -> bool:
        reason = f"its files take {used >> 20} MB, more than its disk limit of {limit >> 20} MB"
        moved = self._sandboxes.transition(
            record.sandbox_id, [State.RUNNING], State.STOPPED, Event.DISK_LIMIT, now,
            only_start=record.start_call, reason=reason,
        )  # fmt: skip
        if moved:
            log.warning("sandbox ended: %s", reason, extra={"sandbox_id": record.sandbox_id})
            self._reaper.put_down(record.sandbox_id, record.start_call, now)
        return moved
