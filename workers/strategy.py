"""How a worker takes the messages of quick tasks: one call of their function, without Celery's request, pool and tracer.

Celery lets a task name its strategy (`Task.Strategy`). Its own serves retries, results, events, time limits, revocation and pools; a task that only hands a
call to the relay needs none of it, and a third of the session worker's time per step went there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workers.link import logged

DIRECT = f"{__name__}:direct"
"""The name by which a task asks for it."""


def direct(task: Any, app: Any, consumer: Any, **kwargs: Any) -> Callable[..., None]:
    """Return the handler of a task's messages, called in the thread that receives them.

    Only for queues that are not acknowledged, and for functions that return at once and answer their callers themselves.
    """
    run = task.run

    def handle(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> None:
        args, _, _ = message.payload
        # After a fault the node's sweep takes up again what is in flight and in nobody's hand.
        logged(run, *args)

    return handle
