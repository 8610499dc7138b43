"""A16: a command's fault and the service's are never taken for each other: the same over HTTP, in the SDK and from GEM."""

import contextlib
import json
import os
import signal

import pytest

import rock
from rock import errors
from rock.actions import BashAction, CreateBashSessionRequest
from rock.sdk.gem import PREFIX as GEM
from rock.sdk.sandbox.config import SandboxConfig
from rock.sdk.sandbox.sync import Sandbox
from scripts import images
from tests.wire import Api, send, until

# What happens to a trajectory, and how it is told: code, kind, retryable. The table of docs/api.md.
TOLD = {
    "exits 1": (6000, "command_failed", False),
    "times out": (6000, "command_timeout", False),
    "out of memory": (6000, "out_of_memory", False),
    "container killed": (5000, "sandbox_gone", False),
    "node lost": (5000, "node_lost", True),
    "image missing": (5000, "image_not_found", False),
    "Redis down": (5000, "unavailable", True),
}
HOG = "kept = [bytes(1 << 20) for _ in iter(int, 1)]"
COMMANDS = {"exits 1": "exit 1", "times out": "sleep 98765", "out of memory": f"python3 -c '{HOG}'"}
ACTIONS = {"exits 1": "raise SystemError", "times out": "import time; time.sleep(98765)", "out of memory": HOG}
FINE = "pass"
# An environment that does what its action says.
MODULE = """
from gem.core import Env
from gem.envs.registration import register

class Obedient(Env):
    def reset(self, seed=None):
        if seed == 13:
            raise SystemError
        return "ready", {}
    def step(self, action):
        exec(action)
        return "done", 0.0, False, False, {}

register("test:Obedient", Obedient)
"""
MISSING = "rock-test/nowhere:1"


class OverHttp:
    """A session, by any HTTP client."""

    def __init__(self, url: str) -> None:
        self.api = Api(url)

    def make(self) -> str:
        self.box = self.api.start(memory="64m").open()
        return self.box.id

    def suffer(self, fault: str):
        command, limit = COMMANDS.get(fault, "true"), 0.5 if fault == "times out" else 60
        if fault == "image missing":
            reply = self.api.post("/start", image=MISSING, pull="never", memory="64m", cpus=0.1)
        else:
            # In a subshell: the shell itself lives on.
            reply = self.box.run(f"({command})", check="raise", timeout=limit)
        result = reply.result
        assert reply.status == (503 if fault == "Redis down" else 200) and result["failure_reason"] == reply.error
        return result["code"], result["kind"], result["retryable"]


class InSdk:
    """The SDK: an error is of the class of its kind."""

    def __init__(self, url: str) -> None:
        self.config = SandboxConfig(base_url=url, memory="64m", cpus=0.1, patience=0)

    def make(self) -> str:
        self.sandbox = Sandbox(self.config)
        self.sandbox.start()
        self.sandbox.create_session(CreateBashSessionRequest())
        return self.sandbox.sandbox_id

    def suffer(self, fault: str):
        command, limit = COMMANDS.get(fault, "true"), 0.5 if fault == "times out" else 60
        with pytest.raises(errors.RockError) as caught:
            if fault == "image missing":
                Sandbox(SandboxConfig(base_url=self.config.base_url, image=MISSING, pull="never")).start()
            self.sandbox.run_in_session(BashAction(command=f"({command})", timeout=limit))
        return told_by_class(caught.value)


class FromGem:
    """An environment: by its client, and the answer as it is."""

    def __init__(self, url: str) -> None:
        self.url = url

    def make(self) -> str:
        self.environment = rock.make("test:Obedient", base_url=self.url, patience=0)
        return self.environment.sandbox_id

    def suffer(self, fault: str):
        if fault in ACTIONS:
            self.environment.reset()
        with pytest.raises(errors.RockError) as caught:
            if fault == "image missing":
                rock.make("test:Nowhere", base_url=self.url)
            self.environment.step(ACTIONS.get(fault, FINE))
        if fault not in ACTIONS and fault != "image missing":
            body = json.dumps({"sandbox_id": self.environment.sandbox_id, "action": FINE}).encode()
            reply = send(self.url, "POST", f"{GEM}/step", body)
            assert reply.status == (503 if fault == "Redis down" else 500) and reply.error
            assert tuple(reply.body["info"][name] for name in ("code", "kind", "retryable")) == TOLD[fault]
        return told_by_class(caught.value)


