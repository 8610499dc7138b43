"""The whole service on Docker and on Podman: what goes another way through each of them.

What happens inside a container (sessions, timeouts, output, users, the editor's tools) is the keeper's work and bash's, the same under
both, and tested in many cases on Docker only. Here is what the engine itself does for the service: make, start, stop, restart and
kill a container, tell of its death and of its memory, hold its stdin, run processes beside the keeper, publish and dial
ports, measure, pull with a login, and keep the images of forks. Commits are in test_private_commits, the deployment's verbs
one by one in test_deployments.

What Podman (4.3) does otherwise, and what is done about it:
- it closes a container's stdin when a client leaves: what is sent goes through a process in the container (workers/deployments/podman.py);
- it removes containers, running ones too, with an image whose removal is forced: none is, and an image that a stopped sandbox has
  loses its name first (test_deployments);
- it spells names out, and finds no containers by an id with its algorithm (workers/deployments/engine.py);
- it cannot load an image without layers: a commit is told line by line what to change (snapshot.py, and the last test here);
- a registry without TLS must be in its registries.conf, on loopback too.
"""

import contextlib
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from simple_websocket import Client

from scripts import registry
from scripts.images import ALPINE
from tests.engine.conftest import EngineStack
from tests.engine.test_registry import CREDENTIALS, LOGIN, committed
from tests.wire import PREFIX, Box, until


@pytest.fixture(scope="module")
def api(either):
    return either.api()


@pytest.fixture
def make(api):
    """A function that starts sandboxes, which are stopped after the test."""
    made: list[Box] = []

    def start(**fields) -> Box:
        made.append(api.start(image=ALPINE, **fields))
        return made[-1]

    yield start
    for box in made:
        assert box.post("/stop").ok


def container(either: EngineStack, box: Box):
    (found,) = (one for one in either.containers(all=True) if one.labels["rock.sandbox"] == box.id)
    return found


def status_of(box: Box) -> dict:
    return box.api.get("/get_status", sandbox_id=box.id, include_all_states="true").result


def test_the_node_says_which_engine_it_has(either):
    assert either.stack.get("/healthz")["runtime"] == [either.kind]


def test_a_life_from_start_to_deletion(either, make):
    box = make(auto_delete_seconds=60)
    facts = container(either, box).attrs
    assert facts["State"]["Running"] and facts["HostConfig"]["Memory"] == 256 << 20
    shell = box.open()
    assert shell.output("trap '' TERM INT HUP; cd /tmp; echo kept >/file; pwd") == "/tmp"
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(shell.run, "sleep 98765")
        until(lambda: box.execute("grep -qx sleep /proc/[0-9]*/comm", shell=True).result["exit_code"] == 0)
        box.stop()
        waits.result(30).failed(5000, box.id, kind="sandbox_gone")
    assert status_of(box)["state"] == "stopped"
    until(lambda: container(either, box).status in ("exited", "stopped"), 10, "the engine's word for it")
    assert box.post("/restart").ok
    assert box.read("/file").result["content"] == "kept\n" and box.open().output("echo again") == "again"
    box.stop()
    assert box.post("/delete").ok and status_of(box)["state"] == "deleted"
    assert box.id not in [one.labels["rock.sandbox"] for one in either.containers(all=True)]


def test_sessions_outlive_the_nodes_workers(either, make):
    """Under Podman stdin would close with the first client that leaves, and take the keeper with it (podman.py)."""
    box = make()
    shell = box.open()
    shell.output("x=kept")
    with ThreadPoolExecutor(1) as pool:
        runs = pool.submit(shell.run, "sleep 1; echo $x")
        until(lambda: box.execute("grep -qx sleep /proc/[0-9]*/comm", shell=True).result["exit_code"] == 0)
        for name in ("worker", "lifecycle"):
            os.kill(either.stack.pids()[name].pid, signal.SIGKILL)
        reply = runs.result(60)
        assert reply.ok and reply.result["output"] == "kept", reply.body
    assert shell.output("echo $x") == "kept"


