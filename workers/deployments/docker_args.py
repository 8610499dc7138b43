"""`docker_args`, the escape hatch of a start: the command line flags that trainers pass to `docker run`, parsed to frozen
options and held to what the node allows. Pure: what may be done is a `Policy`, how links resolve is an argument.

A flag that is unknown or not allowed is refused by name; nothing is dropped in silence.
"""

from __future__ import annotations

import ipaddress
import os.path
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.sections import parse_size
from rock.actions.requests import USER
from rock.errors import BadRequest
from workers.deployments.mounts import Mount, MountRules, parse_mount, parse_tmpfs, parse_volume
from workers.deployments.ports import Port, parse_port
from workers.deployments.seccomp import Profile, parse_security

_SHORT = {"-v": "--volume", "-e": "--env", "-p": "--publish", "-u": "--user", "-w": "--workdir"}
_SWITCHES = frozenset({"--privileged"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_PLAIN_NETWORKS = ("bridge", "none", "default")


@dataclass(frozen=True)
class Policy:
    """What a node lets `docker_args` do. The defaults keep a sandbox away from the host.

    Params:
        allowed_mounts: host folders at or under which bind mounts may lie.
        networks: names of further networks that a sandbox may join.
        capabilities: what `--cap-add` may give. The default is what `docker run` gives and our hardening takes away.
        devices: host devices that `--device` may pass, exactly.
        gpus: allow `--gpus`.
        seccomp: the profiles that `--security-opt seccomp=` may choose, by name.
        publish: allow `-p`; without an address in the flag, ports listen on `publish_address`.
        privileged, host_network, host_pid, host_ipc, engine_socket: what is refused unless a node says otherwise.
    """

    allowed_mounts: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    capabilities: frozenset[str] = frozenset({"AUDIT_WRITE", "MKNOD", "NET_RAW"})
    devices: tuple[str, ...] = ()
    gpus: bool = False
    seccomp: Mapping[str, Profile] = field(default_factory=dict)
    publish: bool = True
    publish_address: str = "127.0.0.1"
    privileged: bool = False
    host_network: bool = False
    host_pid: bool = False
    host_ipc: bool = False
    engine_socket: bool = False


@dataclass(frozen=True)
class Gpus:
    """GPUs asked for: `count` (-1: all) or explicit `ids`."""

    count: int = 0
    ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class EngineOptions:
    """What `docker_args` asked for, after the policy agreed. `ulimits` are {name: (soft, hard)}, `devices` are
    (host path, container path, permissions), `shm_size` is bytes; `user` is who the container runs as, the keeper
    included (None: root, whose sessions may name another user); `seccomp` None is the engine's own profile."""

    mounts: tuple[Mount, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    network: str | None = None
    pid_mode: str | None = None
    ipc_mode: str | None = None
    shm_size: int | None = None
    ulimits: dict[str, tuple[int, int]] = field(default_factory=dict)
    cap_add: tuple[str, ...] = ()
    privileged: bool = False
    user: str | None = None
    workdir: str | None = None
    extra_hosts: tuple[str, ...] = ()
    devices: tuple[tuple[str, str, str], ...] = ()
    gpus: Gpus | None = None
    seccomp: Profile | None = None
    ports: tuple[Port, ...] = ()


def parse(args: Sequence[str], policy: Policy, resolve: Callable[[str], str] = os.path.realpath) -> EngineOptions:
    """Return the options that a `docker_args` list stands for.

    Params:
        args: flags as on a command line, `["-v", "/a:/b:ro", "--shm-size=1g"]`.
        policy: what this node allows.
        resolve: host path → the same without symbolic links and `..`.
    Errors: BadRequest naming the flag that is unknown, malformed or not allowed.
    """
    rules = MountRules(policy.allowed_mounts, policy.engine_socket, resolve)
    seen: dict[str, list[Any]] = {}
    for flag, written, value in _flags(args):
        seen.setdefault(_FIELDS[flag], []).append(_value(flag, written, value, policy, rules))
    values: dict[str, Any] = {name: made[-1] for name, made in seen.items()}  # the last of a flag wins, as in docker
    for name in ("mounts", "cap_add", "extra_hosts", "devices", "ports"):
        values[name] = tuple(seen.get(name, ()))
    for name in ("env", "ulimits"):
        values[name] = dict(seen.get(name, ()))
    targets = [mount.target for mount in values["mounts"]]
    if len(set(targets)) < len(targets):
        raise BadRequest(f"docker_args: {max(targets, key=targets.count)} is mounted twice")
    return EngineOptions(**values)


def _flags(args: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (long flag, flag as written, value) of each flag."""
    words = iter(args)
    for word in words:
        if not word.startswith("-"):
            raise BadRequest(f"docker_args: {word!r} is not a flag")
        written, separator, value = word.partition("=")
        if not word.startswith("--") and len(word) > 2 and word[:2] in _SHORT:
            written, separator, value = word[:2], "=", word[2:].removeprefix("=")  # -v/a:/b, as docker allows
        flag = _SHORT.get(written, written)
        if flag not in _FIELDS:
            raise BadRequest(f"docker_args: {written} is not a flag that sandboxes know; known: {', '.join(_FIELDS)}")
        if flag in _SWITCHES:
            yield flag, written, value or "true"
            continue
        if not separator:
            following = next(words, None)
            if following is None:
                raise BadRequest(f"docker_args: {written} needs a value")
            value = following
        yield flag, written, value


def _value(flag: str, written: str, value: str, policy: Policy, rules: MountRules) -> Any:
    """Return what one flag means, or refuse it."""
    if "\0" in value:
        raise BadRequest(f"docker_args {written}: the value holds a NUL")
    if flag == "--volume":
        return parse_volume(written, value, rules)
    if flag == "--mount":
        return parse_mount(written, value, rules)
    if flag == "--tmpfs":
        return parse_tmpfs(written, value)
    return _READERS[flag](written, value, policy)


def _refuse(flag: str, value: str, setting: str) -> BadRequest:
    """Return the error for what this node does not allow."""
    return BadRequest(f"docker_args {flag} {value}: this node does not allow it ({setting})")


def _env(flag: str, value: str, policy: Policy) -> tuple[str, str]:
    name, separator, text = value.partition("=")
    if not separator or not _NAME.fullmatch(name):
        raise BadRequest(f"docker_args {flag} {name!r}: expected NAME=value (there is no environment to take it from)")
    return name, text


def _network(flag: str, value: str, policy: Policy) -> str:
    if value == "host" and policy.host_network:
        return value
    if value not in (*_PLAIN_NETWORKS, *policy.networks) or value == "host":
        raise _refuse(flag, value, f"networks: {', '.join((*_PLAIN_NETWORKS, *policy.networks))}")
    return "bridge" if value == "default" else value


def _pid(flag: str, value: str, policy: Policy) -> str | None:
    if value not in ("", "private") and not (value == "host" and policy.host_pid):
        raise _refuse(flag, value, "host namespaces")
    return "host" if value == "host" else None


def _ipc(flag: str, value: str, policy: Policy) -> str:
    if value not in ("none", "private") and not (value == "host" and policy.host_ipc):
        raise _refuse(flag, value, "host namespaces")
    return value


def _shm(flag: str, value: str, policy: Policy) -> int:
    try:
        size = parse_size(value)
    except ValueError as error:
        raise BadRequest(f"docker_args {flag}: {error}") from error
    if size <= 0:
        raise BadRequest(f"docker_args {flag} {value}: must be more than 0")
    return size


def _ulimit(flag: str, value: str, policy: Policy) -> tuple[str, tuple[int, int]]:
    match = re.fullmatch(r"([a-z]+)=(-1|\d+)(?::(-1|\d+))?", value)
    if not match:
        raise BadRequest(f"docker_args {flag} {value!r}: expected name=soft[:hard], such as nofile=1024:4096")
    soft, hard = int(match[2]), int(match[3] or match[2])
    if hard != -1 and (soft == -1 or soft > hard):
        raise BadRequest(f"docker_args {flag} {value}: the soft limit is above the hard one")
    return match[1], (soft, hard)


def _capability(flag: str, value: str, policy: Policy) -> str:
    name = value.upper().removeprefix("CAP_")
    if name not in policy.capabilities:
        raise _refuse(flag, value, f"capabilities: {', '.join(sorted(policy.capabilities)) or 'none'}")
    return name


def _privileged(flag: str, value: str, policy: Policy) -> bool:
    if value not in ("true", "false"):
        raise BadRequest(f"docker_args {flag}={value}: may be true or false")
    if value == "true" and not policy.privileged:
        raise BadRequest(f"docker_args {flag}: this node does not allow it")
    return value == "true"


def _user(flag: str, value: str, policy: Policy) -> str:
    if not USER.fullmatch(value):
        raise BadRequest(f"docker_args {flag} {value!r}: expected a user name or number, with :group if need be")
    return value


def _workdir(flag: str, value: str, policy: Policy) -> str:
    if not value.startswith("/"):
        raise BadRequest(f"docker_args {flag} {value!r}: must be an absolute path in the container")
    return value


def _host(flag: str, value: str, policy: Policy) -> str:
    name, _, address = value.partition(":")
    try:
        if not name or " " in name:
            raise ValueError("no name")
        if address != "host-gateway":
            ipaddress.ip_address(address.strip("[]"))
    except ValueError as error:
        raise BadRequest(f"docker_args {flag} {value!r}: expected name:address") from error
    return f"{name}:{address}"


def _device(flag: str, value: str, policy: Policy) -> tuple[str, str, str]:
    host, _, rest = value.partition(":")
    inside, _, permissions = rest.partition(":")
    if host not in policy.devices:
        raise _refuse(flag, value, f"devices: {', '.join(policy.devices) or 'none'}")
    if inside and not inside.startswith("/"):
        inside, permissions = "", inside
    if not re.fullmatch(r"r?w?m?", permissions):
        raise BadRequest(f"docker_args {flag} {value!r}: permissions may be of r, w, m")
    return host, inside or host, permissions or "rwm"


def _gpus(flag: str, value: str, policy: Policy) -> Gpus:
    if not policy.gpus:
        raise _refuse(flag, value, "gpus")
    text = value.strip("\"'")
    if re.fullmatch(r"all|[1-9][0-9]*", text):
        return Gpus(count=-1 if text == "all" else int(text))
    match = re.fullmatch(r"device=([^,]+(?:,[^,]+)*)", text)
    if not match:
        raise BadRequest(f"docker_args {flag} {value!r}: expected all, a number, or device=0,1")
    return Gpus(ids=tuple(match[1].split(",")))


def _port(flag: str, value: str, policy: Policy) -> Port:
    if not policy.publish:
        raise _refuse(flag, value, "publish")
    return parse_port(flag, value, policy.publish_address)


def _security(flag: str, value: str, policy: Policy) -> Profile:
    return parse_security(flag, value, policy.seccomp)


_FIELDS = {
    "--volume": "mounts", "--mount": "mounts", "--tmpfs": "mounts", "--env": "env", "--network": "network", "--net": "network",
    "--pid": "pid_mode", "--ipc": "ipc_mode", "--shm-size": "shm_size", "--ulimit": "ulimits", "--cap-add": "cap_add",
    "--privileged": "privileged", "--user": "user", "--workdir": "workdir", "--add-host": "extra_hosts",
    "--device": "devices", "--gpus": "gpus", "--publish": "ports",
    "--security-opt": "seccomp",
}  # fmt: skip
"""Every known flag, and the option that it sets."""

_READERS: dict[str, Callable[[str, str, Policy], Any]] = {
    "--env": _env, "--network": _network, "--net": _network, "--pid": _pid, "--ipc": _ipc, "--shm-size": _shm,
    "--ulimit": _ulimit, "--cap-add": _capability, "--privileged": _privileged, "--user": _user, "--workdir": _workdir,
    "--add-host": _host, "--device": _device, "--gpus": _gpus, "--publish": _port,
    "--security-opt": _security,
}  # fmt: skip
