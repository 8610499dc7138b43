"""An image of a container's files, with the configuration of the image that the container was made from.

An engine's own commit bakes in what the container was started with: our labels, entry point and quiet defaults, and the
caller's variables, which may be secrets. So its image is only taken for its layers: another one with the same layers and
the original configuration is loaded, and the first is removed. Loading needs no layer's content, since they are there.
Podman cannot load such an image, so it is told what to change (`lines`).
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import tarfile
from collections.abc import Mapping
from typing import Any

from rock.errors import RockError, SandboxGone
from workers.deployments.container_body import QUIET
from workers.deployments.engine import Engine
from workers.deployments.faults import Doing

log = logging.getLogger(__name__)


def take(engine: Engine, container: str, repository: str, tag: str, doing: Doing) -> str:
    """Make the image `repository:tag` of a container; return its id. The container stands still while its files are copied.

    Errors: SandboxGone; what the engine's refusal means.
    """
    facts = engine.inspect(container)
    if facts is None:
        raise SandboxGone(f"cannot {doing.what}: its container is gone")
    base = engine.image(facts["Image"]) or {}
    original: dict[str, Any] = base.get("Config") or {}
    # Where the second step is not possible, at least what is run by default is the original's.
    settings = {name: original.get(name) or empty for name, empty in _RUN.items()}
    layers_of = engine.commit(container, settings, lines(facts["Config"], original), doing)
    name = f"{repository}:{tag}"
    before = engine.image(name)
    try:
        return _named(engine, layers_of, original, (repository, tag), doing)
    finally:
        if before is not None:
            drop_nameless(engine, before["Id"])


def drop_nameless(engine: Engine, image_id: str) -> None:
    """Remove an image whose last name another has taken; one that sandboxes run from stays until somebody prunes the engine."""
    found = engine.image(image_id)
    if found is not None and not found.get("RepoTags") and not engine.runs(image_id):
        engine.remove_image(image_id)


def _named(engine: Engine, layers_of: str, original: Mapping[str, Any], names: tuple[str, str], doing: Doing) -> str:
    """Return the id of the named image with the layers of one and the configuration of another."""
    name = ":".join(names)
    try:
        description = engine.image(layers_of) or {}
        engine.load_bytes(archive(description, original, name), doing)
        made = engine.image(name)
        if made is not None and made["RootFS"]["Layers"] == description["RootFS"]["Layers"]:
            engine.remove_image(layers_of)
            return str(made["Id"])
    except RockError as error:
        log.warning("the engine cannot load an image without layers: %s is the engine's own commit (%s)", name, error)
    engine.tag(layers_of, *names)
    return layers_of


def lines(container: Mapping[str, Any], original: Mapping[str, Any]) -> list[str]:
    """Return lines of a Dockerfile that give an image of a container the settings of its own image, as far as they can.

    They cannot take a variable or a label away: what the container alone has (the caller's may be secrets) becomes empty.
    What we set where nobody else does stays, as every sandbox has it.

    Params:
        container: its settings.
        original: those of the image that it was made from.
    """
    said = [
        f"{word} {json.dumps(original.get(name) or [])}"
        for word, name in (("CMD", "Cmd"), ("ENTRYPOINT", "Entrypoint"))
    ]
    said += [f"USER {original.get('User') or '0:0'}", f"WORKDIR {original.get('WorkingDir') or '/'}"]
    now, before = (
        dict(entry.split("=", 1) for entry in one.get("Env") or () if "=" in entry) for one in (container, original)
    )
    changed = {name for name, value in now.items() if before.get(name) != value} - {*QUIET, "LANG"}
    said += [f"ENV {name}={before.get(name, '')}" for name in sorted(changed)]
    return said + [
        f"LABEL {name}=" for name in sorted({*(container.get("Labels") or ())} - {*(original.get("Labels") or ())})
    ]


_RUN: Mapping[str, Any] = {"Entrypoint": [], "Cmd": [], "User": "", "WorkingDir": "", "Healthcheck": None}


def archive(layers_of: Mapping[str, Any], config: Mapping[str, Any], name: str) -> bytes:
    """Return an image archive that names layers the engine has, and holds none.

    Params:
        layers_of: the image whose layers, architecture and date are wanted, as the engine describes it.
        config: what its containers are started with.
        name: repository and tag.
    """
    layers = layers_of["RootFS"]["Layers"]
    made = {"created": layers_of["Created"], "created_by": "rock commit"}
    description = {
        "architecture": layers_of["Architecture"], "os": layers_of["Os"], "created": layers_of["Created"],
        "config": dict(config), "rootfs": {"type": "layers", "diff_ids": layers}, "history": [made for _ in layers],
    }  # fmt: skip
    text = json.dumps(description).encode()
    file = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = [
        {"Config": file, "RepoTags": [name], "Layers": [f"{number}/layer.tar" for number in range(len(layers))]}
    ]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for member, content in ((file, text), ("manifest.json", json.dumps(manifest).encode())):
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
