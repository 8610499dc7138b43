"""`rock admin reload`: what is checked is what the service would load, and it is told only when it can take it."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from app import running
from app.config import load
from app.reloading import CannotReload, Reloaded, reload
from app.running import Pid, Running
from app.sections import ConfigError
from tests.wire import until

GOOD = "auth: {keys: [{key: a-long-key, owner: ann}]}\n"


class Service:
    """A record of a service whose API is a process that the signal ends, as it ends a gunicorn that has no handlers yet."""

    def __init__(self, folder: Path) -> None:
        self.file, self.data_dir = folder / "rock.yml", str(folder / "data")
        self.api: subprocess.Popen[bytes] | None = None
        Path(self.data_dir).mkdir()

    def run(self, text: str = GOOD, phase: str = "running", env: str = "local", **variables: str) -> "Service":
        if text:
            self.file.write_text(text)
            variables = {"ROCK_CONFIG": str(self.file), **variables}
        self.api = subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], **variables})
        started = running.start_time(self.api.pid)
        assert started is not None
        pid = Pid("api", self.api.pid, started)
        until(lambda: running.environment(pid), 10, "the program, which the kernel is still loading")
        me = running.myself("supervisor")
        running.write(self.data_dir, Running(me, "admin", env, "http://127.0.0.1:1", "n", phase, (pid,)))
        return self

    def reload(self) -> Reloaded:
        return reload(load(environ={"ROCK_DATA_DIR": self.data_dir}))

    def was_told(self) -> bool:
        assert self.api
        try:
            return self.api.wait(0.2) == -signal.SIGHUP
        except subprocess.TimeoutExpired:
            return False


@pytest.fixture
def service(tmp_path):
    made = Service(tmp_path)
    yield made
    if made.api:
        made.api.kill()
        made.api.wait()


def test_a_service_that_runs_is_told(service):
    assert service.run().reload() == Reloaded(("api",)) and service.was_told()


def test_without_a_service_nobody_is_told(service):
    assert service.reload() == Reloaded()


@pytest.mark.parametrize("phase", ["starting", "stopping"])
def test_a_service_that_is_not_up_is_left_alone(service, phase):
    with pytest.raises(CannotReload, match=phase):
        service.run(phase=phase).reload()
    assert not service.was_told()


def test_a_service_of_another_environment_is_left_alone(service):
    with pytest.raises(CannotReload, match="--env prod"):
        service.run(env="prod").reload()
    assert not service.was_told()


@pytest.mark.parametrize(
    ("text", "variables", "said"),
    [
        ("auth: {keyz: []}\n", {}, "keyz"),
        (GOOD, {"ROCK_SERVER__PROT": "1"}, "prot"),
        ("auth: {keys: []}\n", {"ROCK_HOST": "0.0.0.0"}, "ROCK_API_KEYS"),
    ],
)
def test_what_the_service_could_not_use_is_not_handed_to_it(service, text, variables, said):
    """Though the command's own configuration, with another file and other variables, is in order."""
    with pytest.raises(ConfigError, match=said):
        service.run(text, **variables).reload()
    assert not service.was_told()


def test_a_file_that_has_gone_is_missed(service):
    service.run().file.unlink()
    with pytest.raises(ConfigError, match="no such file"):
        service.reload()
    assert not service.was_told()


def test_without_a_file_there_is_nothing_to_read_anew(service):
    with pytest.raises(CannotReload, match="ROCK_API_KEYS.*restart"):
        service.run("", ROCK_API_KEYS="k=ann").reload()
    assert not service.was_told()


@pytest.mark.parametrize("name", ["ROCK_API_KEYS", "ROCK_AUTH__KEYS"])
def test_keys_of_the_environment_are_said_to_need_a_restart(service, name):
    done = service.run(**{name: "another-key=bob"}).reload()
    assert done.told == ("api",) and name in done.doubt and "restart" in done.doubt and "another-key" not in done.doubt
    assert service.was_told()
