"""What is written down of a sandbox whose container has ended by itself. The store is real, the engine is not."""

import time
from types import SimpleNamespace

import pytest

from app.records import State
from workers.agent import Coroner
from workers.deployments.abstract import ContainerState


@pytest.mark.parametrize(
    ("state", "event", "says"),
    [
        (
            ContainerState(exists=True, exit_code=137, oom_killed=True),
            "out_of_memory",
            "it ran out of memory, and its container ended",
        ),
        (ContainerState(exists=True, exit_code=3), "container_gone", "its container ended with exit code 3"),
        (ContainerState(exists=False), "container_gone", "its container was removed"),
    ],
)
def test_status_and_callers_are_told_how_it_ended(world, state, event, says):
    world.node()
    world.running(owner="alice")
    deployment = SimpleNamespace(inspect=lambda sandbox_id: state)
    error = Coroner(deployment, world.stores.sandboxes, time.time).examine("s1")
    record = world.stores.sandboxes.get("s1")
    assert error.kind == "sandbox_gone" and says in error.message
    assert (record.state, record.history[-1]["event"]) == (State.STOPPED, event) and says in record.reason
