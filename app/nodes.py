"""How the API reaches a node: a task by name on the node's queue. The border to the broker's errors."""

import logging

from celery import Celery
from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from app.broker import NodeTask
from app.database import DatabaseAway

log = logging.getLogger(__name__)


class Nodes:
    """Sends tasks to nodes; the answers come back as envelopes of the call, never through Celery."""

    def __init__(self, celery: Celery) -> None:
        self._celery = celery

    def send(self, task: NodeTask, call_id: str, node: str) -> None:
        """Ask `node` to do `task` for the call. The message holds the id only, so no content and no secret.

        Raises:
            DatabaseAway: the queue cannot be reached; the node may or may not have got the message.
        """
        # A signature, not send_task: eager mode then runs the registered task in place.
        signature = self._celery.signature(task.value, args=(call_id,))
        try:
            # The texts are given, since making them costs much here; and nothing is declared, since a queue that is
            # written to by name is a plain list in Redis.
            signature.apply_async(queue=task.queue(node), argsrepr=call_id, kwargsrepr="", declare=[])
        except (KombuError, RedisError, OSError) as error:
            log.warning("%s could not be queued: %s", task.value, error, extra={"call_id": call_id, "node": node})
            raise DatabaseAway from error
