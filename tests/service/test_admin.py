"""`rock admin` on the real service: one start, one stop, nothing left, and clear refusals."""

import http.client
import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from app import running
from tests.service_stack import ROOT, processes_with


@pytest.fixture
def stack(make_stack):
    """A service of this test's own, not started yet."""
    return make_stack()


def until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_start_runs_the_whole_set_and_stop_leaves_nothing(stack):
    assert stack.rock("admin", "status").returncode == 1
    nothing = stack.rock("admin", "reload")
    assert nothing.returncode == 1 and "nothing runs" in nothing.stderr
    begun = stack.rock("admin", "start", "--detach")
    assert begun.returncode == 0, begun.stderr
    assert stack.url in begun.stdout and stack.node_id in begun.stdout and "local" in begun.stdout
    pids = stack.pids()
    assert set(pids) == {"supervisor", "redis", "api", "worker", "lifecycle", "beat", "envhub"}
    assert running.environment(pids["api"])["ROCK_CONFIG"] == str(ROOT / "conf" / "rock-test.yml"), "the very file"

    status = stack.rock("admin", "status", "--json")
    assert status.returncode == 0
    found = json.loads(status.stdout)
    assert found["running"] and found["url"] == stack.url and found["health"]["nodes"]["alive"] == 1

    ended = stack.rock("admin", "stop")
    assert ended.returncode == 0 and stack.url in ended.stdout
    assert not [one for one in pids.values() if one.is_alive()]
    assert not [line for line in processes_with(stack.run_id) if str(stack.data_dir) in line]
    assert stack.rock("admin", "status").returncode == 1
    assert stack.rock("admin", "stop").returncode == 0, "stopping twice is no error"


def test_a_second_start_is_refused_and_harms_nothing(server, make_stack):
    before = server.pids()
    again = server.rock("admin", "start", "--detach")
    assert again.returncode != 0
    assert "already runs" in again.stderr and server.url in again.stderr and "rock admin stop" in again.stderr

    other = make_stack(port=server.port).rock("admin", "start", "--detach")
    assert other.returncode != 0
    assert str(server.port) in other.stderr and "--port" in other.stderr
    assert server.pids() == before
    assert server.get("/healthz")["redis"]


def test_X01_a_public_address_needs_keys(stack):
    refused = stack.rock("admin", "start", "--detach", "--host", "0.0.0.0")
    assert refused.returncode != 0
    assert "ROCK_API_KEYS" in refused.stderr and "0.0.0.0" in refused.stderr
    assert running.read(str(stack.data_dir)) is None


def test_X01_every_port_is_on_loopback_by_default(server):
    """Of the API, EnvHub, Redis and the node's gate: whatever its processes listen on."""
    found = set()
    for one in server.pids().values():
        for family in ("", "6"):
            lines = [line.split() for line in Path(f"/proc/{one.pid}/net/tcp{family}").read_text().splitlines()[1:]]
            open_here = {os.readlink(link) for link in Path(f"/proc/{one.pid}/fd").iterdir() if link.is_symlink()}
            found |= {line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in open_here}
    ports = {int(address.partition(":")[2], 16) for address in found}
    assert {server.port, server.redis_port, server.envhub_port} <= ports and len(ports) >= 4
    assert {address.partition(":")[0] for address in found} == {"0100007F"}, found


def test_X01_a_public_address_is_refused_by_the_procfile_too(make_stack):
    refused = make_stack(variables={"ROCK_HOST": "0.0.0.0"}).rock("proc", "api")
    assert refused.returncode != 0 and "ROCK_API_KEYS" in refused.stderr


def test_the_procfile_starts_no_second_redis_on_the_same_data(server):
    """It would destroy the append-only file of the first."""
    refused = server.rock("proc", "redis")
    assert refused.returncode != 0 and "already runs" in refused.stderr
    assert server.get("/healthz")["redis"]


