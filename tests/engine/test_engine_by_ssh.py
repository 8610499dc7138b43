"""The engine of another host, reached by SSH: the system's own client, a real server on loopback. A few verbs of each kind; all of them
are tested over the other ways (test_deployments)."""

import contextlib
import os
import threading

import pytest

from rock.errors import SandboxGone, Unavailable
from scripts import sshd
from scripts.images import PYTHON
from tests.engine.conftest import _Cleared, on_engine
from tests.engine.test_deployments import printed, within
from tests.engine.test_ports import SAYS, listen, said
from tests.service_stack import MARKER, clean_environment, free_port
from tests.wire import Api, until
from workers.deployments.abstract import ContainerEvent
from workers.deployments.docker_args import EngineOptions


@pytest.fixture(scope="module")
def address(engine_url, run_id, tmp_path_factory):
    """`ssh://…` of a server whose users find the engine; an `ssh` that may log in there is the first in PATH."""
    folder, port = tmp_path_factory.mktemp("sshd"), free_port()
    environ = {**clean_environment(), MARKER: run_id}
    with (
        sshd.serve(folder, port, environ, {"DOCKER_HOST": engine_url}) as client,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("PATH", f"{client}:{os.environ['PATH']}")
        yield f"ssh://root@127.0.0.1:{port}"


@pytest.fixture(scope="module")
def deployment(address):
    with contextlib.closing(on_engine(address, "remote")) as made:
        yield made


@pytest.fixture
def sandboxes(deployment):
    with contextlib.closing(_Cleared(deployment, PYTHON)) as made:
        yield made


def test_a_sandbox_lives_and_ends(sandboxes):
    seen: list[ContainerEvent] = []
    stop = threading.Event()
    watcher = threading.Thread(target=sandboxes.deployment.watch, args=(seen.append, stop))
    watcher.start()
    sandbox_id = sandboxes.start()
    first = sandboxes.hand(sandbox_id)
    assert first.ask("x=kept; echo data >/file; echo hello") == "hello\n"
    first.stream.close()
    again = sandboxes.hand(sandbox_id, fresh=False)
    assert again.ask("echo $x") == "kept\n"
    assert len(again.ask("printf '%0200000d\\n' 1")) == 200_001
    assert printed(sandboxes, sandbox_id, "cat /file; echo err >&2") == "data\n"
    assert sandboxes.deployment.statistics(sandbox_id).mem > 0
    sandboxes.deployment.stop(sandbox_id)
    assert within(10, lambda: any((one.sandbox_id, one.event) == (sandbox_id, "die") for one in seen))
    assert sandboxes.deployment.restart(sandbox_id).running
    assert printed(sandboxes, sandbox_id, "cat /file") == "data\n"
    sandboxes.deployment.remove(sandbox_id)
    with pytest.raises(SandboxGone):
        sandboxes.deployment.attach(sandbox_id)
    stop.set()
    watcher.join(5)
    assert not watcher.is_alive()


def test_a_port_is_reached_by_a_process_in_the_container(sandboxes):
    sandbox_id = sandboxes.start(options=EngineOptions(network="none"))
    listen(sandboxes, sandbox_id)
    assert until(lambda: said(sandboxes, sandbox_id), 20, "the program") == SAYS


def test_the_service_runs_on_it(address, make_stack):
    variables = {"DOCKER_HOST": address, "PATH": os.environ["PATH"], "ROCK_ENVHUB__ENABLE": "false"}
    stack = make_stack(runtime="remote", variables=variables).start()
    box = Api(stack.url).start()
    assert box.open().output("cd /tmp; pwd") == "/tmp"
    assert box.write("/file", "data").ok and box.execute(["cat", "/file"]).result["stdout"] == "data"
    box.stop()
    stack.stop()


def test_a_host_that_lets_nobody_in_is_told(address, monkeypatch):
    monkeypatch.setenv("PATH", os.environ["PATH"].partition(":")[2])  # the client without the key
    with pytest.raises(Unavailable, match="ssh://"):
        on_engine(address, "remote")
