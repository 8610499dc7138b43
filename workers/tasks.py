"""The Celery tasks of a node: one line each, from a name that the API knows to a verb of this node."""

from __future__ import annotations

from collections.abc import Callable

from celery import Celery

from app.broker import SWEEP_TASK, NodeTask
from app.sweep import Sweep
from workers import strategy
from workers.agent import NodeAgent
from workers.lifecycle import NodeLifecycle


def register(celery: Celery, agent: NodeAgent | None, lifecycle: NodeLifecycle | None, sweep: Sweep) -> None:
    """Register the tasks of one or both sides of a node (both: in tests, where one process is the node)."""
    quick: dict[NodeTask, Callable[[str], None]] = {}
    slow: dict[NodeTask, Callable[[str], None]] = {}
    if agent is not None:
        quick = {NodeTask.CALL: agent.call, NodeTask.CANCEL: agent.cancel, NodeTask.OPENED: agent.opened}
    if lifecycle is not None:
        slow = {
            NodeTask.START: lifecycle.start,
            NodeTask.STOP: lifecycle.stop,
            NodeTask.DELETE: lifecycle.delete,
            NodeTask.COMMIT: lifecycle.commits.begin,
            NodeTask.FORK: lifecycle.forks.begin,
            NodeTask.WARM: lifecycle.images.warm,
            NodeTask.REMOVE_IMAGE: lifecycle.remove_image,
            NodeTask.TRANSFER: lifecycle.transfer,
            NodeTask.STATISTICS: lifecycle.statistics,
        }
    # Not shared: Celery would announce them to every application of the process, and tests make many.
    for task, verb in quick.items():
        celery.task(_taking_a_call(verb), name=task.value, shared=False, Strategy=strategy.DIRECT)
    for task, verb in slow.items():
        celery.task(_taking_a_call(verb), name=task.value, shared=False)

    def run_sweep() -> None:
        sweep.tick()

    celery.task(run_sweep, name=SWEEP_TASK, shared=False)


def _taking_a_call(verb: Callable[[str], None]) -> Callable[[str], None]:
    """Return a plain function around a bound method: Celery makes a class of what it registers."""

    def run(call_id: str) -> None:
        verb(call_id)

    return run
