"""How every command of the client reports the service's errors."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from rock.errors import RockError


class _MayHelpToRetry(click.ClickException):
    """A failure that may be gone the next time."""

    exit_code = 2


@contextmanager
def faults() -> Iterator[None]:
    """Turn the service's errors into a message and an exit code: 1, or 2 when sending it again may help."""
    try:
        yield
    except RockError as error:
        raise (_MayHelpToRetry if error.retryable else click.ClickException)(str(error)) from error
