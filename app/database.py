"""The way into Redis: one client per process, Lua scripts from files, faults translated once."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import redis

from rock.errors import Unavailable

# redis-py types every reply as bytes | str | …, whatever `decode_responses` says; what we take is annotated where taken.
Client = Any

# Seconds without a reply after which Redis counts as away.
SOCKET_TIMEOUT = 10.0
# Connections per client; far fewer are ever busy at once, and a server's own limit is shared by all processes.
POOL_SIZE = 64
# Seconds to wait for one of them.
POOL_WAIT = 10

_LUA = Path(__file__).with_name("lua")


def connect(url: str, **options: Any) -> Client:
    """Return a client for the Redis at `url`; connections are made on use, from one pool.

    Params:
        url: redis://, rediss:// or unix:// address.
        options: further redis-py connection options.
    """
    settings: dict[str, Any] = {
        "decode_responses": True,
        # A server that is there but silent must not hold a request for ever; blocking reads are cut into shorter ones.
        "socket_timeout": SOCKET_TIMEOUT,
        "socket_connect_timeout": 3,
        "socket_keepalive": True,
        # Callers beyond the pool wait their turn, for a fraction of a millisecond, instead of failing.
        "max_connections": POOL_SIZE,
        "timeout": POOL_WAIT,
        **options,
    }
    return redis.Redis.from_pool(redis.BlockingConnectionPool.from_url(url, **settings))


@contextmanager
def redis_faults() -> Iterator[None]:
    """Turn a Redis fault into `Unavailable` (503): the border between redis-py's errors and ours."""
    try:
        yield
    except redis.exceptions.NoScriptError:
        raise
    except redis.exceptions.RedisError as error:
        raise Unavailable("the database (Redis) does not answer; try again shortly") from error


@cache
def source(name: str) -> str:
    """Return the text of lua/<name>.lua. Raises OSError when the package is incomplete."""
    return (_LUA / f"{name}.lua").read_text(encoding="utf-8")


class Script:
    """A Lua script of ours, called on a connection of the client's pool."""

    def __init__(self, client: Client, name: str) -> None:
        """
        Params:
            name: the file lua/<name>.lua. Raises OSError when the package is incomplete.
        """
        self._pool = client.connection_pool
        self._careful = client.register_script(source(name))

    def __call__(self, keys: list[str], args: list[Any]) -> Any:
        """Run the script and return its reply. It may run twice when a connection breaks, so each is written to bear that.

        Straight to the connection: redis-py's wrappers around one command cost three times the command itself. They step in when that
        fails: connect again, and load the script into a Redis that does not know it.

        Raises:
            redis.RedisError: Redis is away, or the script failed.
        """
        connection = self._pool.get_connection()
        try:
            connection.send_command("EVALSHA", self._careful.sha, len(keys), *keys, *args)
            return connection.read_response()
        except (redis.ConnectionError, redis.TimeoutError, redis.exceptions.NoScriptError):
            pass
        finally:
            self._pool.release(connection)
        return self._careful(keys, args)
