"""EnvHub over HTTP: plain JSON, an error is an HTTP status with a text."""

from collections.abc import Callable
from typing import Any

from flask import Flask, Response, request

from app import plain
from app.auth import Identity, Keyring
from app.body import load_json
from app.envhub.entries import Entries
from rock.actions import EnvNameRequest, ListEnvsRequest, RegisterEnvRequest, dump

BODY_LIMIT = 1024 * 1024
"""Bytes of a request."""


class Routes:
    """The routes of one EnvHub."""

    def __init__(self, entries: Entries, keyring: Keyring) -> None:
        self._entries, self._keyring = entries, keyring

    def register(self, app: Flask) -> None:
        """Add the routes to the application."""
        app.config["MAX_CONTENT_LENGTH"] = BODY_LIMIT
        app.add_url_rule("/health", "health", lambda: plain.answer({"status": "ok"}))
        self._post(app, "register", RegisterEnvRequest, self._register)
        self._post(app, "get", EnvNameRequest, self._get)
        self._post(app, "list", ListEnvsRequest, self._list)
        self._post(app, "delete", EnvNameRequest, self._delete)

    def _post(self, app: Flask, name: str, kind: type, view: Callable[[Any, Identity], Any]) -> None:
        """Add POST /env/<name>: identify the caller, read the body, answer what the view returns."""

        def handle() -> Response:
            identity = self._keyring.identify(request.headers)
            return plain.answer(view(load_json(kind), identity))

        app.add_url_rule(f"/env/{name}", name, handle, methods=["POST"])

    def _register(self, asked: RegisterEnvRequest, identity: Identity) -> Any:
        return dump(self._entries.register(asked, identity.owner, identity.admin))

    def _get(self, asked: EnvNameRequest, identity: Identity) -> Any:
        return dump(self._entries.get(asked.env_name))

    def _list(self, asked: ListEnvsRequest, identity: Identity) -> Any:
        return {"envs": [dump(entry) for entry in self._entries.list(asked.owner, asked.tags)]}

    def _delete(self, asked: EnvNameRequest, identity: Identity) -> Any:
        self._entries.delete(asked.env_name, identity.owner, identity.admin)
        return True
