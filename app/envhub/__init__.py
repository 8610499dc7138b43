"""EnvHub: a small server of its own that remembers which image an environment needs. Importing this loads nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flask import Flask

    from app.config import Config


def create_envhub(config: Config) -> Flask:
    """Return the EnvHub application: its entries opened, its routes registered.

    Raises:
        Unavailable: the database cannot be opened; names the file.
    """
    from flask import Flask

    from app import faults, plain
    from app.auth import Keyring
    from app.envhub.entries import Entries
    from app.envhub.routes import Routes

    app = Flask("envhub", static_folder=None)
    Routes(Entries(config.envhub.db_url), Keyring(config.auth.keys)).register(app)
    faults.register(app, plain.failure)
    return app
