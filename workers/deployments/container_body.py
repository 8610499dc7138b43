"""A sandbox's container in the engine API's words: pure, so that what "hardened" means can be read, and tested, in one place."""

from __future__ import annotations

import contextlib
import hashlib
import re
import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.references import full_name
from workers.deployments.abstract import RUN_DIR, USERS_DIR, ContainerSpec
from workers.deployments.docker_args import EngineOptions
from workers.deployments.mounts import Mount

LABEL_CLUSTER, LABEL_NODE, LABEL_SANDBOX = "rock.cluster", "rock.node", "rock.sandbox"

CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID",
    "SYS_CHROOT",
)  # fmt: skip
"""What root in a sandbox may do: Docker's default set without three, which is Podman's. NET_RAW forges packets on the
bridge that all sandboxes share (ping works without it); MKNOD makes device files, the first half of many escapes;
AUDIT_WRITE writes the host's audit log. Package managers, su, sudo and servers need none of the three; sshd logins need
AUDIT_WRITE, which `--cap-add` may give."""

OOM_SCORE = 500
"""When the machine itself runs out of memory, sandboxes go before the node's own processes."""

_NOFILE = 65536
"""Open files. Engines default to a million, and programs that close "all" descriptors then take seconds to start."""

NO_NEW_PRIVILEGES = "no-new-privileges"

QUIET = {"PAGER": "cat", "GIT_PAGER": "cat", "MANPAGER": "cat", "GIT_EDITOR": "true", "TERM": "dumb"}
"""Nobody sits at a terminal: pagers and editors would wait for a key for ever."""


THREADS = ("OMP_NUM_THREADS", "GOMAXPROCS", "RAYON_NUM_THREADS", "PYTHON_CPU_COUNT")
"""Variables by which OpenMP (so numpy and torch), `nproc`, Go, Rust and Python learn how many threads are of use. A kernel tells a
sandbox of all CPUs of the machine, and a pool of 64 threads on the time of one CPU is slower than one of 1."""


@dataclass(frozen=True)
class Ulimits:
    """Resource limits inside: soft = hard, and never above the machine's own, which an unprivileged engine cannot exceed.

    `nproc` is as high as the machine allows on purpose: the kernel counts it per user over all containers, so a low one
    would let sandboxes starve each other. The pids limit of the container is what bounds a fork bomb.
    """

    nofile: int
    nproc: int

    @classmethod
    def within(cls, engine_pid: int | None) -> Ulimits:
        """Return limits that an engine can give.

        Params:
            engine_pid: its process on this machine, whose own limits bound its containers'; None: not known.
        """
        kinds = (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)
        hard = [resource.getrlimit(kind)[1] for kind in kinds]
        if engine_pid is not None:
            with contextlib.suppress(PermissionError, ProcessLookupError):  # another user's: ours are a good guess
                hard = [
                    _lower(one, resource.prlimit(engine_pid, kind)[1]) for one, kind in zip(hard, kinds, strict=True)
                ]
        return cls(_lower(hard[0], _NOFILE), hard[1])


def _lower(one: int, other: int) -> int:
    """Return the lower of two limits; RLIM_INFINITY is above all."""
    finite = [limit for limit in (one, other) if limit != resource.RLIM_INFINITY]
    return min(finite, default=resource.RLIM_INFINITY)


