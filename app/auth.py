"""API keys: who is calling, and what they may see."""

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from app.config_values import ApiKey
from rock.errors import Forbidden, Unauthorized

# Headers that may carry a key, in the order in which they are looked at.
KEY_HEADERS = ("X-API-Key", "X-Key")


@dataclass(frozen=True)
class Identity:
    """A caller: the owner its key stands for, and whether it sees everyone's sandboxes."""

    # "" when the service runs without keys: then all callers are one owner.
    owner: str = ""
    admin: bool = False

    def sees(self, owner: str) -> bool:
        """Return whether this caller may see what belongs to `owner`."""
        return self.admin or self.owner == owner


class Headers(Protocol):
    """What a key is looked up in: any case-insensitive mapping of header names."""

    def get(self, key: str, /) -> str | None:
        """Return the header's value, or None."""


class Keyring:
    """The accepted keys."""

    def __init__(self, keys: Iterable[ApiKey], metrics_key: str = "") -> None:
        """With no key every caller is accepted as the one owner "" (the service then listens on loopback only).

        Params:
            metrics_key: of one who may read metrics and do nothing else; "": there is none.
        """
        self._known = [(_digest(entry.key), Identity(entry.owner, entry.admin)) for entry in keys]
        self._metrics_key = _digest(metrics_key) if metrics_key else None

    def identify(self, headers: Headers) -> Identity:
        """Return who sent a request with these headers.

        Raises:
            Unauthorized: no key, or a wrong one.
        """
        if not self._known:
            return Identity()
        sent = _sent(headers)
        if not sent:
            raise Unauthorized("an API key is needed: send it as X-API-Key, or as Authorization: Bearer <key>")
        given = _digest(sent)
        # Every key is compared, in constant time: how long it takes tells nothing.
        found = [identity for digest, identity in self._known if hmac.compare_digest(digest, given)]
        if not found:
            raise Unauthorized("this API key is not known")
        return found[0]

    def check_scraper(self, headers: Headers) -> None:
        """Refuse a caller who may not read metrics: an admin may, and who has the key for them; without keys everyone may.

        Raises Unauthorized or Forbidden.
        """
        sent = _sent(headers)
        if self._metrics_key and sent and hmac.compare_digest(self._metrics_key, _digest(sent)):
            return
        if self._metrics_key and not self._known:
            raise Unauthorized("reading metrics needs the key of metrics.key: send it as Authorization: Bearer <key>")
        self.check_admin(self.identify(headers))

    def is_key(self, authorization: str) -> bool:
        """Return whether the value of an Authorization header carries one of our keys."""
        given, ours = _digest(_bearer(authorization)), [digest for digest, _ in self._known]
        # As above: all are compared.
        return True in [hmac.compare_digest(digest, given) for digest in (*ours, self._metrics_key or b"")]

    def check_admin(self, identity: Identity) -> None:
        """Refuse a caller who may not steer the service as a whole; without keys everyone may. Raises Forbidden."""
        if self._known and not identity.admin:
            raise Forbidden("this needs the API key of an admin (`key=owner:admin`)")


def _digest(key: str) -> bytes:
    """Return a digest of fixed length, so that a comparison does not tell the key's length either."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _sent(headers: Headers) -> str:
    """Return the key that the headers carry, or ""."""
    for name in KEY_HEADERS:
        value = headers.get(name)
        if value:
            return value.strip()
    return _bearer(headers.get("Authorization") or "")


def _bearer(authorization: str) -> str:
    """Return the token in the value of an Authorization header, or ""."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
