"""The registered environments, in a SQLite file that several processes may use at once and that survives their kill."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rock.actions import EnvEntry, RegisterEnvRequest
from rock.errors import Forbidden, NotFound, Unavailable

BUSY_SECONDS = 10.0
"""How long a writer waits for another one."""

_TABLE = """
CREATE TABLE IF NOT EXISTS environments (
    env_name TEXT PRIMARY KEY, image TEXT NOT NULL, owner TEXT NOT NULL, description TEXT NOT NULL,
    tags TEXT NOT NULL, extra_spec TEXT NOT NULL, create_at TEXT NOT NULL, update_at TEXT NOT NULL,
    registrant TEXT NOT NULL
)
"""
_SHOWN = "env_name, image, owner, description, tags, extra_spec, create_at, update_at"
_MAY_CHANGE = "(:admin OR environments.registrant = :registrant)"
_REGISTER = f"""
INSERT INTO environments VALUES
    (:env_name, :image, :owner, :description, :tags, :extra_spec, :now, :now, :registrant)
ON CONFLICT (env_name) DO UPDATE SET
    image = excluded.image, owner = excluded.owner, description = excluded.description, tags = excluded.tags,
    extra_spec = excluded.extra_spec, update_at = excluded.update_at
    WHERE {_MAY_CHANGE}
RETURNING {_SHOWN}
"""
_DELETE = f"DELETE FROM environments WHERE env_name = :env_name AND {_MAY_CHANGE} RETURNING env_name"


class Entries:
    """The table of environments.

    Whoever's API key registered an entry, and admins, may change it; everybody may read all. `owner` is free text.
    """

    def __init__(self, path: str) -> None:
        """Open the file, and make it if need be. Raises Unavailable naming it."""
        self._path = path
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise Unavailable(f"the folder of EnvHub's database {path} cannot be made: {error.strerror}") from error
        with self._connected() as connection:
            # Readers and one writer at a time do not wait for each other, and a kill in the middle loses nothing.
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(_TABLE)

    def register(self, request: RegisterEnvRequest, registrant: str, admin: bool) -> EnvEntry:
        """Write an entry, or replace the one of that name, and return it.

        Params:
            registrant: owner of the API key.
            admin: may replace everyone's.
        Raises:
            Forbidden: another key's entry. Unavailable: the file cannot be written.
        """
        values = {
            "env_name": request.env_name, "image": request.image, "owner": request.owner,
            "description": request.description, "tags": json.dumps(request.tags),
            "extra_spec": json.dumps(request.extra_spec), "now": datetime.now(UTC).isoformat(),
            "registrant": registrant, "admin": admin,
        }  # fmt: skip
        with self._connected() as connection:
            rows = connection.execute(_REGISTER, values).fetchall()
        if not rows:
            raise _not_yours(request.env_name)
        return _entry(rows[0])

    def get(self, env_name: str) -> EnvEntry:
        """Return an entry. Raises NotFound, Unavailable."""
        with self._connected() as connection:
            row = connection.execute(f"SELECT {_SHOWN} FROM environments WHERE env_name = ?", (env_name,)).fetchone()
        if row is None:
            raise NotFound(f"environment {env_name!r} is not registered")
        return _entry(row)

    def list(self, owner: str | None, tags: list[str] | None) -> list[EnvEntry]:
        """Return the entries by name: of that owner if one is given, with any of these tags if some are given."""
        with self._connected() as connection:
            rows = connection.execute(f"SELECT {_SHOWN} FROM environments ORDER BY env_name").fetchall()
        found = [_entry(row) for row in rows]
        return [
            entry for entry in found
            if (not owner or entry.owner == owner) and (not tags or set(tags) & set(entry.tags))
        ]  # fmt: skip

    def delete(self, env_name: str, registrant: str, admin: bool) -> None:
        """Remove an entry; parameters as for `register`. Raises NotFound, Forbidden, Unavailable."""
        values = {"env_name": env_name, "registrant": registrant, "admin": admin}
        with self._connected() as connection:
            gone = connection.execute(_DELETE, values).fetchall()
        if not gone:
            self.get(env_name)
            raise _not_yours(env_name)

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """One transaction on a connection of its own: threads and processes share nothing but the file."""
        try:
            connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS)
            try:
                with connection:
                    yield connection
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise Unavailable(f"EnvHub's database {self._path} cannot be used: {error}") from error


def _not_yours(env_name: str) -> Forbidden:
    """Return the error for a change of another key's entry."""
    return Forbidden(f"environment {env_name!r} was registered with another API key")


def _entry(row: tuple[str, ...]) -> EnvEntry:
    """Return the entry in a row of `_SHOWN`."""
    env_name, image, owner, description, tags, extra_spec, create_at, update_at = row
    return EnvEntry(
        env_name=env_name, image=image, owner=owner, description=description, tags=json.loads(tags),
        extra_spec=json.loads(extra_spec), create_at=create_at, update_at=update_at,
    )  # fmt: skip