def test_role_proxy_needs_a_redis_elsewhere(stack):
    refused = stack.rock("admin", "start", "--detach", "--role", "proxy")
    assert refused.returncode != 0 and "ROCK_REDIS_URL" in refused.stderr


def test_role_proxy_is_the_api_alone(server, make_stack):
    proxy = make_stack(variables={"ROCK_REDIS_URL": server.redis_url}).start("--role", "proxy")
    assert set(proxy.pids()) == {"supervisor", "api"}
    assert proxy.get("/healthz")["nodes"]["alive"] == 1, "it sees the node of the other service"
    proxy.stop()


@pytest.mark.parametrize("name", ["api", "worker", "lifecycle", "redis", "beat", "envhub"])
def test_a_process_that_dies_is_started_again(server, name):
    before = server.pids()
    os.kill(before[name].pid, signal.SIGKILL)
    until(lambda: name in (now := server.pids()) and now[name].pid != before[name].pid)
    until(lambda: (health(server) or {}).get("redis"))
    others = {other: pid for other, pid in server.pids().items() if other != name}
    assert others == {other: pid for other, pid in before.items() if other != name}


def health(server):
    try:
        return server.get("/healthz")
    except OSError:
        return None


def test_a_killed_supervisor_takes_its_children_along_and_can_be_started_again(stack):
    stack.start()
    pids = stack.pids()
    os.kill(pids["supervisor"].pid, signal.SIGKILL)
    until(lambda: not [one for one in pids.values() if one.is_alive()], 40)
    assert stack.rock("admin", "status").returncode == 1
    stack.start()
    assert stack.pids()["supervisor"] != pids["supervisor"]


def test_a_stale_record_is_never_taken_for_a_process(stack):
    """A pid that now belongs to somebody else (here: to us) must not be signalled."""
    me = running.myself("supervisor")
    stale = running.Pid("supervisor", me.pid, me.started - 1)
    record = running.Running(stale, "admin", "test", stack.url, stack.node_id, "running", (stale,))
    running.write(str(stack.data_dir), record)
    assert stack.rock("admin", "status").returncode == 1
    stack.stop()
    assert me.is_alive()


def test_a_start_that_fails_says_why_and_leaves_nothing(make_stack):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        stack = make_stack(redis_port=taken.getsockname()[1])
        refused = stack.rock("admin", "start", "--detach")
    assert refused.returncode != 0 and "ROCK_REDIS__PORT" in refused.stderr
    assert running.read(str(stack.data_dir)) is None


def test_a_client_that_keeps_its_connection_open_does_not_hold_the_end_up(stack):
    stack.start()
    kept = http.client.HTTPConnection("127.0.0.1", stack.port)
    for _ in range(2):
        kept.request("GET", "/healthz")
        assert kept.getresponse().read()
    begun = time.monotonic()
    os.kill(stack.pids()["api"].pid, signal.SIGTERM)
    until(lambda: "api" not in stack.pids(), 8)
    assert time.monotonic() - begun < 5
    assert kept.sock.recv(100) == b"", "closed in good order, without an answer to a request that never was"
    kept.close()


def test_config_show_masks_secrets(make_stack):
    stack = make_stack(variables={"ROCK_API_KEYS": "sesame-open=alice"})
    shown = stack.rock("config", "show")
    assert shown.returncode == 0
    assert f"server.port = {stack.port}" in shown.stdout and "alice" in shown.stdout
    assert "sesame" not in shown.stdout
    as_json = json.loads(stack.rock("config", "show", "--json").stdout)
    assert as_json["server"]["port"] == stack.port and as_json["environment"]["ROCK_API_KEYS"] == "***"


def test_a_mistake_in_the_configuration_is_named(make_stack):
    refused = make_stack(variables={"ROCK_SERVER__PROT": "1"}).rock("admin", "start", "--detach")
    assert refused.returncode != 0 and "did you mean 'port'" in refused.stderr
    assert "Traceback" not in refused.stderr
