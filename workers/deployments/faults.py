"""What an engine's refusals mean: (HTTP status, text) → our errors. Pure; the texts are Docker's, Podman's, runc's and crun's.

The engines have no error codes worth the name, so this is a table of patterns, first match wins. What no pattern knows
is `Internal` with the engine's own words, so that nothing is hidden.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from rock.errors import (
    BadRequest,
    ImageAccess,
    ImageNotFound,
    Internal,
    PullFailed,
    RockError,
    SandboxGone,
    StartFailed,
    Unavailable,
)


class NameTaken(Internal):
    """A container of that name exists: the sandbox was started before."""


class NoDiskLimit(Internal):
    """The engine's storage cannot limit a container's disk."""


class DiskFull(StartFailed):
    """The node's disk is full: another node, or this one later, may start it."""

    retryable = True


class DiskFullForImage(PullFailed):
    """The same, while its image was being fetched."""


NO_DISK_LIMIT = "disk limit not enforced here by the engine's storage"
"""The note on a sandbox that was started without the limit that it asked for."""


@dataclass(frozen=True)
class Doing:
    """What was asked of the engine, for messages: `what` ("start sandbox x"), the `image` in hand if any, and the
    processors that it is for and that the node has (`arm64`; "": not known)."""

    what: str
    image: str = ""
    pulling: bool = False
    pushing: bool = False
    built_for: str = ""
    node_has: str = ""


def _no_bash(text: str, doing: Doing) -> RockError:
    return StartFailed(f"image {doing.image} has no bash; the session keeper needs bash in the image and nothing else")


def _disk_full(text: str, doing: Doing) -> RockError:
    kind = DiskFullForImage if doing.pulling or doing.pushing else DiskFull
    return kind(f"cannot {doing.what}: disk full on the node ({text})")


def _image_missing(text: str, doing: Doing) -> RockError:
    return ImageNotFound(f"image {doing.image} does not exist: {text}")


def _image_access(text: str, doing: Doing) -> RockError:
    if doing.pushing:
        return ImageAccess(
            f"image {doing.image}: the registry does not take it with this username and password: {text}"
        )
    return ImageAccess(
        f"image {doing.image}: the registry refused it; it does not exist there, or registry_username and "
        f"registry_password do not open it: {text}"
    )


def _bad_image(text: str, doing: Doing) -> RockError:
    return BadRequest(f"image {doing.image!r} is not an image reference: {text}", field="image")


def wrong_architecture(text: str, doing: Doing) -> RockError:
    """Return the error for an image whose programs the node cannot run, from the engine's words."""
    if doing.built_for in ("", doing.node_has):
        return StartFailed(f"image {doing.image} is built for another architecture than this node: {text}")
    return StartFailed(
        f"image {doing.image} is for {doing.built_for}, this node is {doing.node_has}, and it does not emulate {doing.built_for}"
    )


def _field(name: str) -> Callable[[str, Doing], RockError]:
    """Return a maker of BadRequest that names a field of the start request."""
    return lambda text, doing: BadRequest(f"{name}: {text}", field=name)


def _gone(text: str, doing: Doing) -> RockError:
    return SandboxGone(f"cannot {doing.what}: its container is not running: {text}")


def _paused(text: str, doing: Doing) -> RockError:
    return Unavailable(f"cannot {doing.what}: its files are being copied for a commit; try again shortly")


def _name_taken(text: str, doing: Doing) -> RockError:
    return NameTaken(text)


def _no_disk_limit(text: str, doing: Doing) -> RockError:
    return NoDiskLimit(text)


def _start_failed(text: str, doing: Doing) -> RockError:
    return StartFailed(f"cannot {doing.what}: {text}")


def _pull_failed(text: str, doing: Doing) -> RockError:
    why = next((words for pattern, words in _DISTURBED if re.search(pattern, text, re.IGNORECASE)), "")
    return PullFailed(f"cannot {doing.what}: {why}{text}")


