"""The whole path in real containers, on every kind of image the service promises to work with."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from rock import errors
from rock.actions import BashAction, CloseBashSessionRequest, Command, CreateBashSessionRequest
from rock.sdk.sandbox.config import SandboxConfig
from rock.sdk.sandbox.sync import Sandbox
from scripts import images


@contextlib.contextmanager
def sandbox_of(server, image, **options):
    config = SandboxConfig(image=image, base_url=server.url, memory="256m", cpus=0.2, **options)
    with Sandbox(config) as sandbox:
        yield sandbox


@pytest.mark.parametrize("image", [images.PYTHON, images.DEBIAN, images.ALPINE])
def test_the_smoke_test_in_a_container(engine_server, engine, image):
    with sandbox_of(engine_server, image) as sandbox:
        container = next(
            one
            for one in engine.containers.list(ignore_removed=True)
            if one.labels.get("rock.sandbox") == sandbox.sandbox_id
        )
        assert container.labels["rock.node"] == engine_server.node_id
        sandbox.create_session(CreateBashSessionRequest(session="bash-1"))
        assert sandbox.arun("echo Hello Rock", session="bash-1").output == "Hello Rock"
        assert sandbox.arun("cd /tmp; x=1; pwd", session="bash-1").output == "/tmp"
        assert sandbox.arun("echo $x $PWD", session="bash-1").output == "1 /tmp"
        seen = sandbox.execute(Command(command=["sh", "-c", "echo out; echo err >&2; exit 3"]))
        assert (seen.stdout, seen.stderr, seen.exit_code) == ("out\n", "err\n", 3)
    left = [
        one
        for one in engine.containers.list(all=True, ignore_removed=True)
        if one.labels.get("rock.sandbox") == sandbox.sandbox_id
    ]
    assert not [one.name for one in left if one.status == "running"]


@pytest.mark.parametrize("image", [images.PYTHON, images.DEBIAN, images.ALPINE])
def test_S21_sessions_of_other_users_in_every_image(engine_server, image):
    with sandbox_of(engine_server, image) as sandbox:
        for user, who in (("nobody", "65534:65534 nobody"), ("1000:1000", "1000:1000 1000")):
            sandbox.create_session(CreateBashSessionRequest(session=user, remote_user=user))
            assert sandbox.arun('echo "$(id -u):$(id -g) $USER"', session=user).output == who
            assert sandbox.arun("echo out >/dev/stdout; echo err >&2", session=user).output == "out\nerr"
            with pytest.raises(errors.CommandTimeout):
                sandbox.run_in_session(BashAction(command="(sleep 98765 &) ; sleep 98765", session=user, timeout=0.5))
            left = "ps -o args 2>/dev/null | grep -c '[9]8765'"
            assert sandbox.arun(left, session=user).output == "0"
            ended = sandbox.run_in_session(BashAction(command="exit 3", session=user, check="silent"))
            assert ended.exit_code == 3
            assert sandbox.arun("id -u; pwd", session=user).output.split()[0] == who.partition(":")[0]
        with pytest.raises(errors.BadRequest, match="nope"):
            sandbox.create_session(CreateBashSessionRequest(session="s", remote_user="nope"))


def test_an_image_without_bash_fails_with_a_reason(engine_server):
    with pytest.raises(errors.RockError, match="bash"), sandbox_of(engine_server, images.NOBASH):
        pass


def test_an_image_that_does_not_exist_fails_with_a_reason(engine_server):
    with pytest.raises(errors.ServiceFault, match="rock-test/nothing"):
        with sandbox_of(engine_server, "rock-test/nothing:1", pull="never"):
            pass


def test_the_service_says_that_it_runs_containers(engine_server):
    assert engine_server.get("/healthz")["runtime"] == ["docker"]


def test_A15_arun_keeps_one_shell_for_all_its_commands(engine_server):
    with sandbox_of(engine_server, images.PYTHON) as sandbox:

        def shells() -> int:
            return int(sandbox.execute(Command(command="cat /proc/[0-9]*/comm | grep -c bash")).stdout)

        sandbox.arun("true")
        before = shells()
        assert {sandbox.arun(f"echo {number}").output for number in range(200)} == {str(one) for one in range(200)}
        assert shells() <= before + 1


def test_a_container_cannot_see_the_host(engine_server):
    with sandbox_of(engine_server, images.PYTHON) as sandbox:
        assert sandbox.execute(Command(command=["test", "-e", engine_server.data_dir.as_posix()])).exit_code == 1
        assert sandbox.execute(Command(command=["test", "-e", "/var/run/docker.sock"])).exit_code == 1


def test_sessions_that_are_ended_at_once_do_not_stop_each_other(engine_server):
    """Whoever ends one stops everything in the container for a moment; two at the same moment must not stop each other for good."""
    number = 8
    with sandbox_of(engine_server, images.DEBIAN, limit_cpus=2) as sandbox, ThreadPoolExecutor(number) as pool:

        def life(place: int) -> int:
            session = f"s{place}"
            sandbox.create_session(CreateBashSessionRequest(session=session))
            with pytest.raises(errors.CommandTimeout):
                sandbox.run_in_session(BashAction(command="sleep 9876", session=session, timeout=0.05))
            assert sandbox.arun("echo $((1 + 1))", session=session).output == "2"
            sandbox.close_session(CloseBashSessionRequest(session=session))
            return place

        for _ in range(4):
            assert list(pool.map(life, range(number))) == list(range(number))
