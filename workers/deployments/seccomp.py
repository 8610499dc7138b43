"""Which system calls a sandbox may make, if not those of the engine's own profile: profiles that a node allows by name.

Engines differ in theirs, and newer ones refuse user namespaces, which browsers and `bwrap` need for their own sandboxes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rock.errors import BadRequest

UNCONFINED = "unconfined"
"""The engine's word for no profile at all."""


@dataclass(frozen=True)
class Profile:
    """A profile: its name, which is its path unless it is `unconfined`, and what Docker is told. Podman reads the file itself."""

    name: str
    content: str


def read_profiles(allowed: Iterable[str]) -> dict[str, Profile]:
    """Return the allowed profiles by name.

    Params:
        allowed: `unconfined`, or paths of profiles (JSON, in the engines' form) on this machine.
    Raises:
        BadRequest: one is not there, or is no JSON object.
    """
    return {name: Profile(name, name if name == UNCONFINED else _content(name)) for name in allowed}


def parse_security(flag: str, value: str, profiles: Mapping[str, Profile]) -> Profile:
    """Return the profile that a `--security-opt` flag chooses; it may do nothing else.

    Errors: BadRequest for a profile that is not allowed, and for any other option.
    """
    option, _, name = value.partition("=")
    if option != "seccomp":
        raise BadRequest(f"docker_args {flag} {value}: only seccomp=PROFILE can be given")
    if name not in profiles:
        known = ", ".join(profiles) or "none"
        raise BadRequest(f"docker_args {flag} {value}: this node does not allow it (node.seccomp_profiles: {known})")
    return profiles[name]


def _content(path: str) -> str:
    try:
        profile = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadRequest(f"node.seccomp_profiles: {path} cannot be read: {error}") from error
    if not isinstance(profile, dict) or "defaultAction" not in profile:
        raise BadRequest(f"node.seccomp_profiles: {path} is no seccomp profile: it has no defaultAction")
    return json.dumps(profile)