_LIMITED = r"toomanyrequests|too many requests"
_BROKEN = r"bad gateway|service unavailable|internal server error|server misbehaving"
_UNREACHABLE = (
    r"dial tcp|no such host|i/o timeout|connection (refused|reset)|tls handshake|\bEOF\b|timeout exceeded|deadline exceeded|"
    r"network is unreachable"
)
_DISTURBED = (
    (
        _LIMITED,
        "the registry lets this node have no more for now; try again later, or send registry_username and registry_password: ",
    ),
    (_BROKEN, "the registry is out of order; try again later: "),
    (_UNREACHABLE, "the node cannot reach the registry, or lost it: "),
)
"""How the way to the registry may be disturbed, which is worth another try; and how that is told."""

_TABLE: tuple[tuple[str, Callable[[str, Doing], RockError]], ...] = (
    # Order matters: an engine wraps texts in texts, so the most telling part comes first.
    (r"exec(utable file)?:? .?[\"`']bash[\"`']?.*not found|exec: .*bash.*no such file", _no_bash),
    (r"no space left on device|disk quota exceeded", _disk_full),
    (
        r"exec format error|does not match the (detected host|specified) platform|no matching manifest for",
        wrong_architecture,
    ),
    (r"storage-opt|storage opt(ion)?s? .*(not supported|invalid)|quota .*not supported", _no_disk_limit),
    (r"name .* is already in use", _name_taken),
    (
        r"invalid reference format|repository name .*lowercase|invalid (tag|repository)|could not parse|normaliz",
        _bad_image,
    ),
    (r"manifest .*unknown|manifest for .* not found|name unknown|tag .* not found", _image_missing),
    (
        r"pull access denied|unauthorized|authentication required|no basic auth credentials|access.* denied|\bdenied:|^denied$|incorrect username",
        _image_access,
    ),
    (r"no such image|image not known|image .*not found", _image_missing),
    (r"range of cpus|cpu-?quota|cpus .*available", _field("cpus")),
    (r"minimum memory limit|memory limit too low|init was oom-killed", _field("memory")),
    (r"unknown (or invalid )?runtime|OCI runtime \"?[\w.-]+\"? (not found|is not available)", _field("runtime")),
    (
        r"invalid mount|bind source path|mount path must be|statfs .*no such file|duplicate mount",
        _field("docker_args --volume"),
    ),
    (r"port is already allocated|address already in use", _field("docker_args --publish")),
    (r"network .*not found|unable to find network", _field("docker_args --network")),
    (r"unable to find user|no matching entries in passwd|no such user", _field("user")),
    (r"gathering device information|could not select device driver", _field("docker_args --device/--gpus")),
    (r"ulimit|rlimit", _field("docker_args --ulimit")),
    (r"container .*is paused", _paused),
    (
        r"is not running|no such container|no container with name|container .*not found|state improper",
        _gone,
    ),
)


def translate(status: int, text: str, doing: Doing) -> RockError:
    """Return the error that an engine's refusal stands for.

    Params:
        status: HTTP status of the answer; 0 for an error told inside a stream.
        text: the engine's message.
        doing: what was asked of it.
    """
    text = " ".join(text.split())
    for pattern, make in _TABLE:
        if re.search(pattern, text, re.IGNORECASE):
            return make(text, doing)
    if doing.pulling or doing.pushing:
        return _pull_failed(text, doing)
    if re.search(r"oci runtime|failed to create (shim|task)|runc|crun|cannot start", text, re.IGNORECASE):
        return _start_failed(text, doing)
    if status in (502, 503):
        return Unavailable(f"cannot {doing.what}: the container engine is not available: {text}")
    return Internal(f"cannot {doing.what}: the container engine answered {status}: {text}")


def not_started(text: str, doing: Doing) -> RockError:
    """Return the error for a process that could not be started in a running container, from the engine's words."""
    if re.search(r"is not running|no such container|state improper", text, re.IGNORECASE):
        return _gone(text, doing)
    return BadRequest(f"cannot {doing.what}: {' '.join(text.split())}")


def is_transient(error: RockError) -> bool:
    """True for a failed pull that another try may mend: the network, not the image."""
    return isinstance(error, PullFailed) and any(
        re.search(pattern, error.message, re.IGNORECASE) for pattern, _ in _DISTURBED
    )
