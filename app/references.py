"""Image references: what they are made of, and when two mean the same image. Pure."""

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


def canonical(image: str) -> str:
    """Return the one spelling of all references to an image: `python`, `docker.io/library/python:latest`. Errors: BadRequest."""
    name = full_name(image)
    for default in ("docker.io/", "index.docker.io/"):
        name = name.removeprefix(default)
    return name.removeprefix("library/")
