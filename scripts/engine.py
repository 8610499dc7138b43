"""A container engine for the tests: the one that answers, else a Docker daemon of our own that we also end.

Ours keeps its images under /var/cache, so that only the first run on a machine has to make them; its socket, state and
pid file are under /run. Nothing of it is shared with a daemon that the machine may run for other purposes.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import docker

from app.running import Pid, end, start_time
from rock import settings
from scripts.steps import StepFailed, run, step

CACHE = Path("/var/cache/rock-on-celery-tests")
STATE = Path("/run/rock-on-celery-tests")
SYSTEM_SOCKETS = (Path("/run/docker.sock"), Path("/var/run/docker.sock"))
START_SECONDS = 60.0


@dataclass(frozen=True)
class Engine:
    """An engine that answers at `url`; `daemon` is ours to end, None if it was there before."""

    url: str
    daemon: Pid | None = None


def may_have_engine() -> bool:
    """Return whether this machine is one on which the engine tests must not be skipped: Debian, and we are root."""
    return os.geteuid() == 0 and Path("/etc/debian_version").exists()


def answers(url: str) -> bool:
    """Return whether an engine answers at `url`."""
    try:
        client = docker.DockerClient(base_url=url, timeout=5)
        with contextlib.closing(client):
            return bool(client.ping())
    except (docker.errors.DockerException, OSError):
        return False


def find() -> Engine | None:
    """Return an engine that is there already: DOCKER_HOST's, or the system's."""
    named = settings.read("DOCKER_HOST")
    urls = [named] if named else [f"unix://{path}" for path in SYSTEM_SOCKETS if path.exists()]
    return next((Engine(url) for url in urls if answers(url)), None)


def ensure() -> Engine | None:
    """Return an engine, installed and started if it has to be; None where that is not possible.

    Raises:
        StepFailed: this machine can have an engine, and yet none came up.
    """
    found = find()
    if found is not None or not may_have_engine():
        return found
    _install()
    _mount_cgroups()
    return _start()


def apt_update() -> None:
    """Fetch the package lists: a bare machine has none, an old one has stale ones."""
    run(["apt-get", "update", "-qq"])


def apt_install(*packages: str, recommends: bool = False) -> None:
    """Install Debian packages without a question, and without what they merely recommend unless that is wanted."""
    env = {**settings.with_prefix(""), "DEBIAN_FRONTEND": "noninteractive"}
    apt_update()
    extra = "--install-recommends" if recommends else "--no-install-recommends"
    run(["apt-get", "install", "-y", "-qq", extra, *packages], env)


def ensure_podman() -> None:
    """Install Podman, the other engine that the `docker` deployment speaks to; the tests run a service of it themselves."""
    if may_have_engine() and shutil.which("podman") is None:
        with step("installing podman (apt-get)"):
            # It cannot do without what it recommends: an init for containers, and their network.
            apt_install("podman", recommends=True)


def _install() -> None:
    """Install Docker's daemon if it is missing."""
    if shutil.which("dockerd") is None:
        with step("installing docker.io (apt-get)"):
            apt_install("docker.io", "iptables", "ca-certificates")


def _mount_cgroups() -> None:
    """Mount the cgroup hierarchies where nothing (no init system) has done so."""
    root = Path("/sys/fs/cgroup")
    if (root / "memory").exists() or (root / "cgroup.controllers").exists():
        return
    with step("mounting the cgroup hierarchies (cgroupfs-mount)"):
        if shutil.which("cgroupfs-mount") is None:
            apt_install("cgroupfs-mount")
        run(["cgroupfs-mount"])


def _start() -> Engine:
    """Start a daemon of our own, after ending one that a killed run left."""
    _end_leftover()
    for folder in (CACHE, STATE):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    url, log = f"unix://{STATE}/docker.sock", CACHE / "dockerd.log"
    with step("starting dockerd"), log.open("wb") as output:
        child = subprocess.Popen(
            [
                "dockerd",
                *("--host", url),
                *("--data-root", str(CACHE / "docker")),
                *("--exec-root", str(STATE / "exec")),
                *("--pidfile", str(STATE / "docker.pid")),
                *("--log-level", "warn"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        deadline = time.monotonic() + START_SECONDS
        while not answers(url):
            if child.poll() is not None or time.monotonic() > deadline:
                child.kill()
                print(log.read_text(errors="replace")[-3000:])
                raise StepFailed(f"dockerd did not come up (its log: {log})")
            time.sleep(0.2)
    started = start_time(child.pid)
    return Engine(url, Pid("dockerd", child.pid, started) if started is not None else None)


def _end_leftover() -> None:
    """End the daemon of a run that was killed, known by our data folder in its arguments."""
    try:
        pid = int((STATE / "docker.pid").read_text())
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ValueError, ProcessLookupError):
        return
    started = start_time(pid)
    if started is not None and str(CACHE / "docker").encode() in arguments:
        with step(f"ending the dockerd that an earlier run left (pid {pid})"):
            end((Pid("dockerd", pid, started),), 30.0)
            _clear_state()


def stop(engine: Engine) -> None:
    """End the daemon if it is ours, and all it has mounted."""
    if engine.daemon is None:
        return
    with step("stopping dockerd"):
        end((engine.daemon,), 30.0)
        with contextlib.suppress(ChildProcessError):  # Not our child when it was started by another program.
            os.waitpid(engine.daemon.pid, 0)
        _clear_state()


def _clear_state() -> None:
    """Unmount what the daemon left mounted, end its containerd if it outlived it, and remove its state folder."""
    for pid_file in STATE.rglob("containerd.pid"):
        with contextlib.suppress(ValueError, ProcessLookupError):
            os.kill(int(pid_file.read_text()), signal.SIGTERM)
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in reversed([path for path in mounts if path.startswith((f"{STATE}/", f"{CACHE}/"))]):
        run(["umount", "--lazy", mount])
    shutil.rmtree(STATE, ignore_errors=True)
