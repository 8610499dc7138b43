"""The way into Redis: one client per process, Lua scripts from files, faults translated once."""

from collections.abc import Callable, Iterator, Mapping
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


class DatabaseAway(Unavailable):
    """Redis did not answer. To callers a plain `Unavailable`; a node puts off what it was doing, and fails nobody for it."""

    def __init__(self) -> None:
        super().__init__("the database (Redis) does not answer; try again shortly")


@contextmanager
def redis_faults() -> Iterator[None]:
    """Turn a Redis fault into `DatabaseAway` (503): the border between redis-py's errors and ours."""
    try:
        yield
    except redis.exceptions.NoScriptError:
        raise
    except redis.exceptions.RedisError as error:
        raise DatabaseAway from error


@cache
def source(name: str) -> str:
    """Return the text of lua/<name>.lua. Raises OSError when the package is incomplete."""
    return (_LUA / f"{name}.lua").read_text(encoding="utf-8")


def flat(fields: Mapping[str, Any]) -> list[Any]:
    """Return a mapping as field, value, field, value, …, which is how Redis takes it."""
    return [part for pair in fields.items() for part in pair]


class Scripts:
    """The Lua scripts of one client, and a few connections kept for them.

    Straight to a connection: redis-py's wrappers around one command, and its look at a connection before lending it, cost three times the
    command itself. They step in when that fails: connect again, and load the script into a Redis that does not know it.
    """

    # Connections kept; a caller beyond them takes one of the pool and gives it back.
    KEPT = 8

    def __init__(self, client: Client) -> None:
        self._client, self._pool = client, client.connection_pool
        self._idle: list[Any] = []

    def load(self, *parts: str) -> Callable[[list[str], list[Any]], Any]:
        """Return lua/<part>.lua, of several one after the other, as a callable `(keys, args)` that gives its reply or raises redis.RedisError.

        It may run twice when a connection breaks, so each script is written to bear that. Raises OSError when the package is incomplete.
        """
        careful = self._client.register_script("\n".join(source(part) for part in parts))

        def run(keys: list[str], args: list[Any]) -> Any:
            try:
                return self._ask("EVALSHA", careful.sha, len(keys), *keys, *args)
            except (redis.ConnectionError, redis.TimeoutError, redis.exceptions.NoScriptError):
                return careful(keys, args)

        return run

    def _ask(self, *command: Any) -> Any:
        """Send one command and return its reply; a connection that fails is not kept."""
        # Greenlets and threads alike: taking from and adding to a list is atomic.
        connection = self._idle.pop() if self._idle else self._pool.get_connection()
        try:
            connection.send_command(*command)
            return connection.read_response()
        except redis.ResponseError:
            raise  # Redis has answered
        except BaseException:
            connection.disconnect()  # its answer may still come; it connects again when it is used
            raise
        finally:
            if len(self._idle) < self.KEPT:
                self._idle.append(connection)
            else:
                self._pool.release(connection)