def told_by_class(error: errors.RockError):
    assert type(error) is errors.KINDS[error.kind]
    return error.code, error.kind, error.retryable


@pytest.fixture(scope="module")
def obedient(engine):
    """An image with an environment that does as it is told."""
    name = f"rock-test/obedient-{os.getpid()}"
    write = f"open('/obedient.py', 'w').write({MODULE!r})"
    base = engine.containers.run(images.GEM, ["python3", "-c", write], detach=True)
    try:
        base.wait()
        base.commit(name, "1", changes="ENV PYTHONPATH=/")
    finally:
        base.remove()
    yield f"{name}:1"
    engine.images.remove(f"{name}:1")


@pytest.fixture(scope="module")
def stack(make_stack, engine_url, obedient):
    """A service of this module's own, whose node and Redis may be taken away."""
    variables = {"DOCKER_HOST": engine_url, "ROCK_GEM__STEP_SECONDS": "1", "ROCK_GEM__MEMORY": "128m"}
    made = make_stack(runtime="docker", variables=variables).start()
    own = {"modules": ["obedient"], "limit_cpus": 0.5, "docker_args": ["--network", "none"]}
    for name, image, spec in (("test:Obedient", obedient, own), ("test:Nowhere", MISSING, {"pull": "never"})):
        done = made.rock("envhub", "register", name, image, "--extra-spec", json.dumps(spec))
        assert done.returncode == 0, done.stderr
    yield made
    made.stop()


@pytest.fixture(scope="module")
def ways(stack):
    """Every way to a sandbox, each with a sandbox of its own: by the sandbox's id."""
    made = [OverHttp(stack.url), InSdk(stack.url), FromGem(stack.url)]
    found = {way.make(): way for way in made}
    yield found
    for sandbox_id in found:
        assert Api(stack.url).post("/stop", sandbox_id=sandbox_id).ok


@contextlib.contextmanager
def held(stack, *names):
    """Stop the service's supervisor, and then processes, which it would start again; let them go on at the end."""
    before = stack.pids()
    pids = [before[name].pid for name in ("supervisor", *names)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield before
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)


def container(engine, sandbox_id):
    (found,) = engine.containers.list(filters={"label": f"rock.sandbox={sandbox_id}"})
    return found


def state_of_node(stack) -> str:
    reply = Api(stack.url).get("/nodes")
    return reply.result["nodes"][0]["state"] if reply.ok else reply.error


@pytest.fixture
def fault(request, stack, ways, engine):
    """Something that goes wrong, for as long as the test lasts."""
    with contextlib.ExitStack() as until_the_end:
        if request.param == "container killed":
            for sandbox_id in ways:
                container(engine, sandbox_id).kill()
        if request.param == "node lost":
            until_the_end.enter_context(held(stack, "worker", "lifecycle"))
            until(lambda: state_of_node(stack) == "lost", what="the node's loss")
        if request.param == "Redis down":
            before = until_the_end.enter_context(held(stack))
            os.kill(before["redis"].pid, signal.SIGKILL)
        yield request.param
    until(lambda: state_of_node(stack) == "active", what="the node's return")


def test_A16_no_two_faults_are_told_alike():
    assert len(set(TOLD.values())) == len(TOLD) == 7


def test_an_entrys_limits_are_its_environments(ways, engine):
    (sandbox_id,) = (one for one, way in ways.items() if isinstance(way, FromGem))
    host = container(engine, sandbox_id).attrs["HostConfig"]
    assert (host["NanoCpus"], host["NetworkMode"]) == (500_000_000, "none")


def test_A09_an_environment_whose_reset_raises_is_gone_at_once(stack, engine):
    environment = rock.make("test:Obedient", base_url=stack.url)
    with pytest.raises(errors.CommandFailed, match="SystemError.*make another one"):
        environment.reset(seed=13)
    label = f"rock.sandbox={environment.sandbox_id}"
    until(lambda: not engine.containers.list(all=True, filters={"label": label}), what="the end of its container")
    with pytest.raises(errors.NotRunning):
        environment.step(FINE)
    environment.close()


# What does not come back is last: the environment's process, the containers.
LAST = ("out of memory", "container killed")


@pytest.mark.parametrize("fault", [*(fault for fault in TOLD if fault not in LAST), *LAST], indirect=True)
def test_A16_a_fault_is_told_the_same_on_every_way(ways, fault):
    assert {type(way).__name__: way.suffer(fault) for way in ways.values()} == dict.fromkeys(
        ("OverHttp", "InSdk", "FromGem"), TOLD[fault]
    )
