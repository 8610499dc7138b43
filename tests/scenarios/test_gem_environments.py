"""GEM on real sandboxes, with the real gem-llm: an episode, leases, and what goes wrong in there."""

import json
import socket
import threading
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from scripts import gem, images
from tests.wire import Api, Box, Reply, send, until

PREFIX = "/apis/v1/envs/gem"
ENV = "game:Sokoban-v0-easy"


@dataclass
class Gem:
    """GEM's routes of a service."""

    url: str

    def post(self, verb: str, status: int = 200, **fields):
        reply = self.raw(verb, **fields)
        assert reply.status == status, reply.body
        return reply.body if status == 200 else reply.body["error"]

    def raw(self, verb: str, **fields) -> Reply:
        return send(self.url, "POST", f"{PREFIX}/{verb}", json.dumps(fields).encode())


@pytest.fixture(scope="module")
def gems(stack) -> Gem:
    """The service's GEM; its EnvHub says where gem-llm is."""
    spec = {"python": str(gem.ensure())} if stack.runtime == "local" else None
    entry = {"env_name": ENV, "image": images.GEM, "extra_spec": spec}
    until(lambda: "envhub" in stack.pids(), what="EnvHub's start")
    registered = until(lambda: _registered(stack.envhub_url, entry), what="EnvHub's answer")
    assert registered.status == 200, registered.body
    return Gem(stack.url)


def _registered(url: str, entry: dict) -> Reply | None:
    try:
        return send(url, "POST", "/env/register", json.dumps(entry).encode())
    except ConnectionError:
        return None


@pytest.fixture
def sokoban(gems):
    """An environment of the test's own: its sandbox's id."""
    sandbox_id = gems.post("make", env_id=ENV)["sandbox_id"]
    yield sandbox_id
    gems.post("close", sandbox_id=sandbox_id)


def test_an_episode(gems, api: Api, sokoban):
    assert "reset" in gems.post("step", 400, sandbox_id=sokoban, action="\\boxed{up}")
    first = gems.post("reset", sandbox_id=sokoban, seed=42)
    assert "Sokoban" in first["observation"] and "P" in first["info"]["suffix"]
    moved = gems.post("step", sandbox_id=sokoban, action="\\boxed{up}")
    assert set(moved) == {"observation", "reward", "terminated", "truncated", "info"}
    assert (moved["reward"], moved["terminated"], moved["truncated"]) == (0.0, False, False)
    assert moved["info"]["suffix"] != first["info"]["suffix"]
    assert gems.post("reset", sandbox_id=sokoban, seed=42)["info"] == first["info"], "a seed makes it repeatable"
    nonsense = gems.post("step", sandbox_id=sokoban, action="'; $(touch pwned)\n\0\ud800")
    assert nonsense["terminated"] and "not valid" in nonsense["observation"]
    raised = gems.raw("step", sandbox_id=sokoban, action={"a": 1})
    assert raised.status == 500 and raised.body["kind"] == "command_failed" and "TypeError" in raised.body["error"]
    assert ENV in gems.post("list", sandbox_id=sokoban)["env_id"]

    status = api.get("/get_status", sandbox_id=sokoban).result
    assert status["metadata"] == {"gem_env": ENV}
    assert gems.post("close", sandbox_id=sokoban) == {"sandbox_id": sokoban}
    assert sokoban in gems.post("step", 404, sandbox_id=sokoban, action="x")
    assert sokoban in gems.post("reset", 404, sandbox_id=sokoban)
    assert gems.post("close", sandbox_id=sokoban) == {"sandbox_id": sokoban}


def test_an_ordinary_sandbox_holds_no_environment(gems, shared: Box):
    assert "holds no environment" in gems.post("step", 404, sandbox_id=shared.id, action="x")


def test_a_call_sent_again_steps_once(gems, sokoban):
    gems.post("reset", sandbox_id=sokoban, seed=1)
    body = json.dumps({"sandbox_id": sokoban, "action": "\\boxed{up}"}).encode()
    seen = [send(gems.url, "POST", f"{PREFIX}/step", body, X_Request_Id=f"again-{sokoban}").body for _ in range(3)]
    assert seen[0] == seen[1] == seen[2] and "turn 1" in seen[0]["observation"]
    assert "turn 2" in gems.post("step", sandbox_id=sokoban, action="\\boxed{up}")["observation"]


def test_A09_a_caller_who_leaves_a_make_leaves_no_sandbox(gems, api: Api):
    """It has no request id, so nobody can ask for that environment again."""

    def mine(**query):
        return {row["sandbox_id"] for row in api.get("/sandboxes", image=images.GEM, **query).result["items"]}

    before, body, parts = mine(), json.dumps({"env_id": ENV}).encode(), urlsplit(gems.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as caller:
        head = f"POST {PREFIX}/make HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        caller.sendall(head.encode() + body)
        (made,) = until(lambda: mine() - before, what="the start")
    until(lambda: not api.get("/is_alive", sandbox_id=made).result["is_alive"], what="its end")


def test_one_that_hangs_can_be_closed(gems, api: Api, sokoban):
    gems.post("reset", sandbox_id=sokoban)
    box, seen = Box(api, sokoban), []
    pid = box.output("echo $ROCK_GEM_PID", session="rock-gem")
    box.execute(["kill", "-STOP", pid])
    caller = threading.Thread(target=lambda: seen.append(gems.raw("step", sandbox_id=sokoban, action="x")))
    caller.start()
    until(
        lambda: int(
            box.execute(
                "ls $ROCK_SANDBOX_DIR/rock-gem-*/*.request /tmp/rock-gem-*/*.request 2>/dev/null | wc -l", shell=True
            ).result["stdout"]
        )
    )
    begun = time.monotonic()
    gems.post("close", sandbox_id=sokoban)
    caller.join(20)
    assert time.monotonic() - begun < 20 and seen[0].status == 500 and seen[0].body["kind"] == "sandbox_gone"


def test_one_that_is_killed_says_so(gems, api: Api, sokoban):
    gems.post("reset", sandbox_id=sokoban)
    box = Box(api, sokoban)
    box.execute(["kill", "-KILL", box.output("echo $ROCK_GEM_PID", session="rock-gem")])
    gone = gems.raw("step", sandbox_id=sokoban, action="x")
    assert gone.status == 500 and "ended" in gone.body["error"] and gone.body["kind"] == "internal"
