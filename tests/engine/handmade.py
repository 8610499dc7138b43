"""Images made of a few bytes, for what no real image at hand is."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping

import docker

ARM64_PROGRAM = b"\x7fELF\2\1\1" + bytes(9) + (2).to_bytes(2, "little") + (183).to_bytes(2, "little") + bytes(44)
"""The head of a program for arm64: enough for a kernel to refuse it."""


def load(engine: docker.DockerClient, tag: str, files: Mapping[str, bytes], architecture: str = "amd64") -> None:
    """Give the engine an image with just these files, all of them executable."""
    layer = _tar(files)
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Cmd": ["/hello"], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]
    parts = {
        "layer.tar": layer,
        "config.json": json.dumps(config).encode(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    for line in engine.api.load_image(_tar(parts)):
        assert "error" not in line, line


def _tar(files: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()
