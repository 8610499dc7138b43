"""Picks how this node runs sandboxes, and says what was picked and why."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rock.errors import BadRequest, RockError, Unavailable
from workers.deployments.abstract import AbstractDeployment
from workers.deployments.container_body import Ulimits
from workers.deployments.docker import DockerDeployment
from workers.deployments.engine import Engine
from workers.deployments.local import LocalDeployment
from workers.deployments.wire import Endpoint
from workers.images import Images

TYPES = ("auto", "docker", "podman", "local", "remote")

DOCKER_SOCKETS = ("/var/run/docker.sock",)
PODMAN_SOCKETS = ("/run/podman/podman.sock",)


@dataclass(frozen=True)
class Choice:
    """A deployment, and a sentence for people that says which it is and why."""

    deployment: AbstractDeployment
    reason: str


@dataclass(frozen=True)
class DeploymentManager:
    """Makes the deployment of a node.

    Params:
        cluster, node: mark what is ours on an engine that others use too.
        boot_argv: the main process of every sandbox.
        data_dir: where the `local` deployment keeps sandboxes.
        environ: the node's variables, for the `local` deployment.
        docker_host: address of the engine; "" for the usual sockets.
        certificates: folder of the certificates for an engine that speaks TLS, or None.
        image_cache_dir: folder of saved images, or None.
        user_id: of this process; a rootless Podman listens in that user's runtime folder.
        timeout: seconds to wait for an engine's answer.
    """

    cluster: str
    node: str
    boot_argv: list[str]
    data_dir: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    docker_host: str = ""
    certificates: Path | None = None
    image_cache_dir: Path | None = None
    user_id: int = 0
    timeout: float = 60.0

    def select(self, kind: str) -> Choice:
        """Return the deployment for `runtime.type`.

        Params:
            kind: `docker`, `podman`, `remote`, `local`, or `auto`: Docker, else Podman, else `local`.
        Errors: BadRequest for an unknown type; Unavailable when the engine asked for does not answer.
        """
        if kind not in TYPES:
            raise BadRequest(f"runtime.type {kind!r}: known are {', '.join(TYPES)}")
        if kind == "local":
            return Choice(self._local(), "local, as configured: NO isolation, sandboxes are processes of this machine")
        if kind == "remote" and not self.docker_host:
            raise BadRequest("runtime.type remote needs runtime.docker_host (ssh://user@host or tcp://host:port)")
        tried: list[str] = []
        for name, url in self._candidates(kind):
            try:
                deployment = self._engine(name, url)
            except RockError as error:
                tried.append(f"{url}: {error.message}")
                continue
            return Choice(
                deployment, f"{name}, {'found' if kind == 'auto' else 'as configured'}: {deployment.description}"
            )
        failures = "; ".join(tried) or "no engine's socket is there"
        if kind != "auto":
            raise Unavailable(f"runtime.type {kind}: no engine answers ({failures})")
        return Choice(self._local(), f"local: NO isolation, because no container engine answers ({failures})")

    def _candidates(self, kind: str) -> Iterator[tuple[str, str]]:
        """Yield (name, address) of the engines to try. A configured address is the only one."""
        if self.docker_host:
            local = self.docker_host.startswith("unix://")
            yield ("docker" if kind == "auto" and local else "remote" if kind == "auto" else kind), self.docker_host
            return
        podman = (*PODMAN_SOCKETS, f"/run/user/{self.user_id}/podman/podman.sock")
        for name, paths in (("docker", DOCKER_SOCKETS), ("podman", podman)):
            if kind in ("auto", name):
                yield from ((name, f"unix://{path}") for path in paths if _is_socket(path))

    def _engine(self, name: str, url: str) -> DockerDeployment:
        engine = Engine(Endpoint(url, self.timeout, certificates=self.certificates))
        return DockerDeployment(
            engine, Images(engine, self.image_cache_dir), cluster=self.cluster, node=self.node,
            boot_argv=self.boot_argv, ulimits=Ulimits.within(engine.endpoint.engine_pid()), name=name,
        )  # fmt: skip

    def _local(self) -> LocalDeployment:
        return LocalDeployment(
            self.data_dir, cluster=self.cluster, node=self.node, boot_argv=self.boot_argv, environ=self.environ
        )


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(Path(path).stat().st_mode)
    except OSError:
        return False