def test_a_container_that_somebody_kills_is_told(either, make):
    box = make()
    shell = box.open()
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(shell.run, "sleep 98765")
        until(lambda: box.execute("grep -qx sleep /proc/[0-9]*/comm", shell=True).result["exit_code"] == 0)
        container(either, box).kill()
        waits.result(30).failed(5000, box.id, kind="sandbox_gone")
    until(lambda: status_of(box)["state"] == "stopped", 20, "the end in the status")


def test_running_out_of_memory_is_told_by_the_command_and_the_sandbox_lives(make):
    shell = make(memory="48m").open()
    shell.run("(tail /dev/zero)", check="raise").failed(6000, "memory", kind="out_of_memory")
    assert shell.output("echo alive") == "alive"


def test_limits_mounts_and_environment_are_the_containers(either, make):
    flags = ["--tmpfs", "/t:size=1m", "--shm-size", "32m", "--ulimit", "nofile=500:500", "-e", "A=q'\"q"]
    shell = make(docker_args=flags, env={"B": "b"}).open()
    assert shell.output("ulimit -n; grep -c ' /t tmpfs' /proc/mounts; echo $A$B") == "500\n1\nq'\"qb"
    assert "size=32768k" in shell.output("grep ' /dev/shm ' /proc/mounts")
    assert shell.output("grep -c 'NoNewPrivs:.1' /proc/self/status") == "1"
    # As high as the machine allows, and the same for both: Podman would ask for more than it may give.
    soft, hard = shell.output("ulimit -Su; ulimit -Hu").split()
    assert soft == hard


def test_bytes_go_in_and_out(make):
    box, data = make(), os.urandom(3_000_000)
    assert box.upload(data, "/deep/er/file").ok
    assert box.read("/deep/er/file", encoding="latin-1").result["content"] == data.decode("latin-1")
    done = box.execute("cat; echo err >&2; exit 3", shell=True).result
    assert (done["stdout"], done["stderr"], done["exit_code"]) == ("", "err\n", 3)


def test_published_proxied_and_forwarded_ports(make):
    box = make(docker_args=["-p", "7001"])
    box.execute("busybox nc -ll -p 7001 -e cat >/dev/null 2>&1 & disown", shell=True)
    answer = "printf 'HTTP/1.0 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nhi'"
    box.write("/serve", f"#!/bin/bash\nread -r line; {answer}\n")
    box.execute("chmod +x /serve; busybox nc -ll -p 7002 -e /serve >/dev/null 2>&1 & disown", shell=True)
    outside = int(status_of(box)["port_mapping"]["7001"])

    def echoed() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", outside), 5) as connection:
            connection.settimeout(5)
            connection.sendall(b"x")
            return connection.recv(1) == b"x"
        return False

    until(echoed, 20, "the published port")
    path = f"{box.api.url.replace('http', 'ws')}{PREFIX}/sandboxes/{box.id}/portforward?port=7001"
    forwarded = Client(path, headers=box.api.headers)
    forwarded.send(b"\x00\x01")
    assert forwarded.receive(timeout=20) == b"\x00\x01"
    forwarded.close()
    assert raw(box, f"{PREFIX}/sandboxes/{box.id}/proxy/port/7002/x").endswith(b"\r\n\r\nhi")


def raw(box: Box, path: str) -> bytes:
    """Return the bytes of the answer to a GET."""
    host, port = box.api.url.removeprefix("http://").split(":")
    headers = "".join(f"{name}: {value}\r\n" for name, value in box.api.headers.items())
    with socket.create_connection((host, int(port)), 20) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n{headers}\r\n".encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_statistics_are_of_the_sandbox(make):
    box = make(cpus=0.2, memory="64m")
    shell = box.open()

    def measured() -> dict:
        reply = box.api.get("/get_sandbox_statistics", sandbox_id=box.id)
        assert reply.ok, reply.body
        return reply.result

    idle = measured()
    assert 0 < idle["mem"] < 50 and idle["net"] >= 0
    shell.output("x=$(printf '%020000000d' 0); (while :; do :; done) & true")
    until(lambda: 80 <= measured()["cpu"] <= 120, 20, "a busy loop at its limit")
    assert measured()["mem"] > idle["mem"] + 20


