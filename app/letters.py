"""Messages for a node's queue, ready to be pushed by the script that claims a call.

Sending through Celery is half of what a request costs the API, most of it for building the same message again and a round trip of its own. So Celery builds
one message per task, for marks in place of node and call, and the claim fills them in and pushes it: a claimed call is never left unsent.
The format stays Celery's own: whatever it puts into a message is in the copy.
"""

import threading
from dataclasses import dataclass
from typing import Any

from celery import Celery
from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from app.broker import NodeTask
from app.keys import Keys
from rock.errors import Unavailable

# Stand for the node and the call in a message; no node can have that name, and no call that id.
NODE_MARK = "_node_"
CALL_MARK = "0" * 32


@dataclass(frozen=True)
class Letter:
    """A message: the list of its queue and its text, with NODE_MARK where the claim puts the node that it finds."""

    key: str
    text: str


class Letters:
    """Copies of Celery's messages, one per task, made when first needed."""

    def __init__(self, celery: Celery, keys: Keys) -> None:
        self._celery, self._keys = celery, keys
        self._made: dict[NodeTask, Letter] = {}
        self._lock = threading.Lock()

    def write(self, task: NodeTask, call_id: str) -> Letter | None:
        """Return the message that has a node do `task` for the call; None in eager mode, where it runs in the sender.

        Raises:
            Unavailable: the queue cannot be reached.
        """
        if self._celery.conf.task_always_eager:
            return None
        with self._lock:
            letter = self._made.get(task)
            if letter is None:
                letter = self._made[task] = self._copy(task)
        return Letter(letter.key, letter.text.replace(CALL_MARK, call_id))

    def _copy(self, task: NodeTask) -> Letter:
        """Have Celery send one message to a client that keeps it."""
        caught = _Catcher()
        try:
            with self._celery.connection_for_write() as connection:
                channel: Any = connection.channel()
                channel._sender = caught
                producer = self._celery.amqp.Producer(channel, auto_declare=False)
                self._celery.signature(task.value, args=(CALL_MARK,)).apply_async(
                    queue=task.queue(NODE_MARK), producer=producer, task_id=CALL_MARK, argsrepr=CALL_MARK, kwargsrepr="",
                    declare=[],
                )  # fmt: skip
        except (KombuError, RedisError, OSError) as error:
            raise Unavailable("the queue (Redis) does not answer; try again shortly") from error
        return Letter(self._keys.broker_prefix() + caught.queue, caught.text)


class _Catcher:
    """What kombu pushes to in place of Redis."""

    queue = ""
    text = ""

    def __enter__(self) -> "_Catcher":
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def lpush(self, queue: str, text: str) -> None:
        """Keep the one message."""
        self.queue, self.text = queue, text
