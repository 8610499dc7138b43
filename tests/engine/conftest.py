"""Deployments of every kind, and a hand on the main process of their sandboxes."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import docker
import pytest
import trustme

from app.references import canonical, own_repository
from rock.errors import Unavailable
from scripts import engine as engines
from scripts import images, registry
from tests.service_stack import MARKER, Stack, clean_environment, free_port
from tests.wire import Api, until
from workers.deployments.abstract import AbstractDeployment, ContainerSpec, Stream
from workers.deployments.container_body import LABEL_CLUSTER, Ulimits, mark_of
from workers.deployments.docker import DockerDeployment
from workers.deployments.engine import Engine
from workers.deployments.faults import Doing
from workers.deployments.local import LocalDeployment
from workers.deployments.wire import Endpoint
from workers.images import Images
from workers.keeper import BOOT_ARGV

NODE = f"test-{os.getpid()}-deployments"
LINES = b'while IFS= read -r line; do eval "$line"; done'
"""What the tests give the boot loader in place of the keeper: it runs each line."""


class Hand:
    """Talks to the main process of a sandbox, line by line."""

    def __init__(self, stream: Stream, fresh: bool = True) -> None:
        self.stream = stream
        if fresh:
            self.send(b"KEEPER %d x\n%s" % (len(LINES), LINES))

    def send(self, data: bytes) -> None:
        """Send all of it."""
        left, end = memoryview(data), time.monotonic() + 10
        while left and time.monotonic() < end:
            left = left[self.stream.send(left) :]
        assert not left

    def ask(self, line: str, seconds: float = 10.0) -> str:
        """Run a line and return what it printed."""
        mark = f"<{time.monotonic_ns()}>"
        self.send(f"{line}\necho '{mark}'\n".encode())
        said, end = b"", time.monotonic() + seconds
        while mark.encode() not in said:
            assert time.monotonic() < end, f"{line!r} is not done; so far {said!r}"
            poller = select.poll()
            poller.register(self.stream.fileno(), select.POLLIN)
            poller.poll(100)
            got = self.stream.receive()
            assert got is not None, f"the stream ended after {said!r}"
            said += got
        return said.decode().removesuffix(f"{mark}\n")


class Sandboxes:
    """A deployment, the image to use with it, and the sandboxes a test made."""

    def __init__(self, deployment: AbstractDeployment, image: str) -> None:
        self.deployment, self.image = deployment, image
        self._network = "none" if deployment.name == "remote" else "bridge"  # see remote_engine
        self._made: list[str] = []
        self._streams: list[Stream] = []

    def spec(self, **changes: object) -> ContainerSpec:
        """Return the description of a new sandbox, which is removed after the test."""
        self._made.append(f"t{time.monotonic_ns()}")
        limits = {"cpus": 1.0, "memory_bytes": 256 << 20, "pids": 300}
        made = ContainerSpec(self._made[-1], self.image, **limits, network=self._network)  # type: ignore[arg-type]
        return replace(made, **changes)  # type: ignore[arg-type]

    def start(self, **changes: object) -> str:
        """Start a new sandbox; return its id."""
        spec = self.spec(**changes)
        assert self.deployment.start(spec).running
        return spec.sandbox_id

    def hand(self, sandbox_id: str, fresh: bool = True) -> Hand:
        """Attach to a sandbox; `fresh`: its main process still waits for its script."""
        self._streams.append(self.deployment.attach(sandbox_id))
        return Hand(self._streams[-1], fresh)

    def clear(self) -> None:
        """Close what is open, remove what was made."""
        for stream in self._streams:
            stream.close()
        for sandbox_id in self._made:
            self.deployment.remove(sandbox_id)
        self._streams, self._made = [], []


def on_engine(endpoint: Endpoint | str, name: str, node: str = NODE, cluster: str | None = None) -> DockerDeployment:
    """Return a deployment on an engine, in a cluster of its own unless one is named."""
    engine = Engine(Endpoint(endpoint) if isinstance(endpoint, str) else endpoint)
    return DockerDeployment(
        engine, Images(engine), cluster=cluster or f"test-{time.monotonic_ns()}", node=node, boot_argv=BOOT_ARGV,
        ulimits=Ulimits.within(engine.endpoint.engine_pid()), name=name,
    )  # fmt: skip


@pytest.fixture(scope="session")
def podman_url(engine: docker.DockerClient, host: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Podman of the test's own, with one small image, that may use the tests' registry; skipped only where none can be installed."""
    if shutil.which("podman") is None:
        if engines.may_have_engine():
            pytest.fail("this machine can have Podman, but it is not installed: run `make test`, which does that")
        pytest.skip("podman is not installed, and cannot be here (not Debian, or not root)")
    folder = tmp_path_factory.mktemp("podman")
    # Docker takes any registry on loopback without TLS, Podman only those that it is told.
    registries = folder / "registries.conf"
    registries.write_text(f'[[registry]]\nlocation = "{host}"\ninsecure = true\n')
    saved = folder / "image.tar"
    with saved.open("wb") as file:
        for chunk in engine.images.get(images.ALPINE).save(named=True):
            file.write(chunk)
    subprocess.run(["podman", "load", "-q", "-i", str(saved)], check=True, capture_output=True)
    socket = folder / "podman.sock"
    service = subprocess.Popen(
        ["podman", "system", "service", "-t", "0", f"unix://{socket}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**clean_environment(), "CONTAINERS_REGISTRIES_CONF": str(registries)},
        cwd=folder,  # its monitors leave a file there when a container runs out of memory
    )
    try:
        until(socket.exists, 20, "Podman's socket")
        yield f"unix://{socket}"
    finally:
        service.terminate()
        service.wait(10)


@pytest.fixture(scope="session")
def host(run_id: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`host:port` of a registry that wants a password."""
    folder = tmp_path_factory.mktemp("registry")
    with registry.serve(folder, free_port(), {**clean_environment(), MARKER: run_id}) as where:
        yield where


@pytest.fixture(scope="session")
def bridge() -> Iterator[str]:
    """A network of its own for the second engine, which would take the first one's."""
    name, net = f"rr{os.getpid()}", f"10.214.{os.getpid() % 200}"
    for words in (f"add {name} type bridge", f"set {name} up"):
        subprocess.run(["ip", "link", *words.split()], check=True, capture_output=True)
    try:
        subprocess.run(["ip", "addr", "add", f"{net}.1/24", "dev", name], check=True, capture_output=True)
        yield name
    finally:
        subprocess.run(["ip", "link", "del", name], check=True, capture_output=True)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the certificates of an authority, a server on loopback, and a client."""
    folder, authority = tmp_path_factory.mktemp("certificates"), trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for prefix, name in (("server-", "127.0.0.1"), ("", "node@example.org")):
        issued = authority.issue_cert(name)
        issued.cert_chain_pems[0].write_to_path(folder / f"{prefix}cert.pem")
        issued.private_key_pem.write_to_path(folder / f"{prefix}key.pem")
    return folder


@pytest.fixture(scope="session")
def remote_engine(
    engine: docker.DockerClient,
    bridge: str,
    certificates: Path,
    run_id: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Endpoint]:
    """A second engine, as of another host: it listens on loopback, speaks TLS, and has one small image."""
    folder, url = tmp_path_factory.mktemp("remote"), f"tcp://127.0.0.1:{free_port()}"
    tls = {"cacert": "ca.pem", "cert": "server-cert.pem", "key": "server-key.pem"}
    argv = [
        "dockerd",
        f"--host={url}",
        "--tlsverify",
        *(f"--tls{name}={certificates}/{file}" for name, file in tls.items()),
    ]
    own = {"data-root": "data", "exec-root": "run", "pidfile": "pid"}
    argv += [f"--bridge={bridge}", "--iptables=false", *(f"--{name}={folder}/{file}" for name, file in own.items())]
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, MARKER: run_id}
        )
    endpoint = Endpoint(url, certificates=certificates)
    try:
        until(lambda: _answers(endpoint, daemon), 60, f"the second engine, see {folder}/log:")
        with contextlib.closing(Engine(endpoint)) as remote:
            saved = b"".join(engine.images.get(images.ALPINE).save(named=True))
            remote.load_bytes(saved, Doing("load the test image"))
        yield endpoint
    finally:
        daemon.terminate()
        daemon.wait(30)
        shutil.rmtree(folder / "data", ignore_errors=True)  # what is mounted there still is not worth a failure


def _answers(endpoint: Endpoint, daemon: "subprocess.Popen[bytes]") -> bool:
    assert daemon.poll() is None, "the second engine ended"
    try:
        Engine(endpoint).close()
    except Unavailable:
        return False
    return True


@pytest.fixture(scope="session")
def make(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], tuple[AbstractDeployment, str]]]:
    """A function that returns the one deployment of a kind, and the image to use with it."""
    made: dict[str, tuple[AbstractDeployment, str]] = {}

    def get(kind: str) -> tuple[AbstractDeployment, str]:
        if kind in made:
            return made[kind]
        if kind == "local":
            made[kind] = local(tmp_path_factory.mktemp("local")), "any"
        elif kind == "podman":
            made[kind] = on_engine(request.getfixturevalue("podman_url"), kind), images.ALPINE
        elif kind == "remote":
            made[kind] = on_engine(request.getfixturevalue("remote_engine"), kind), images.ALPINE
        else:
            made[kind] = on_engine(request.getfixturevalue("engine_url"), kind), images.PYTHON
        return made[kind]

    yield get
    for deployment, _ in made.values():
        deployment.close()


def local(folder: Path, node: str = NODE) -> LocalDeployment:
    """Return a deployment that keeps its sandboxes in `folder`."""
    return LocalDeployment(folder, cluster="test", node=node, boot_argv=BOOT_ARGV, environ={})


@pytest.fixture(params=["docker", "podman", "remote", "local"])
def sandboxes(
    request: pytest.FixtureRequest, make: Callable[[str], tuple[AbstractDeployment, str]]
) -> Iterator[Sandboxes]:
    """Every kind of deployment in turn."""
    with contextlib.closing(_Cleared(*make(request.param))) as made:
        yield made


@pytest.fixture
def containers(make: Callable[[str], tuple[AbstractDeployment, str]]) -> Iterator[Sandboxes]:
    """The deployment on the machine's engine."""
    with contextlib.closing(_Cleared(*make("docker"))) as made:
        yield made


@dataclass(frozen=True)
class EngineStack:
    """A service with API keys on one kind of engine, and that engine's own client. Its image is the small one."""

    kind: str
    stack: Stack
    client: docker.DockerClient
    # What tells its sandboxes and images from another service's.
    mark: str = ""

    def api(self, key: str = "alpha") -> Api:
        """Return the API for the holder of a key: `alpha` is alice's, `beta` bob's, `root` an admin's."""
        return Api(self.stack.url, {"X-API-Key": f"{key}-key"})

    def containers(self, **options: object) -> list[docker.models.containers.Container]:
        """Return the containers of the service's node."""
        found: list[docker.models.containers.Container] = self.client.containers.list(
            filters={"label": f"rock.node={self.stack.node_id}"}, **options
        )
        return found

    def tags(self) -> list[str]:
        """Return the names of the engine's images, as callers spell them."""
        return [
            canonical(tag) for one in self.client.api.images() for tag in one.get("RepoTags") or () if "<" not in tag
        ]

    def own(self, kind: str) -> list[str]:
        """Return the names of the images that the node keeps for the service itself: `commit` or `fork`."""
        return [tag for tag in self.tags() if tag.startswith(own_repository(kind, self.mark, self.stack.node_id))]


@pytest.fixture(scope="session", params=["docker", "podman"])
def either(request: pytest.FixtureRequest, make_stack: Callable[..., Stack]) -> Iterator[EngineStack]:
    """A service on each engine in turn, whose node keeps one sandbox started."""
    url = request.getfixturevalue("engine_url" if request.param == "docker" else "podman_url")
    pooled = [{"image": images.ALPINE, "memory": "200m", "cpus": 0.2, "count": 1}]
    variables = {
        "DOCKER_HOST": url,
        "ROCK_API_KEYS": "alpha-key=alice,beta-key=bob,root-key=ops:admin",
        "ROCK_POOL__SANDBOXES": json.dumps(pooled),
        "ROCK_ENVHUB__ENABLE": "false",
        # Its workers are killed, and take seconds to be back where others use the machine, too.
        "ROCK_NODE__LOST_AFTER_SECONDS": "15",
    }
    stack = make_stack(runtime=request.param, variables=variables).start()
    with contextlib.closing(docker.DockerClient(base_url=url)) as client:
        made = EngineStack(request.param, stack, client)
        cluster = until(made.containers, 30, "the pooled sandbox")[0].labels[LABEL_CLUSTER]
        made = replace(made, mark=mark_of(cluster, stack.node_id))
        yield made
        stack.stop()
        left = [one.name for one in made.containers(all=True)], made.own("commit"), made.own("fork")
        assert not any(left), f"left at the engine: {left}"


class _Cleared(Sandboxes):
    def close(self) -> None:
        """End of the test: all is removed, and the deployment says so."""
        self.clear()
        assert list(self.deployment.list()) == []
