"""Nodes whose clocks are an hour ahead of, or behind, the rest of the service: leases end when they should."""

import time
from datetime import datetime

import pytest

from tests.service.test_nodes import SMALL, Node, states
from tests.wire import Api, until

HOUR = 3600
# Read by Python when it starts, before anything of ours: the process believes in another time.
SHIFT = """
import time
_true = time.time
time.time = lambda: _true() + {seconds}
"""


@pytest.fixture(scope="module")
def stack(make_stack):
    """A service whose API, Redis and own node have the true time; that node takes no sandboxes."""
    made = make_stack().start()
    assert Api(made.url).post(f"/nodes/{made.node_id}/drain").ok
    yield made
    made.stop()


@pytest.fixture(params=[HOUR, -HOUR], ids=["ahead", "behind"])
def node(request, stack, make_stack, tmp_path):
    """A node that is wrong about the time."""
    (tmp_path / "sitecustomize.py").write_text(SHIFT.format(seconds=request.param))
    variables = {"ROCK_REDIS_URL": stack.redis_url, "ROCK_BASE_URL": stack.url, "PYTHONPATH": str(tmp_path)}
    made, api = Node(make_stack(variables={**variables, "ROCK_NODE__SWEEP_SECONDS": "0.3"})).start(), Api(stack.url)
    try:
        until(lambda: states(api).get(made.id) == "active", 30, "its joining")
        yield made
    finally:
        made.stop()
        api.post(f"/nodes/{made.id}/drain")


def test_leases_end_when_they_should(stack, node):
    api = Api(stack.url)
    brief, long = api.start(**SMALL, auto_clear_seconds=1), api.start(**SMALL, auto_clear_seconds=HOUR / 2)
    began, shell = time.time(), long.open()
    assert shell.run("echo here").result["output"] == "here"
    status = api.get("/get_status", sandbox_id=long.id).result
    assert status["is_alive"] and abs(moment(status["start_time"]) - began) < 60
    assert abs(moment(status["auto_stop_time"]) - began - HOUR / 2) < 60

    def listed(box):
        return next(one for one in api.get("/sandboxes").result["items"] if one["sandbox_id"] == box.id)

    until(lambda: listed(brief)["state"] == "stopped", 20, "the end of the brief lease")
    ended = listed(brief)
    assert ended["state_history"][-1]["event"] == "lease_expired"
    assert abs(moment(ended["stop_time"]) - time.time()) < 60
    assert listed(long)["state"] == "running", "the same look at leases left it alone"
    assert long.post("/stop").ok


def moment(text):
    """Return a time of the wire in epoch seconds."""
    return datetime.fromisoformat(text).timestamp()
