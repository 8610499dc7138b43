"""Image references: what they are made of, and when two mean the same image. Pure."""

import re

from rock.errors import BadRequest

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
"""One part of a repository's path."""


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
    path = repository.removeprefix(f"{registry_of(repository)}/")
    good = re.fullmatch(rf"{_PART}(?:/{_PART})*", path) and re.fullmatch(r"\w[\w.-]{0,127}", tag, re.ASCII)
    if not good or (at and not re.fullmatch(r"[a-z0-9+._-]+:[0-9a-fA-F]{32,}", digest)):
        shown = image[:300]
        raise BadRequest(f"{field} {shown!r} is no image reference such as python:3.11 or host/name:tag", field=field)
    return repository, digest if at else tag


def registry_of(image: str) -> str:
    """Return the registry that a reference names (`host`, `host:port`), "" when it names none."""
    host, slash, _ = image.partition("/")
    named = slash and (host == "localhost" or re.fullmatch(r"[A-Za-z0-9.-]+[.:][A-Za-z0-9.:-]*", host))
    return host if named else ""


def canonical(image: str) -> str:
    """Return the one spelling of all references to an image: `python`, `docker.io/library/python:latest`. Errors: BadRequest."""
    repository, tag = split_reference(image)
    for default in ("docker.io/", "index.docker.io/"):
        repository = repository.removeprefix(default)
    repository = repository.removeprefix("library/")
    return f"{repository}@{tag}" if ":" in tag else f"{repository}:{tag}"
