"""The synchronous twin has every verb of the asynchronous one, with the same parameters, and works."""

import inspect
import threading

import pytest

from rock import errors
from rock.actions import Command
from rock.sdk.sandbox import client, files, process, sync
from rock.sdk.sandbox.config import SandboxConfig
from tests.unit.sdk.fake_service import started, success

PAIRS = [(client.Sandbox, sync.Sandbox), (files.FileSystem, sync.FileSystem), (process.Process, sync.Process)]
INTERNAL = {"send", "call", "listen", "required_id"}
"""What the parts of the asynchronous Sandbox use among themselves."""


def verbs(cls):
    """Return the public methods of a class by name."""
    return {name: member for name, member in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("_")}


@pytest.mark.parametrize(("asynchronous", "synchronous"), PAIRS)
def test_the_same_verbs_with_the_same_parameters(asynchronous, synchronous):
    theirs = {name: verb for name, verb in verbs(asynchronous).items() if name not in INTERNAL}
    ours = verbs(synchronous)
    assert set(theirs) == set(ours)
    for name, verb in theirs.items():
        assert inspect.signature(verb).parameters == inspect.signature(ours[name]).parameters, name
        assert verb.__doc__ == ours[name].__doc__


def test_it_works_from_several_threads(service):
    service.on("/start", started())
    service.on("/stop", success("stopped"))
    service.on("/execute", success({"stdout": "hi", "stderr": "", "exit_code": 0}))
    with sync.Sandbox(SandboxConfig(base_url=service.url)) as sandbox:
        seen = []
        threads = [
            threading.Thread(target=lambda: seen.append(sandbox.execute(Command(command="echo hi")).stdout))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == ["hi"] * 8
    assert len(service.requests("/stop")) == 1


def test_forks_are_synchronous_too(service):
    service.on("/start", started())
    service.on("/stop", success("stopped"))
    service.on("/sandboxes/s1/fork", success({"sandboxes": [started("f1")["result"]]}))
    with sync.Sandbox(SandboxConfig(base_url=service.url)) as sandbox:
        (made,) = sandbox.fork()
        assert isinstance(made, sync.Sandbox) and made.sandbox_id == "f1"
        made.stop()
    assert [seen.body["sandbox_id"] for seen in service.requests("/stop")] == ["f1", "s1"]


def test_errors_are_the_same(service):
    service.on("/start", errors.ImageNotFound("no such image").to_envelope())
    with pytest.raises(errors.ImageNotFound, match="no such image"):
        sync.Sandbox(SandboxConfig(base_url=service.url)).start()
