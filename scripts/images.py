"""The test images, made here from Debian's packages: no registry of images is needed.

- `python:3.11`: Debian 12 with python3 and git, laid out like the official image where tests can tell.
- `debian:minimal`: Debian 12 and nothing else.
- `rock-test/alpine-bash`: a busybox userland with bash and no other GNU tool, as Alpine with bash is.
- `rock-test/nobash`: the same without bash.
- `swebench/sweb.eval.x86_64.…`: `python:3.11` with a task of SWE-bench in it (scripts/swe_image.py).
- `rock-test/gem`: `python:3.11` with gem-llm.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import docker

from scripts import gem, swe_image
from scripts.engine import CACHE, apt_install, apt_update
from scripts.steps import StepFailed, run, step

PYTHON, DEBIAN, ALPINE, NOBASH, GEM = (
    "python:3.11",
    "debian:minimal",
    "rock-test/alpine-bash:latest",
    "rock-test/nobash:latest",
    "rock-test/gem:latest",
)
_PATH = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SUITE = "bookworm"


def ensure(url: str) -> None:
    """Make the images that the engine at `url` lacks.

    Raises:
        StepFailed: a tool or a package cannot be had.
    """
    client = docker.DockerClient(base_url=url, timeout=600)
    try:
        present = {tag for image in client.images.list() for tag in image.tags}
        for tag, (make, changes) in _IMAGES.items():
            if tag not in present:
                with step(f"making the test image {tag}"), tempfile.TemporaryDirectory(dir=_folder()) as root:
                    make(Path(root))
                    _load(client, Path(root), tag, changes)
        if swe_image.TAG not in present:
            with step(f"making the test image {swe_image.TAG}"):
                swe_image.make(client, PYTHON, _folder())
        if GEM not in present:
            with step(f"making the test image {GEM}"), tempfile.TemporaryDirectory(dir=_folder()) as root:
                _gem(client, Path(root))
    finally:
        client.close()


def _folder() -> Path:
    """Return the folder for packages and half-made images."""
    CACHE.mkdir(parents=True, exist_ok=True, mode=0o700)
    return CACHE


def _load(client: docker.DockerClient, root: Path, tag: str, changes: list[str]) -> None:
    """Import the file tree `root` as the image `tag`."""
    repository, name = tag.split(":")
    root.chmod(0o755)
    tar = subprocess.Popen(
        ["tar", "--numeric-owner", "-C", str(root), "-c", "."], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert tar.stdout is not None  # It was asked for.
    with tar.stdout:
        client.api.import_image_from_stream(tar.stdout, repository=repository, tag=name, changes=changes)
    if tar.wait() != 0:
        raise StepFailed(f"packing {tag} failed: tar exited with {tar.returncode}")


def _debootstrap(root: Path, *include: str) -> None:
    """Fill `root` with a minimal Debian and the given packages; downloads are kept for the next image."""
    if shutil.which("debootstrap") is None:
        apt_install("debootstrap")
    packages = _folder() / "packages"
    packages.mkdir(exist_ok=True)
    extra = [f"--include={','.join(include)}"] if include else []
    run(["debootstrap", "--variant=minbase", f"--cache-dir={packages}", *extra, _SUITE, str(root), *_mirror()])
    for waste in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man"):
        shutil.rmtree(root / waste, ignore_errors=True)
        (root / waste).mkdir(parents=True)


def _mirror() -> list[str]:
    """Return the mirror that this machine's apt uses for the suite, or nothing: debootstrap knows the usual one."""
    asked = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)", f"Codename: {_SUITE}", "Created-By: Packages"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    return asked.stdout.split()[:1]


def _python(root: Path) -> None:
    """Debian with python3 and git, under the names that the official image has."""
    _debootstrap(root, "python3", "git", "ca-certificates", "procps")
    for name in ("python", "python3", "python3.11"):
        (root / "usr/local/bin" / name).symlink_to("/usr/bin/python3.11")


def _gem(client: docker.DockerClient, context: Path) -> None:
    """Put gem-llm on top of the Python image."""
    gem.unpack(context / "packages")
    (context / "Dockerfile").write_text(f"FROM {PYTHON}\nCOPY packages /usr/local/lib/python3.11/dist-packages\n")
    client.images.build(path=str(context), tag=GEM, rm=True)


def _busybox(root: Path) -> None:
    """A userland of busybox alone: its applets as links, the files that programs expect."""
    unpack_package(root, "busybox-static")
    _rest_of_root(root)
    busybox = root / "bin/busybox"
    applets = subprocess.run([str(busybox), "--list-full"], capture_output=True, text=True, check=True).stdout.split()
    for applet in applets:
        link = root / applet
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists() and not link.is_symlink():
            link.symlink_to("/bin/busybox")


def _busybox_with_bash(root: Path) -> None:
    """The busybox userland, and bash."""
    _busybox(root)
    with tempfile.TemporaryDirectory(dir=_folder()) as other:
        unpack_package(Path(other), "bash-static")
        shutil.copy2(Path(other) / "bin/bash-static", root / "bin/bash")


def unpack_package(root: Path, package: str) -> None:
    """Unpack a Debian package into `root`, without its documentation."""
    folder = _folder() / "packages" / package
    if not list(folder.glob("*.deb")):
        folder.mkdir(parents=True, exist_ok=True)
        apt_update()
        # Not as apt's own user: it may not write into our folder.
        fetch = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", package]
        done = subprocess.run(fetch, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise StepFailed(f"apt-get download {package}: {done.stderr.strip()}")
    root.mkdir(parents=True, exist_ok=True)
    run(["dpkg-deb", "-x", str(next(folder.glob("*.deb"))), str(root)])
    shutil.rmtree(root / "usr/share", ignore_errors=True)


def _rest_of_root(root: Path) -> None:
    """Folders and accounts that every image has."""
    for folder in ("bin", "dev", "etc", "proc", "root", "run", "sbin", "sys", "tmp", "usr/bin", "usr/sbin", "var/tmp"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for folder in ("tmp", "var/tmp"):
        (root / folder).chmod(0o1777)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")
    (root / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (root / "etc/os-release").write_text('ID=rock-test\nPRETTY_NAME="busybox test image"\n')


_IMAGES: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    DEBIAN: (_debootstrap, [_PATH, 'CMD ["bash"]']),
    PYTHON: (_python, [_PATH, "ENV LANG=C.UTF-8", 'CMD ["python3"]']),
    ALPINE: (_busybox_with_bash, [_PATH, 'CMD ["/bin/sh"]']),
    NOBASH: (_busybox, [_PATH, 'CMD ["/bin/sh"]']),
}
