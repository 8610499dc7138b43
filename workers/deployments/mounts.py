"""`-v`, `--volume`, `--mount` and `--tmpfs` of `docker_args`: parsed, and held to the node's allowed folders. Pure but for
one look at the disk, the resolver of symbolic links, which is an argument."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass, replace

from app.sections import parse_size
from rock.errors import BadRequest

ENGINE_SOCKETS = (
    "/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
)  # fmt: skip
RESERVED = ("/run/rock",)
"""Targets in the container that belong to the keeper."""

_NO_EFFECT = frozenset({"rw", "cached", "delegated", "consistent"})


@dataclass(frozen=True)
class Mount:
    """One mount of a container.

    Params:
        kind: `bind`, `tmpfs`, or `volume` (an anonymous one, removed with the container).
        source: resolved host path of a bind, else "".
        size: bytes of a tmpfs, None for the engine's default.
        mode: permission bits of a tmpfs, None for the engine's default.
        executable: programs on a tmpfs may be run.
    """

    kind: str
    target: str
    source: str = ""
    read_only: bool = False
    size: int | None = None
    mode: int | None = None
    executable: bool = False


@dataclass(frozen=True)
class MountRules:
    """What may be mounted.

    Params:
        folders: host folders at or under which a bind's source must lie.
        engine_socket: allow sources that are, or contain, an engine's socket.
        resolve: host path → the same without symbolic links and `..`.
    """

    folders: tuple[str, ...]
    engine_socket: bool
    resolve: Callable[[str], str]


def parse_volume(flag: str, text: str, rules: MountRules) -> Mount:
    """Return the mount of `-v [source:]target[:options]`.

    Errors: BadRequest naming the flag and the text.
    """
    where = f"docker_args {flag} {text!r}"
    parts = text.split(":")
    if len(parts) == 1:
        return Mount("volume", _target(where, parts[0]))
    if len(parts) > 3:
        raise BadRequest(f"{where}: expected source:target[:ro]")
    options = set(parts[2].split(",")) if len(parts) == 3 else set()
    unknown = options - _NO_EFFECT - {"ro"}
    if unknown or {"ro", "rw"} <= options:
        raise BadRequest(f"{where}: mount options may be ro or rw, not {','.join(sorted(unknown or options))!r}")
    return Mount("bind", _target(where, parts[1]), _source(where, parts[0], rules), read_only="ro" in options)


def parse_mount(flag: str, text: str, rules: MountRules) -> Mount:
    """Return the mount of `--mount type=…,source=…,target=…[,readonly]`.

    Errors: BadRequest naming the flag and the text.
    """
    where = f"docker_args {flag} {text!r}"
    fields: dict[str, str] = {}
    for part in text.split(","):
        key, separator, value = part.partition("=")
        key = {"src": "source", "dst": "target", "destination": "target", "ro": "readonly"}.get(key, key)
        if key in fields:
            raise BadRequest(f"{where}: {key} is given twice")
        fields[key] = value if separator else "true"
    kind = fields.pop("type", "volume")
    if kind not in ("bind", "tmpfs", "volume"):
        raise BadRequest(f"{where}: type may be bind, tmpfs or volume, not {kind!r}")
    if "target" not in fields:
        raise BadRequest(f"{where}: target is missing")
    target = _target(where, fields.pop("target"))
    mount = _mount_of(where, kind, target, fields, rules)
    if fields:
        raise BadRequest(f"{where}: {min(fields)!r} is not supported for type={kind}")
    return mount


def parse_tmpfs(flag: str, text: str) -> Mount:
    """Return the mount of `--tmpfs target[:size=64m,mode=1777,…]`.

    Errors: BadRequest naming the flag and the text.
    """
    where = f"docker_args {flag} {text!r}"
    target, _, rest = text.partition(":")
    fields: dict[str, str] = {}
    for option in filter(None, rest.split(",")):
        key, separator, value = option.partition("=")
        if separator and key in ("size", "mode"):
            fields[f"tmpfs-{key}"] = value
        elif option == "ro":
            fields["readonly"] = "true"
        elif option not in ("rw", "nosuid", "nodev", "noexec", "exec"):
            # `suid` and `dev` would loosen the mount; the rest has no use here.
            raise BadRequest(f"{where}: option {option!r} is not supported")
    mount = _mount_of(where, "tmpfs", _target(where, target), fields, None)
    return replace(mount, executable="exec" in rest.split(","))


def _mount_of(where: str, kind: str, target: str, fields: dict[str, str], rules: MountRules | None) -> Mount:
    """Return the mount, taking the fields that its kind knows out of `fields`."""
    read_only = _boolean(where, fields.pop("readonly", "false"))
    if kind == "tmpfs":
        return Mount(
            kind, target, read_only=read_only,
            size=_size(where, fields.pop("tmpfs-size", "")), mode=_mode(where, fields.pop("tmpfs-mode", "")),
        )  # fmt: skip
    source = fields.pop("source", "")
    if kind == "volume":
        if source:
            raise BadRequest(f"{where}: named volumes are not allowed (they outlive the sandbox); mount a host folder")
        return Mount(kind, target, read_only=read_only)
    if rules is None or not source:
        raise BadRequest(f"{where}: source is missing")
    return Mount(kind, target, _source(where, source, rules), read_only=read_only)


def _target(where: str, target: str) -> str:
    """Return the path in the container, normalised; it must be absolute and not one of ours."""
    path = posixpath.normpath(target)
    if not target.startswith("/") or path in ("/", "//") or "\0" in target:
        raise BadRequest(f"{where}: target must be an absolute path in the container, below /")
    if any(_within(path, reserved) for reserved in RESERVED):
        raise BadRequest(f"{where}: {path} belongs to the service")
    return path


def _source(where: str, source: str, rules: MountRules) -> str:
    """Return the resolved host path, if it lies in an allowed folder and gives away no engine."""
    if not source.startswith("/"):
        raise BadRequest(f"{where}: source must be an absolute host path (named volumes are not allowed)")
    if "\0" in source:
        raise BadRequest(f"{where}: source holds a NUL")
    path = rules.resolve(source)
    folders = [rules.resolve(folder) for folder in rules.folders]
    if not any(_within(path, folder) for folder in folders):
        allowed = ", ".join(rules.folders) or "none"
        raise BadRequest(
            f"{where}: {source} is outside the host folders that this node allows (node.allowed_mounts: {allowed})"
        )
    sockets = {*ENGINE_SOCKETS, *map(rules.resolve, ENGINE_SOCKETS)}
    if not rules.engine_socket and any(_within(socket, path) for socket in sockets):
        raise BadRequest(f"{where}: {source} would give the sandbox the container engine")
    return path


def _within(path: str, folder: str) -> bool:
    """True when `path` is `folder` or below it; both absolute and normalised."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _boolean(where: str, text: str) -> bool:
    if text not in ("true", "1", "false", "0"):
        raise BadRequest(f"{where}: readonly may be true or false, not {text!r}")
    return text in ("true", "1")


def _size(where: str, text: str) -> int | None:
    try:
        return parse_size(text) if text else None
    except ValueError as error:
        raise BadRequest(f"{where}: size: {error}") from error


def _mode(where: str, text: str) -> int | None:
    try:
        mode = int(text, 8) if text else None
    except ValueError as error:
        raise BadRequest(f"{where}: mode {text!r} is not octal") from error
    if mode is not None and not 0 <= mode <= 0o1777:
        raise BadRequest(f"{where}: mode {text!r} is not between 0 and 1777")
    return mode
