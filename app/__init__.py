"""The control plane: the HTTP API, and what nodes share with it. Importing this loads nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery import Celery
    from flask import Flask

    from app.config import Config


def create_app(config: Config, celery: Celery | None = None, **clients: Any) -> Flask:
    """Return the API of one process: the only place where its parts are built. No connection is made yet.

    Params:
        config: the whole configuration.
        celery: the sending end, instead of one made from `config` (tests register tasks in it).
        clients: `redis` and `raw_redis` clients (decoded and raw replies), instead of ones made from `config`.
    """
    # Loaded here: nodes and the command line import app.keys or app.config, and need no Flask.
    from flask import Blueprint, Flask

    from app import faults, plain
    from app.api import ENDPOINTS, metrics, proxy, reply, terminal
    from app.openapi import describe
    from app.wiring import build

    services = build(config, celery, openapi=describe(ENDPOINTS), **clients)
    app = Flask("app", static_folder=None)
    # Nothing is rendered or signed here; multipart texts are ids and paths, so they have a small limit of their own.
    app.config.update(MAX_FORM_MEMORY_SIZE=1024 * 1024, MAX_FORM_PARTS=100)
    app.extensions["rock"] = services
    metrics.register(app, services.metrics.tally)
    without_envelope = Blueprint("plain", __name__)
    for endpoint in ENDPOINTS:
        endpoint.register(without_envelope if endpoint.plain else app, services)
    faults.register(without_envelope, plain.failure)
    terminal.register(app, services)
    proxy.register(app, services)
    faults.register(app, reply.failure)
    app.register_blueprint(without_envelope)
    return app