def test_forks_have_the_files_and_their_image_goes_with_them(either, make):
    box = make()
    assert box.write("/mine", "data").ok
    reply = box.post(f"/sandboxes/{box.id}/fork", count=2)
    assert reply.ok, reply.body
    forks = [Box(box.api, one["sandbox_id"]) for one in reply.result["sandboxes"]]
    for fork in forks:
        assert fork.read("/mine").result["content"] == "data"
        fork.stop()
    until(lambda: not either.own("fork"), 20, "the end of the fork's image")


def test_a_pooled_sandbox_is_taken(either, api):
    wanted = {"image": ALPINE, "memory": "200m", "cpus": 0.2}
    until(lambda: either.api("root").get("/nodes").result["nodes"][0]["pooled"] == 1, 30, "the pool")
    box = api.start(**wanted)
    assert status_of(box)["state_history"][-1]["event"] == "taken_from_pool"
    assert box.open().output("echo ok") == "ok"
    box.stop()


def test_a_pull_needs_its_login_and_each_failure_has_its_own_kind(either, api, host):
    name = f"{host}/private/both-{either.kind}"
    made = either.client.containers.create(ALPINE, ["true"])
    made.commit(name, "1")  # with an id of its own
    made.remove()
    told = either.client.api.push(name, "1", auth_config=CREDENTIALS)
    assert "errorDetail" not in told, told
    either.client.images.remove(f"{name}:1")

    def start(image, **login):
        return api.post("/start", image=image, memory="64m", cpus=0.1, **login)

    for login in ({}, {**LOGIN, "registry_password": "wrong-pass-word"}):
        start(f"{name}:1", **login).failed(5000, f"{name}:1", kind="image_access")
    start(f"{name}:none", **LOGIN).failed(5000, f"{name}:none", kind="image_not_found")
    reply = start(f"{name}:1", **LOGIN)
    assert reply.ok, reply.body
    box = Box(api, reply.result["sandbox_id"])
    in_use = api.post("/remove_image", image=f"{name}:1").result
    assert in_use["removed"] == [] and "running sandboxes" in in_use["failed"][0]["error"]
    box.stop()
    assert len(api.post("/remove_image", image=f"{name}:1").result["removed"]) == 1
    assert f"{name}:1" not in either.tags()
    assert registry.PASSWORD not in (either.stack.data_dir / "logs" / "service.log").read_text(errors="replace")


def test_a_commit_has_the_settings_of_its_image_and_no_secret_of_its_sandbox(either, make):
    """Podman cannot take a variable out of an image again: it is there, and empty."""
    box = make(
        env={"TOKEN": "hunter2secret"},
        docker_args=["--user", "nobody", "--workdir", "/tmp", "-e", "OTHER=hunter2secret"],
    )
    status = committed(box, f"rock-test/settings-{either.kind}:1")
    assert status["phase"] == "SUCCEEDED", status
    (name,) = either.own("commit")
    made, base = (either.client.images.get(one).attrs["Config"] for one in (name, ALPINE))
    for field in ("Cmd", "Entrypoint"):
        assert (made.get(field) or None) == (base.get(field) or None), field
    assert (made["User"] or "0:0", made["WorkingDir"] or "/") == ("0:0", "/")
    image = either.client.images.get(name)
    assert "hunter2secret" not in f"{image.attrs} {image.history()}"
    assert ("TOKEN=" in made["Env"]) is (either.kind == "podman")
    assert not any((made["Labels"] or {}).values())
    assert len(box.api.post("/remove_image", image=f"rock-test/settings-{either.kind}:1").result["removed"]) == 1
