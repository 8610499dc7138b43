"""Files on their way between an API process and a node, through a bounded list in Redis.

At most WINDOW chunks lie there: the receiver gives one credit back for each chunk it takes, and the sender waits for
credits. Each chunk starts with its offset, so that a receiver that was replaced half-way notices the hole.
"""

import struct
import time

from app.database import SOCKET_TIMEOUT, Client, redis_faults
from app.keys import Keys
from rock.errors import Unavailable

CHUNK = 512 * 1024
# Chunks in Redis per file: 4 MB, enough to keep both sides busy.
WINDOW = 8
# Seconds after which a file that nobody moves is dropped.
TTL = 600
# Seconds of one blocking read: well under the time after which a silent connection counts as dead.
TURN = SOCKET_TIMEOUT / 2

_OFFSET = struct.Struct(">Q")


class BlobStore:
    """Sends and receives files. One per process; a file is sent by one and received by one."""

    def __init__(self, redis: Client, keys: Keys) -> None:
        """`redis`: a client with raw replies (decode_responses=False), since chunks are bytes."""
        self._redis, self._keys = redis, keys

    def sender(self, call_id: str) -> "BlobSender":
        """Return the sending end of the file of `call_id`."""
        return BlobSender(self._redis, self._keys.blob(call_id))

    def receiver(self, call_id: str) -> "BlobReceiver":
        """Return the receiving end of the file of `call_id`."""
        return BlobReceiver(self._redis, self._keys.blob(call_id))

    def drop(self, call_id: str) -> None:
        """Remove what is left of a file, whoever gave up."""
        key = self._keys.blob(call_id)
        with redis_faults():
            self._redis.delete(key, _credits(key))


class BlobSender:
    """The sending end."""

    def __init__(self, redis: Client, key: str) -> None:
        self._redis, self._key = redis, key
        self._offset, self._credits = 0, WINDOW

    def push(self, chunk: bytes, timeout: float) -> bool:
        """Send a chunk (not empty); False when the receiver took nothing for `timeout` seconds: try again, or give up."""
        return self._put(chunk, timeout)

    def finish(self, timeout: float) -> bool:
        """Say that the file is complete; as `push`."""
        return self._put(b"", timeout)

    def _put(self, chunk: bytes, timeout: float) -> bool:
        """Append one chunk, once there is room for it."""
        with redis_faults():
            if self._credits == 0:
                if _pop(self._redis, _credits(self._key), timeout) is None:
                    return False
                self._credits = 1
            pipe = self._redis.pipeline(transaction=True)
            pipe.rpush(self._key, _OFFSET.pack(self._offset) + chunk)
            pipe.expire(self._key, TTL)
            pipe.execute()
        self._credits -= 1
        self._offset += len(chunk)
        return True


class BlobReceiver:
    """The receiving end."""

    def __init__(self, redis: Client, key: str) -> None:
        self._redis, self._key = redis, key
        self._offset = 0

    def pull(self, timeout: float) -> bytes:
        """Return the next chunk, b"" after the last one.

        Params:
            timeout: seconds to wait for it.
        Raises:
            Unavailable: nothing came in time, or an earlier receiver had taken a part: the file must be sent again.
        """
        chunk = self.poll(timeout)
        if chunk is None:
            raise Unavailable(f"the file stopped coming: nothing for {timeout:g} s; send it again")
        return chunk

    def poll(self, timeout: float) -> bytes | None:
        """Return the next chunk, b"" after the last one, None when nothing came within `timeout` seconds; otherwise as `pull`."""
        with redis_faults():
            item = _pop(self._redis, self._key, timeout)
            if item is None:
                return None
            pipe = self._redis.pipeline(transaction=True)
            pipe.rpush(_credits(self._key), b"1")
            pipe.expire(_credits(self._key), TTL)
            pipe.execute()
        (offset,), chunk = _OFFSET.unpack_from(item), item[_OFFSET.size :]
        if offset != self._offset:
            raise Unavailable("a part of the file was lost with the process that received it; send it again")
        self._offset += len(chunk)
        if not chunk:
            with redis_faults():
                self._redis.delete(_credits(self._key))
        return chunk


def _pop(redis: Client, key: str, timeout: float) -> bytes | None:
    """Return the first item of a list, waiting up to `timeout` seconds for one; None when there was none."""
    end = time.monotonic() + timeout
    while True:
        # In turns, since a connection that is silent for longer counts as dead.
        item = redis.blpop([key], max(0.01, min(TURN, end - time.monotonic())))
        if item is not None:
            found: bytes = item[1]
            return found
        if time.monotonic() >= end:
            return None


def _credits(key: str) -> str:
    """Return the list in which the receiver of `key` gives room back."""
    return f"{key}:credits"
