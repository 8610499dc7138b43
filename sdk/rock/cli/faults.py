"""How every command of the client reports the service's errors: what is wrong, and what to type next."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

from rock import errors, settings
from rock.errors import RockError

HINTS: tuple[tuple[type[RockError], str], ...] = (
    (errors.Unauthorized, "say export ROCK_API_KEY=<your key>"),
    (errors.RouteNotFound, "look at ROCK_BASE_URL, which is {url}"),
    (errors.Unavailable, "`rock admin status` tells whether the service runs here, `rock admin start --detach` starts it; elsewhere: export ROCK_BASE_URL=http://<host>:8080 (now {url})"),
    (errors.NoCapacity, "`rock node ls` shows what is free; less --memory or --cpus may fit"),
    (errors.ImageNotFound, "look at the image's name and tag; `rock image warm IMAGE` tries again"),
    (errors.NotRunning, "`rock sandbox ls` lists the sandboxes and their states"),
    (errors.SandboxGone, "`rock sandbox start IMAGE` starts another"),
    (errors.NodeLost, "`rock node ls` shows which nodes answer"),
)  # fmt: skip
"""What to try next, by class; the first that fits."""


class Failure(click.ClickException):
    """An error of the service, for a person or, with --json, for a program.

    Params:
        error: what the service said. Exit code 2: sending it again may help; else 1.
        as_json: print an object instead of text.
    """

    def __init__(self, error: RockError, as_json: bool) -> None:
        super().__init__(str(error))
        self.error, self._as_json = error, as_json

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # click reads it from the instance
        """Return 2 when sending it again may help, else 1."""
        return 2 if self.error.retryable else 1

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it on stderr."""
        hint = _hint(self.error)
        if self._as_json:
            value = {"error": self.message, "hint": hint, **self.error.to_result()}
            click.echo(json.dumps(value, default=str), file=file, err=True)
            return
        super().show(file)
        if hint:
            click.echo(f"Try: {hint}", file=file, err=True)


def _hint(error: RockError) -> str | None:
    """Return what to try after an error, None where its own text says it."""
    if isinstance(error, errors.NotFound) and str(error).startswith("Sandbox "):
        return "`rock sandbox ls` lists the sandboxes"
    hub = settings.read("ROCK_ENVHUB_BASE_URL")
    if isinstance(error, errors.Unavailable) and str(error).startswith(hub):
        return f"`rock envhub start` runs EnvHub here; elsewhere: export ROCK_ENVHUB_BASE_URL=http://<host>:8081 (now {hub})"
    if str(error).startswith("base_url"):
        return "export ROCK_BASE_URL=http://<host>:8080"
    found = next((text for kind, text in HINTS if isinstance(error, kind)), None)
    return found.format(url=settings.read("ROCK_BASE_URL")) if found else None


@contextmanager
def faults() -> Iterator[None]:
    """Turn errors into a message and an exit code: 1, or 2 when sending it again may help."""
    context = click.get_current_context(silent=True)
    as_json = bool(context and context.params.get("as_json"))
    try:
        yield
    except RockError as error:
        raise Failure(error, as_json) from error
    except settings.SettingError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise  # whoever reads our output has gone; click ends quietly
        raise click.ClickException(str(error)) from error
