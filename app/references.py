"""Image references: what they are made of, and when two mean the same image. Pure."""

import hashlib
import re

from rock.errors import BadRequest

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
"""One part of a repository's path."""
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*(?::[0-9]+)?"
"""A registry's host, with a port if need be. No dots beside each other: a name is part of a path in the engine's API."""


def split_reference(image: str, field: str = "image") -> tuple[str, str]:
    """Return (repository, tag or digest) of a reference; the tag defaults to `latest`.

    Params:
        field: the request's field that holds it, for the message.
    Errors: BadRequest naming `field`.
    """
    name, at, digest = image.partition("@")
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:  # no colon, or the one of a registry's port
        repository, tag = name, "latest"
    registry = registry_of(repository)
    path = repository.removeprefix(f"{registry}/") if registry else repository
    good = re.fullmatch(rf"{_PART}(?:/{_PART})*", path) and re.fullmatch(r"\w[\w.-]{0,127}", tag, re.ASCII)
    # To an engine, `sha256:` and digits are no name but an id: of any image, whoever it belongs to.
    if not good or path == "sha256" or (at and not re.fullmatch(r"[a-z0-9+._-]+:[0-9a-fA-F]{32,}", digest)):
        shown = image[:300]
        raise BadRequest(f"{field} {shown!r} is no image reference such as python:3.11 or host/name:tag", field=field)
    return repository, digest if at else tag


def registry_of(image: str) -> str:
    """Return the registry that a reference names (`host`, `host:port`), "" when it names none."""
    host, slash, _ = image.partition("/")
    named = slash and (host == "localhost" or (re.search("[.:]", host) and re.fullmatch(_HOST, host)))
    return host if named else ""


def full_name(image: str) -> str:
    """Return a reference with its tag or digest spelled out: `python`, `python:latest`.

    Only this goes to an engine: a name without a tag could be the beginning of another image's id. Errors: BadRequest.
    """
    repository, tag = split_reference(image)
    return f"{repository}@{tag}" if ":" in tag else f"{repository}:{tag}"


def own_repository(kind: str, mark: str, node: str) -> str:
    """Return the repository of images that a node keeps for the service itself; several nodes may share an engine.

    Params:
        kind: `commit` or `fork`.
        mark: of the node's deployment, which tells it from those of other services.
    """
    digest = hashlib.sha256(f"{mark}\0{node}".encode()).hexdigest()[:12]
    return f"rock-{kind}-{digest}"


def commit_name(mark: str, node: str, owner: str, image: str) -> str:
    """Return the name under which a node's engine has an owner's commit; "" without API keys: then it has the name that was given.

    Nobody else's start asks for that name, so the one that was given goes on meaning what it means to everybody else.
    """
    if not owner:
        return ""
    tag = hashlib.sha256(f"{owner}\0{canonical(image)}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{own_repository('commit', mark, node)}:{tag}"


def is_own(image: str) -> bool:
    """Return whether a name is one of those that the service gives images (`own_repository`). Errors: BadRequest."""
    name = canonical(image).removeprefix("localhost/").removeprefix("library/")
    return name.startswith(("rock-commit-", "rock-fork-"))


def check_free(image: str, field: str = "image") -> None:
    """Refuse a caller's name for an image that is none, or is the service's own: through it one could have another's files.

    Errors: BadRequest naming `field`.
    """
    split_reference(image, field)
    if is_own(image):
        raise BadRequest(
            f"{field}: names that begin with rock-commit- or rock-fork- are the service's own", field=field
        )


def canonical(image: str) -> str:
    """Return the one spelling of all references to an image: `python`, `docker.io/library/python:latest`. Errors: BadRequest."""
    name = full_name(image)
    for default in ("docker.io/", "index.docker.io/"):
        name = name.removeprefix(default)
    return name.removeprefix("library/")
