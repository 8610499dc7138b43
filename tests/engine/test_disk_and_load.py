"""Disk limits in real containers, and statistics against a load that is known."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import docker
import pytest

from scripts import images
from tests.wire import Api, until

MB = 1 << 20


def test_files_that_outgrow_the_limit_end_the_sandbox_with_a_reason(engine_server):
    api = Api(engine_server.url)
    box = api.start(image=images.DEBIAN, disk="20m")
    shell = box.open()
    assert shell.run("head -c 4000000 /dev/zero >/small").result["exit_code"] == 0
    with ThreadPoolExecutor(1) as pool:
        caller = pool.submit(shell.run, "head -c 40000000 /dev/zero >/big && sleep 100", timeout=50)
        reply = caller.result(60)
    if reply.body["status"] == "Failed" and reply.result["kind"] == "command_failed":
        pytest.skip("this engine's storage holds containers to their limit by itself: the write failed")
    reply.failed(5000, "disk limit of 20 MB", kind="sandbox_gone")
    status = api.get("/get_status", sandbox_id=box.id, include_all_states="true").result
    assert status["state"] == "stopped" and status["state_history"][-1]["event"] == "disk_limit"
    assert "more than its disk limit of 20 MB" in status["message"]
    shell.run("true").failed(4000, "disk limit of 20 MB")
    assert api.post("/delete", sandbox_id=box.id).ok


def test_R10_a_disk_limit_starts_everywhere_and_status_tells_how_it_is_kept(engine_server):
    api = Api(engine_server.url)
    box = api.start(image=images.DEBIAN, disk="50g", auto_delete_seconds=60)
    for _ in range(2):
        status = api.get("/get_status", sandbox_id=box.id).result
        if status["notes"]:  # the engine's storage decides
            (note,) = status["notes"]
            assert note.startswith("disk limit not enforced here") and "measures the files every 0.5 s" in note
        box.stop()
        assert box.post("/restart").ok
    box.stop()
    assert box.post("/delete").ok
    plain = api.start(image=images.DEBIAN, disk=None)
    assert api.get("/get_status", sandbox_id=plain.id).result["notes"] == []
    plain.stop()


def test_what_a_container_has_written_is_measured(sandboxes):
    sandbox_id = sandboxes.start()
    before = sandboxes.deployment.disk_use(sandbox_id)
    if not sandboxes.deployment.isolation:
        assert before is None, "its files are the machine's"
        return
    sandboxes.hand(sandbox_id).ask("printf '%030000000d' 0 >/file; echo")
    assert before is not None and before < MB
    assert 30_000_000 <= sandboxes.deployment.disk_use(sandbox_id) < 40 * MB
    sandboxes.hand(sandbox_id, fresh=False).ask("truncate -s 100G /sparse; echo")
    if (
        sandboxes.deployment.name != "remote"
    ):  # the disk of another host cannot be looked at, and its engine adds up lengths
        assert sandboxes.deployment.disk_use(sandbox_id) < 40 * MB, "a sparse file takes no room"


@pytest.mark.parametrize(("fields", "cpus"), [({"cpus": 0.2}, "1"), ({"cpus": 0.2, "limit_cpus": 1.5}, "2")])
def test_R12_programs_are_told_of_the_sandboxes_cpus_and_not_of_the_machines(engine_server, fields, cpus):
    api = Api(engine_server.url)
    box = api.start(image=images.PYTHON, memory="256m", env={"GOMAXPROCS": "7"}, **fields)
    seen = box.execute("nproc; echo $OMP_NUM_THREADS $RAYON_NUM_THREADS $GOMAXPROCS", shell=True).result["stdout"]
    assert seen == f"{cpus}\n{cpus} {cpus} 7\n"
    box.stop()


def test_R12_statistics_are_true_against_a_known_load(engine_server):
    """A busy loop takes all of its limit, however small; a tenth of the memory is a tenth; traffic is counted."""
    api = Api(engine_server.url)
    box = api.start(image=images.PYTHON, cpus=0.2, memory="256m")
    shell = box.open()

    def measured():
        return api.get("/get_sandbox_statistics", sandbox_id=box.id).result

    idle = measured()
    assert idle["cpu"] < 50 and 0 < idle["disk"] <= 100
    hold = "import time; kept = bytearray(100 << 20); print(flush=True); time.sleep(100)"
    assert shell.run(f"python3 -c '{hold}' > /ready & until [[ -s /ready ]]; do sleep 0.05; done").ok
    held = measured()
    assert 35 <= held["mem"] - idle["mem"] <= 45, "100 of 256 MB"
    assert shell.run("(while :; do :; done) & true").ok
    measured()
    time.sleep(1)  # the load that is measured; a limit is kept in slices of 0.1 s
    assert 80 <= measured()["cpu"] <= 120
    until(lambda: 90 <= measured()["cpu"] <= 110, 20, "a busy loop at its limit")
    # Nobody answers, but what is sent goes through the network.
    send = 'import socket; s = socket.socket(type=socket.SOCK_DGRAM)\nfor _ in range(100): s.sendto(bytes(1000), ("172.17.0.1", 9))'
    assert shell.run(f"python3 -c '{send}'").ok
    assert measured()["net"] - idle["net"] >= 100_000
    assert box.post("/stop").ok


def test_R09_answered_commands_leave_nothing_in_the_sandbox(engine_server):
    """Long output stays until the next command of its session, and only then."""
    box = Api(engine_server.url).start(image=images.DEBIAN)
    shell, count = box.open(), "find /run/rock /run/rock-users /tmp /root | wc -l; du -sk /run/rock | cut -f1"

    def held():
        reply = box.execute(count, shell=True)
        assert reply.ok, reply.body
        return [int(number) for number in reply.result["stdout"].split()]

    def work(rounds):
        for _ in range(rounds):
            assert shell.output("echo x") == "x"
            assert box.execute("echo x", shell=True).ok
            assert len(shell.output("head -c 300000 /dev/zero | tr '\\0' x")) == 300_000
        assert shell.output("true") == ""

    work(2)
    files, kilobytes = held()
    work(25)
    until(lambda: held()[0] <= files + 4 and held()[1] <= kilobytes + 400, 20, "the end of what was answered")
    box.stop()


@pytest.fixture
def throwaway(engine):
    """A function that gives an image of the test's own another name; all of them are gone at the end."""
    made = []

    def make(name):
        container = engine.containers.create(images.DEBIAN, ["true"])
        container.commit(*name.split(":"), changes=f"LABEL made={time.monotonic_ns()}")
        container.remove()
        made.append(name)
        return name

    yield make
    for name in made:
        with contextlib.suppress(docker.errors.ImageNotFound):
            engine.images.remove(name, force=True)


def test_R07_only_an_image_without_containers_is_evicted(containers, throwaway):
    have, name = containers.deployment.images, throwaway("rock-test-evicted:1")
    sandbox_id = containers.start(image=name)
    assert not have.evict(name, asked_for=True), "it runs"
    containers.deployment.stop(sandbox_id)
    assert not have.evict(name, asked_for=True), "its files could be wanted for a restart"
    containers.deployment.remove(sandbox_id)
    assert have.evict(name, asked_for=True) and not have.has(name)


def test_how_full_the_disk_of_images_is(sandboxes):
    used = sandboxes.deployment.images.disk_percent()
    assert used is None if sandboxes.deployment.name in ("local", "remote") else 0 < used <= 100
