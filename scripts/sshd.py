"""An SSH server for the tests: Debian's, unpacked beside the system, run on a loopback port with keys of its own.

It wants a user `sshd`, a folder and root's account in /etc: it gets them in a mount namespace, so that the machine has none of it.
"""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from scripts.engine import CACHE, apt_install
from scripts.images import unpack_package
from scripts.steps import StepFailed, run, step

ROOT = CACHE / "sshd"
START_SECONDS = 20.0
_RUN = Path("/run/sshd")
_CONFIG = """\
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/key.pub
StrictModes no
UsePAM no
PasswordAuthentication no
PidFile none
MaxStartups 200
MaxSessions 200
SetEnv {variables}
"""
_CLIENT = """\
Host *
IdentityFile {folder}/key
UserKnownHostsFile {folder}/known_hosts
StrictHostKeyChecking accept-new
"""
_START = """mount --bind "$1/passwd" /etc/passwd && mount --bind "$1/shadow" /etc/shadow && exec "$2" -D -e -f "$1/config" """


def ensure() -> Path:
    """Unpack the server if it is not there, install the client if that is missing; return the server's program.

    Raises:
        StepFailed: a package cannot be had.
    """
    if shutil.which("ssh") is None:
        with step("installing openssh-client (apt-get)"):
            apt_install("openssh-client")
    program = ROOT / "usr/sbin/sshd"
    if not program.exists():
        with step("unpacking openssh-server (apt-get download)"):
            for package in ("libwrap0", "openssh-server"):
                unpack_package(ROOT, package)
    return program


@contextlib.contextmanager
def serve(folder: Path, port: int, env: dict[str, str], variables: dict[str, str]) -> Iterator[Path]:
    """Run a server that lets root in with a key in `folder`; yield a folder with an `ssh` that has this key, for a PATH.

    Params:
        env: variables of the server itself.
        variables: what who logs in finds in the environment.
    Raises:
        StepFailed: it does not come up.
    """
    program = ensure()
    _write(folder, port, variables)
    made = not _RUN.exists()
    _RUN.mkdir(mode=0o755, exist_ok=True)
    libraries = ":".join(str(path) for path in (ROOT / "usr/lib").glob("*-linux-gnu*"))
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _START, "sh", str(folder), str(program)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, env={**env, "LD_LIBRARY_PATH": libraries}, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise StepFailed(f"sshd did not come up:\n{(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)
        yield folder / "bin"
    finally:
        process.terminate()
        process.wait(10)
        if made:
            _RUN.rmdir()


def _write(folder: Path, port: int, variables: dict[str, str]) -> None:
    """Write keys, accounts and configurations."""
    for name in ("host", "key"):
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)])
    said = " ".join(f'"{name}={value}"' for name, value in variables.items())
    (folder / "config").write_text(_CONFIG.format(port=port, folder=folder, variables=said))
    others = [line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith(("root:", "sshd:"))]
    accounts = ["root:x:0:0:root:/root:/bin/sh", "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin", *others]
    (folder / "passwd").write_text("\n".join(accounts) + "\n")
    (folder / "shadow").write_text("root:*:19000:0:99999:7:::\nsshd:!:19000::::::\n")
    (folder / "client").write_text(_CLIENT.format(folder=folder))
    (folder / "bin").mkdir()
    program = folder / "bin" / "ssh"
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/client "$@"\n')
    program.chmod(0o755)


def _answers(port: int) -> bool:
    """Return whether an SSH server greets."""
    try:
        with socket.create_connection(("127.0.0.1", port), 2) as connection:
            connection.settimeout(2)
            return connection.recv(8).startswith(b"SSH-2.0")
    except OSError:
        return False
