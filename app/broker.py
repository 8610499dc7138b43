"""The Celery application: task names, queues, and the settings that every process must share."""

from enum import StrEnum
from typing import Any

from celery import Celery
from celery.app.amqp import AMQP
from kombu import connection
from kombu.entity import Exchange, Queue
from kombu.transport import redis

from app.config import Config
from app.keys import Keys


class NodeTask(StrEnum):
    """What the API asks of a node, by name; each task takes `(call_id,)`. tests check that workers register all."""

    CALL = "node.call"
    CANCEL = "node.cancel"
    OPENED = "node.opened"
    START = "node.start"
    STOP = "node.stop"
    DELETE = "node.delete"
    COMMIT = "node.commit"
    FORK = "node.fork"
    WARM = "node.warm"
    REMOVE_IMAGE = "node.remove_image"
    TRANSFER = "node.transfer"
    STATISTICS = "node.statistics"

    @property
    def is_quick(self) -> bool:
        """True for what the session worker does; False for slow engine work, which has a queue of its own."""
        return self in (NodeTask.CALL, NodeTask.CANCEL, NodeTask.OPENED)

    def queue(self, node_id: str) -> str:
        """Return the queue of `node_id` that serves this task."""
        return Keys.node_queue(node_id) if self.is_quick else Keys.lifecycle_queue(node_id)


SWEEP_TASK = "control.sweep"
# Seconds between sweeps: how long the calls of a dead node wait when no API process is watching them.
SWEEP_EVERY = 5.0
# Seconds for which one may wait for a worker. Celery compares the clocks of two machines for it, which may differ by hours.
SWEEP_EXPIRES = 6 * 3600.0

# Early acknowledgement leaves only prefetched, not yet started messages unacknowledged; Redis hands those out again
# after so many seconds. Nothing waits for that (a worker that comes back submits all that is in flight on its node),
# so it is long, and a redelivery finds a finished call and does nothing.
VISIBILITY_TIMEOUT = 3600

# Messages a session worker fetches per thread: its tasks only submit (under 1 ms), so a batch keeps the threads fed.
# The lifecycle worker is started with 1: a stop must not sit in a process that is busy with a pull.
PREFETCH = 8


class QoS(redis.QoS):
    """kombu's bookkeeping of unacknowledged messages, which would also acknowledge those of a `no_ack` queue: a round trip per step."""

    def ack(self, delivery_tag: Any) -> None:
        """Acknowledge a message that is kept for it; the others are gone from Redis already."""
        if delivery_tag in self._delivered:
            super().ack(delivery_tag)


class Channel(redis.Channel):
    """kombu's channel, but with one client for all messages: making one for each takes a fifth of the time to send."""

    QoS = QoS
    # Plain JSON inside JSON: base64 would hide a call's id from app.letters, and costs more than it is worth.
    body_encoding = None  # type: ignore[assignment]  # kombu itself reads None as plain
    _sender: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:
        """Return the client of this channel; the event loop's own is made as ever."""
        if asynchronous:
            return super()._create_client(asynchronous=True)
        if self._sender is None:
            self._sender = super()._create_client()
        return self._sender


class Transport(redis.Transport):
    """kombu's Redis transport with that channel."""

    Channel = Channel


class Connection(connection.Connection):
    """kombu's connection, but back within seconds of Redis: its own pauses between attempts grow to half a minute."""

    def ensure_connection(self, *args: Any, **options: Any) -> Any:
        """Connect, trying again every half to two seconds; otherwise as kombu's."""
        return super().ensure_connection(
            *args, **{"interval_start": 0.5, "interval_step": 0.5, "interval_max": 2, **options}
        )


class Amqp(AMQP):
    """Celery's broker side with that connection."""

    Connection = Connection


def make_celery(config: Config, eager: bool = False) -> Celery:
    """Return the Celery application of this service, with no task registered.

    Params:
        config: its `redis` section is read.
        eager: run registered tasks inside the sender (tests only).
    """
    app = Celery("rock", broker=config.redis.url, amqp=Amqp, set_as_current=False)
    app.conf.update(_settings(config), task_always_eager=eager, task_eager_propagates=eager)
    return app


def _queues(config: Config) -> list[Queue]:
    """Return the queues that this machine may serve; those of other nodes are made when something is sent to them."""
    # Unacknowledged: bookkeeping of messages in Redis would cost two more round trips per step, and a worker that comes
    # back finds its calls in the node's in-flight set anyway. Slow work keeps it, so that a prefetched start survives.
    quick = {Keys.node_queue(config.node.id): True} if config.node.id else {}
    slow = {Keys.lifecycle_queue(config.node.id): False} if config.node.id else {}
    return [
        Queue(name, Exchange(name), routing_key=name, no_ack=no_ack)
        for name, no_ack in {Keys.control_queue(): False, **quick, **slow}.items()
    ]


def _settings(config: Config) -> dict[str, Any]:
    """Return the settings shared by senders, workers and beat; every one on purpose."""
    keys = Keys(config.redis.prefix)
    return {
        # Data only: whoever can write to Redis must not be able to run code here.
        "accept_content": ["json"],
        "task_serializer": "json",
        "result_serializer": "json",
        # Answers are envelopes under the call id, not Celery results.
        "task_ignore_result": True,
        "result_backend": None,
        # A call is idempotent, and recovery goes by the node's in-flight set, so late acknowledgement would add nothing.
        "task_acks_late": False,
        "worker_prefetch_multiplier": PREFETCH,
        "broker_transport": f"{__name__}:Transport",
        "broker_transport_options": {
            "global_keyprefix": keys.broker_prefix(),
            "visibility_timeout": VISIBILITY_TIMEOUT,
            # A cut connection is noticed, and a sender never hangs on a dead server.
            "socket_keepalive": True,
            "socket_connect_timeout": 3,
            "socket_timeout": 10,
            "health_check_interval": 25,
        },
        # Senders are greenlets: each needs a connection of its own while it publishes, for a fraction of a millisecond.
        "broker_pool_limit": 32,
        "broker_connection_retry_on_startup": True,
        # None: a worker must outlive a Redis that is away for long.
        "broker_connection_max_retries": None,
        # The API answers 503 at once instead of retrying in the caller's time.
        "task_publish_retry": False,
        "task_create_missing_queues": True,
        "task_default_queue": keys.control_queue(),
        "task_queues": _queues(config),
        # Remote control and events cost fan-out messages and keys; health comes from heartbeats.
        "worker_enable_remote_control": False,
        "worker_send_task_events": False,
        "task_send_sent_event": False,
        "worker_hijack_root_logger": False,
        "timezone": "UTC",
        "enable_utc": True,
        "beat_schedule": {
            "sweep": {
                "task": SWEEP_TASK,
                "schedule": SWEEP_EVERY,
                "options": {"queue": keys.control_queue(), "expires": SWEEP_EXPIRES},
            }
        },
    }
