"""A password-protected image registry for the tests: Debian's, unpacked beside the system, run on a loopback port."""

import contextlib
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from scripts.engine import CACHE
from scripts.images import unpack_package
from scripts.steps import StepFailed, step

BINARY = CACHE / "registry" / "usr/bin/docker-registry"
USER, PASSWORD = "robot", "pass-word-of-the-robot"
_HASH = "$2b$04$Is9rNP/dAIYr1lJnH8xr.e/Aw/ZwJn9fc9p15u84rTR.gYnei4zfG"
"""bcrypt of PASSWORD: the registry takes no other kind."""
_CONFIG = """\
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: "127.0.0.1:{port}"}}
auth: {{htpasswd: {{realm: tests, path: {folder}/htpasswd}}}}
"""
START_SECONDS = 20.0


def ensure() -> Path:
    """Unpack the registry if it is not there; return its program.

    Raises:
        StepFailed: the package cannot be had.
    """
    if not BINARY.exists():
        with step("unpacking docker-registry (apt-get download)"):
            unpack_package(CACHE / "registry", "docker-registry")
    return BINARY


@contextlib.contextmanager
def serve(folder: Path, port: int, env: dict[str, str]) -> Iterator[str]:
    """Run a registry that takes USER and PASSWORD and keeps its images in `folder`; yield `host:port`.

    Raises:
        StepFailed: it does not come up.
    """
    (folder / "htpasswd").write_text(f"{USER}:{_HASH}\n")
    config = folder / "config.yml"
    config.write_text(_CONFIG.format(folder=folder, port=port))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([str(ensure()), "serve", str(config)], env=env, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise StepFailed(f"the registry did not come up:\n{(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _answers(port: int) -> bool:
    """Return whether it asks for a password."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=2) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        with error:
            return error.code == 401
    except OSError:
        return False
