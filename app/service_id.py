"""Which service this is, among all whose sandboxes are on the same engine.

A prefix of keys or a node id does not tell: two services on one machine, each with a Redis of its own, have the same ones by default, and each
would take the other's sandboxes for its own that nobody wants any more.
"""

import hashlib
import logging
import time
import uuid
from pathlib import Path
from urllib.parse import urlsplit

from app.database import Client, DatabaseAway, redis_faults
from app.keys import Keys

log = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds to wait for a Redis that is starting."""
_LOOK_AGAIN = 0.2


def service_id(redis: Client, keys: Keys, url: str, folder: Path) -> str:
    """Return the id of the service whose state is in this Redis under this prefix; the first process that asks makes it.

    Params:
        url: of that Redis.
        folder: keeps what the id was, so that a Redis which has lost everything is the same service again, and its nodes
            find what they had started.
    Raises:
        DatabaseAway: it did not answer for `PATIENCE` seconds.
    """
    parts = urlsplit(url)
    where = f"{parts.hostname}:{parts.port}{parts.path}\0{keys.prefix}"
    path = folder / f"service-{hashlib.sha256(where.encode()).hexdigest()[:12]}"
    known = path.read_text(encoding="ascii", errors="ignore").strip() if path.exists() else ""
    found = _agreed(redis, keys, known or uuid.uuid4().hex)
    if found != known:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(found, encoding="ascii")
    return found


def _agreed(redis: Client, keys: Keys, proposed: str) -> str:
    """Return the id in Redis, `proposed` if there was none. Raises DatabaseAway."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with redis_faults():
                redis.set(keys.service(), proposed, nx=True)
                return str(redis.get(keys.service()))
        except DatabaseAway:
            if time.monotonic() > deadline:
                raise
            log.info("Redis does not answer; asking again which service this is")
            time.sleep(_LOOK_AGAIN)