def create_body(
    spec: ContainerSpec, *, boot_argv: list[str], labels: Mapping[str, str], image_env: Iterable[str], ulimits: Ulimits,
    podman: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return the body of the engine's create call.

    Params:
        boot_argv: the container's main process, in place of the image's entrypoint and command.
        labels: what marks the container as ours.
        image_env: names of the variables that the image sets.
        podman: the engine is Podman.
    """
    options = spec.options
    volumes: dict[str, dict[str, str]] = {mount.target: {} for mount in options.mounts if mount.kind == "volume"}
    return {
        "Image": full_name(spec.image),
        "Entrypoint": list(boot_argv),
        "Cmd": [],
        # Root: the keeper can give a session another user. A container of another user has that one only.
        "User": options.user or "0:0",
        "OpenStdin": True,
        # False: stdin outlives the connection of whoever writes to it, so that the next worker can go on.
        "StdinOnce": False,
        "Tty": False,
        "AttachStdin": False,
        "AttachStdout": False,
        "AttachStderr": False,
        "Env": [f"{name}={value}" for name, value in environment(spec, image_env).items()],
        "Labels": {**spec.labels, **labels},
        # An image's health check would be run by the engine every few seconds, 80 ms of CPU each.
        "Healthcheck": {"Test": ["NONE"]},
        "Volumes": volumes,
        "ExposedPorts": {f"{port.container}/{port.protocol}": {} for port in options.ports},
        **({"Hostname": hostname(spec.sandbox_id)} if options.network != "host" else {}),
        **({"WorkingDir": options.workdir} if options.workdir else {}),
        "HostConfig": _host_config(spec, options, ulimits, podman),
    }


def environment(spec: ContainerSpec, image_env: Iterable[str]) -> dict[str, str]:
    """Return the variables to set: quiet defaults where image and caller say nothing, then the caller's.

    Params:
        image_env: names of the variables that the image sets.
    """
    env = {**spec.env, **spec.options.env}
    known = {*image_env, *env}
    threads = dict.fromkeys(THREADS, str(spec.threads)) if spec.threads else {}
    defaults = {name: value for name, value in {**QUIET, **threads}.items() if name not in known}
    if not known & {"LANG", "LC_ALL"}:
        defaults["LANG"] = "C.UTF-8"
    return {**defaults, **env}


def mark_of(cluster: str, node: str) -> str:
    """Return a deployment's `mark`: a short digest of the service's id and the node's."""
    return hashlib.sha256(f"{cluster}\0{node}".encode()).hexdigest()[:8]


def hostname(sandbox_id: str) -> str:
    """Return a host name made of the id: what DNS allows of its first 12 characters."""
    return re.sub(r"[^A-Za-z0-9-]", "-", sandbox_id)[:12].strip("-") or "sandbox"


def _host_config(spec: ContainerSpec, options: EngineOptions, ulimits: Ulimits, podman: bool) -> dict[str, Any]:
    config: dict[str, Any] = {
        # What the main process prints is the relay's protocol; a log of it would only fill the disk.
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no"},
        "Init": spec.init,
        "NetworkMode": options.network or spec.network,
        "Memory": spec.memory_bytes,
        "MemorySwap": spec.memory_bytes,  # equal: no swap on top
        "NanoCpus": round(spec.cpus * 1e9),
        "PidsLimit": spec.pids,
        "OomScoreAdj": OOM_SCORE,
        "Privileged": options.privileged,
        "SecurityOpt": [NO_NEW_PRIVILEGES],
        "CapDrop": ["ALL"],
        "CapAdd": sorted({*CAPABILITIES, *options.cap_add}),
        "Ulimits": _ulimits(options, ulimits),
        "Tmpfs": {
            **_run_folders(spec),
            **{mount.target: _tmpfs(mount) for mount in options.mounts if mount.kind == "tmpfs"},
        },
        "Mounts": [
            {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}
            for mount in options.mounts
            if mount.kind == "bind"
        ],
        "PortBindings": {
            f"{port.container}/{port.protocol}": [{"HostIp": port.address, "HostPort": str(port.host or "")}]
            for port in options.ports
        },
        "Devices": [
            {"PathOnHost": host, "PathInContainer": inside, "CgroupPermissions": permissions}
            for host, inside, permissions in options.devices
        ],
        "ExtraHosts": list(options.extra_hosts),
    }
    config.update(_when_asked(spec, options, podman))
    return config


def _run_folders(spec: ContainerSpec) -> dict[str, str]:
    """Return the keeper's own mounts. Who a user named in `docker_args` is, only the image knows, so there anybody may
    write; then all in the container is that user's, and the keeper opens no sessions of others."""
    options = "rw,nosuid,nodev,noexec"
    if spec.options.user:
        return {RUN_DIR: f"{options},mode=1777,size={spec.tmpfs_bytes}"}
    return {
        RUN_DIR: f"{options},mode=0700,size={spec.tmpfs_bytes}",
        USERS_DIR: f"{options},mode=0711,size={spec.tmpfs_bytes // 4}",
    }


def _when_asked(spec: ContainerSpec, options: EngineOptions, podman: bool) -> dict[str, Any]:
    """Return the parts that keep the engine's default unless somebody asked."""
    asked: dict[str, Any] = {}
    if options.seccomp:
        profile = options.seccomp.name if podman else options.seccomp.content
        asked["SecurityOpt"] = [NO_NEW_PRIVILEGES, f"seccomp={profile}"]
    if spec.runtime:
        asked["Runtime"] = spec.runtime
    if spec.disk_bytes:
        asked["StorageOpt"] = {"size": str(spec.disk_bytes)}
    if options.shm_size:
        asked["ShmSize"] = options.shm_size
    if options.pid_mode:
        asked["PidMode"] = options.pid_mode
    if options.ipc_mode:
        asked["IpcMode"] = options.ipc_mode
    if options.gpus:
        chosen = {"DeviceIDs": list(options.gpus.ids)} if options.gpus.ids else {"Count": options.gpus.count}
        asked["DeviceRequests"] = [{"Driver": "", "Capabilities": [["gpu"]], **chosen}]
    return asked


def _ulimits(options: EngineOptions, ulimits: Ulimits) -> list[dict[str, Any]]:
    limits = {
        "nofile": (ulimits.nofile, ulimits.nofile),
        "nproc": (ulimits.nproc, ulimits.nproc),
        "core": (0, 0),  # a crashing program must not fill the disk
        **options.ulimits,
    }
    return [{"Name": name, "Soft": soft, "Hard": hard} for name, (soft, hard) in limits.items()]


def _tmpfs(mount: Mount) -> str:
    parts = ["ro" if mount.read_only else "rw", "nosuid", "nodev", "exec" if mount.executable else "noexec"]
    if mount.size is not None:
        parts.append(f"size={mount.size}")
    parts.append(f"mode={mount.mode if mount.mode is not None else 0o1777:o}")
    return ",".join(parts)
