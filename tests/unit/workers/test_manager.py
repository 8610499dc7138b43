"""Which deployment a node gets, and the sentence that says why."""

from pathlib import Path

import pytest

from rock.errors import BadRequest, Unavailable
from workers.deployments import manager
from workers.deployments.local import LocalDeployment
from workers.deployments.manager import DeploymentManager


@pytest.fixture(autouse=True)
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "DOCKER_SOCKETS", ("/nonexistent/docker.sock",))
    monkeypatch.setattr(manager, "PODMAN_SOCKETS", ("/nonexistent/podman.sock",))


def made(tmp_path: Path, docker_host: str = "") -> DeploymentManager:
    return DeploymentManager("c", "n", ["bash"], tmp_path, docker_host=docker_host, user_id=999_999, timeout=2)


def test_without_an_engine_auto_is_local_and_says_so(tmp_path):
    choice = made(tmp_path).select("auto")
    assert isinstance(choice.deployment, LocalDeployment)
    assert not choice.deployment.isolation
    assert "NO isolation" in choice.reason
    assert "no engine's socket is there" in choice.reason


def test_a_configured_engine_that_does_not_answer_is_named(tmp_path):
    url = f"unix://{tmp_path}/none.sock"
    assert url in made(tmp_path, url).select("auto").reason
    with pytest.raises(Unavailable, match=r"none\.sock"):
        made(tmp_path, url).select("docker")


@pytest.mark.parametrize("kind", ["docker", "podman"])
def test_an_engine_asked_for_must_be_there(tmp_path, kind):
    with pytest.raises(Unavailable, match=kind):
        made(tmp_path).select(kind)


def test_a_remote_engine_needs_an_address(tmp_path):
    with pytest.raises(BadRequest, match="docker_host"):
        made(tmp_path).select("remote")


def test_an_unknown_type_is_refused(tmp_path):
    with pytest.raises(BadRequest, match="runc"):
        made(tmp_path).select("runc")


def test_local_can_be_asked_for(tmp_path):
    assert made(tmp_path).select("local").reason.startswith("local, as configured")
