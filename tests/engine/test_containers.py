"""What only containers can promise: isolation, limits, images; and the engine's refusals in our words."""

import contextlib
import fcntl
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
import pytest

from rock.errors import AlreadyExists, BadRequest, ImageAccess, ImageNotFound, PullFailed, StartFailed
from scripts import images
from tests.engine.conftest import local, on_engine
from tests.engine.test_deployments import within
from workers.deployments import docker_args, main_process
from workers.deployments.abstract import ContainerEvent, ContainerSpec, Pull
from workers.deployments.docker_args import EngineOptions, Policy, Port


def container(engine: docker.DockerClient, sandbox_id: str) -> dict:
    (found,) = engine.containers.list(all=True, filters={"label": f"rock.sandbox={sandbox_id}"})
    return found.attrs


def test_X02_a_sandbox_is_hardened_as_the_engine_sees_it(containers, engine):
    host = container(engine, containers.start())["HostConfig"]
    assert not host["Privileged"]
    assert (host["Memory"], host["MemorySwap"]) == (256 << 20, 256 << 20)
    assert (host["NanoCpus"], host["PidsLimit"]) == (1_000_000_000, 300)
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["CapDrop"] == ["ALL"]
    assert (host["NetworkMode"], host["PidMode"], host["RestartPolicy"]["Name"]) == ("bridge", "", "no")
    assert host["LogConfig"]["Type"] == "none"
    assert host["Binds"] is None


def test_X02_a_sandbox_is_hardened_as_it_sees_itself(containers):
    hand = containers.hand(containers.start())
    status = dict(
        line.split(":\t")
        for line in hand.ask("grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/1/status").splitlines()
    )
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    # CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE SYS_CHROOT SETFCAP
    wanted = sum(1 << bit for bit in (0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 31))
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == wanted
    assert hand.ask("ls /var/run/docker.sock 2>&1 | grep -c cannot") == "1\n"
    assert hand.ask("id -u; ulimit -c") == "0\n0\n"


def test_the_keepers_folder_is_a_tmpfs_that_only_root_enters(containers):
    hand = containers.hand(containers.start(tmpfs_bytes=8 << 20))
    assert hand.ask("stat -c '%a %U' /run/rock") == "700 root\n"
    mount = hand.ask("grep ' /run/rock ' /proc/mounts")
    assert "tmpfs" in mount
    assert {"nosuid", "nodev", "noexec", "size=8192k"} <= set(mount.split()[3].split(","))


def test_limits_hold(containers):
    hand = containers.hand(containers.start(pids=20))
    assert "fork" in hand.ask("bash -c 'for i in {1..50}; do sleep 1 & done' 2>&1 | grep -m1 -i fork")


def test_kill_everything_leaves_the_main_process(containers):
    sandbox_id = containers.start()
    hand = containers.hand(sandbox_id)
    hand.ask("bash -c 'kill -9 -1'; bash -c 'kill -9 1; kill -TERM 1; kill -INT 1'")
    assert hand.ask("echo $$ alive") == "1 alive\n"


def test_running_out_of_memory_is_told_and_survived(containers):
    seen: list[ContainerEvent] = []
    stop = threading.Event()
    watcher = threading.Thread(target=containers.deployment.watch, args=(seen.append, stop))
    watcher.start()
    time.sleep(0.5)
    sandbox_id = containers.start(memory_bytes=32 << 20)
    hand = containers.hand(sandbox_id)
    assert hand.ask("tail /dev/zero; echo $?", 30) == "137\n"  # keeps its last line, which has no end
    assert within(10, lambda: any((one.sandbox_id, one.event) == (sandbox_id, "oom") for one in seen)), seen
    assert hand.ask("echo alive") == "alive\n"
    stop.set()
    watcher.join(3)


def test_L21_a_stop_ends_all_processes_before_it_returns_and_asks_the_engine_only_where_it_must(containers, engine):
    sandbox_id = containers.start()
    containers.hand(sandbox_id).ask("trap '' TERM INT; (setsid sleep 1000 &) ; sleep 1000 & echo")
    facts = container(engine, sandbox_id)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            containers.deployment._engine, "kill", lambda name: pytest.fail("the engine's slow way was taken")
        )
        containers.deployment.stop(sandbox_id)
    assert not in_group(facts["Id"])
    assert containers.deployment.restart(sandbox_id).running  # the engine had not seen the end yet, maybe
    assert container(engine, sandbox_id)["State"]["Pid"] != facts["State"]["Pid"]


def in_group(container_id: str) -> list[Path]:
    """Return the living processes of a container, by their control group."""
    found = []
    for group in Path("/proc").glob("[0-9]*/cgroup"):
        with contextlib.suppress(OSError):
            if container_id in group.read_text() and "State:\tZ" not in (group.parent / "status").read_text():
                found.append(group.parent)
    return found


def test_only_a_containers_main_process_is_ended_by_its_number(containers, engine):
    sandbox_id = containers.start()
    containers.hand(sandbox_id).ask("sleep 1000 & echo")
    facts = container(engine, sandbox_id)
    pid, container_id = facts["State"]["Pid"], facts["Id"]
    assert not main_process.end({**facts, "Id": "0" * 64})  # the number belongs to somebody else by now
    assert not main_process.end({**facts, "State": {"Pid": os.getpid()}})
    others = [one for one in in_group(container_id) if int(one.name) != pid]
    assert not any(
        main_process.end({**facts, "State": {"Pid": int(one.name)}}) for one in others
    )  # in the container, but not all of it
    assert others and all(one.exists() for one in others)
    assert main_process.end(facts)
    assert not in_group(container_id)


def test_a_blank_start_right_after_a_stop_revives_nothing(containers):
    """The engine takes the container for running, a moment after it was ended by the kernel."""
    for _ in range(5):
        spec = containers.spec()
        assert containers.deployment.start(spec).running
        containers.deployment.stop(spec.sandbox_id)
        with pytest.raises(AlreadyExists, match="has ended"):
            containers.deployment.start(spec)


def test_pipes_of_main_processes_are_not_widened(containers, engine):
    """The kernel counts them for root in every sandbox: beyond a limit new pipes there would hold next to nothing."""
    sandbox_id = containers.start()
    containers.hand(sandbox_id).ask("echo")
    pid = container(engine, sandbox_id)["State"]["Pid"]
    for number in (0, 1):
        pipe = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_NONBLOCK)
        assert fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) <= 65536
        os.close(pipe)


def test_containers_that_are_not_seen_from_here_are_reached_through_the_engine(containers, monkeypatch):
    monkeypatch.setattr(main_process, "is_alive", lambda facts: False)
    monkeypatch.setattr(main_process, "END_SEEN", 0.2)
    containers.deployment._pipes._proved = False
    monkeypatch.setattr(containers.deployment._pipes, "_possible", True)
    sandbox_id = containers.start()
    assert containers.hand(sandbox_id).ask("echo hi") == "hi\n"
    assert not containers.deployment._pipes._possible


def test_an_image_without_bash_fails_with_that_reason_and_leaves_nothing(containers):
    spec = containers.spec(image=images.NOBASH)
    began = time.monotonic()
    with pytest.raises(StartFailed, match="no bash"):
        containers.deployment.start(spec)
    assert time.monotonic() - began < 3
    assert list(containers.deployment.list()) == []


@pytest.mark.parametrize("image", [images.DEBIAN, images.ALPINE])
def test_small_images_do(containers, image):
    assert containers.hand(containers.start(image=image)).ask("echo hello") == "hello\n"


def test_L03_the_images_own_command_and_entrypoint_do_not_matter(containers, engine):
    tag = "rock-test/ends-at-once:latest"
    base = engine.containers.create(images.ALPINE)
    try:
        base.commit(
            "rock-test/ends-at-once",
            "latest",
            changes='ENTRYPOINT ["/bin/false"]\nCMD ["x"]\nUSER 1000\nENV PAGER=more',
        )
        hand = containers.hand(containers.start(image=tag))
        assert hand.ask("id -u; echo $PAGER") == "0\nmore\n"
    finally:
        containers.clear()
        base.remove()
        engine.images.remove(tag)


def test_a_missing_image_is_told_soon(containers):
    prepare = containers.deployment.prepare_image
    with pytest.raises(ImageNotFound, match="rock-test/nowhere"):
        prepare("rock-test/nowhere:1", pull=Pull.NEVER)
    began = time.monotonic()
    with pytest.raises((ImageNotFound, ImageAccess, PullFailed), match="nowhere"):
        prepare("localhost:1/rock-test/nowhere:1")  # nothing listens there
    assert time.monotonic() - began < 15
    with pytest.raises(BadRequest, match="image"):
        prepare("a b")


def test_an_image_removed_meanwhile_is_not_found(containers):
    with pytest.raises(ImageNotFound, match="rock-test/nowhere"):
        containers.deployment.start(containers.spec(image="rock-test/nowhere:1"))


def test_an_image_on_the_node_is_at_hand(containers):
    told: list[str] = []
    assert containers.deployment.prepare_image(images.PYTHON, progress=told.append).startswith("sha256:")
    assert told == [f"image {images.PYTHON} is on the node"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"cpus": 100_000.0}, "cpus"), ({"memory_bytes": 1 << 20}, "memory"), ({"runtime": "no-such-runtime"}, "runtime")],
)
def test_what_the_engine_cannot_do_is_told_by_field(containers, changes, field):
    with pytest.raises(BadRequest, match=field) as refused:
        containers.deployment.start(containers.spec(**changes))
    assert refused.value.details["field"] == field


def test_a_missing_mount_source_fails_and_leaves_nothing(containers, tmp_path):
    options = docker_args.parse(["-v", f"{tmp_path}/none:/x"], Policy(allowed_mounts=(str(tmp_path),)))
    with pytest.raises(BadRequest, match="does not exist"):
        containers.deployment.start(containers.spec(options=options))
    assert list(containers.deployment.list()) == []


def test_mounts_are_as_asked(containers, tmp_path: Path):
    (tmp_path / "file").write_text("from the host")
    args = ["-v", f"{tmp_path}:/ro:ro", "-v", f"{tmp_path}:/rw", "--tmpfs", "/t:size=1m", "-v", "/anonymous"]
    options = docker_args.parse(args, Policy(allowed_mounts=(str(tmp_path),)))
    hand = containers.hand(containers.start(options=options))
    assert hand.ask("cat /ro/file") == "from the host"
    assert "Read-only" in hand.ask("echo x 2>&1 >/ro/file")
    hand.ask("echo changed >/rw/file")
    assert (tmp_path / "file").read_text() == "changed\n"
    assert hand.ask("stat -f -c %T /t; [ -d /anonymous ] && echo yes") == "tmpfs\nyes\n"


def test_anonymous_volumes_go_with_the_sandbox(containers, engine):
    before = {volume.name for volume in engine.volumes.list()}
    containers.start(options=docker_args.parse(["-v", "/v"], Policy()))
    assert {volume.name for volume in engine.volumes.list()} > before
    containers.clear()
    assert {volume.name for volume in engine.volumes.list()} == before


def test_published_ports_are_told(containers):
    spec = containers.spec(options=EngineOptions(ports=(Port(80, address="127.0.0.1"),)))
    state = containers.deployment.start(spec)
    assert 1024 < state.port_mapping[80] < 65536
    assert state.ip


def test_no_network_means_none(containers):
    hand = containers.hand(containers.start(network="none"))
    assert hand.ask("ls /sys/class/net") == "lo\n"


def test_a_disk_limit_that_cannot_be_kept_is_told(containers):
    state = containers.deployment.start(containers.spec(disk_bytes=10 << 30))
    assert state.running
    if state.notes:  # the engine's storage decides
        assert "disk limit not enforced here" in state.notes[0]


def test_another_nodes_and_another_clusters_containers_are_not_ours(containers, engine_url):
    sandbox_id = containers.start()
    cluster = container_labels(containers)["rock.cluster"]
    others = [on_engine(engine_url, "docker", node="test-other", cluster=cluster), on_engine(engine_url, "docker")]
    for other in others:
        assert list(other.list()) == []
        other.remove(sandbox_id)
        other.close()
    assert list(containers.deployment.list()) == [(sandbox_id, True)]


def container_labels(containers) -> dict[str, str]:
    return dict(containers.deployment._labels)


def test_another_nodes_folders_are_not_ours(tmp_path):
    one, other = local(tmp_path), local(tmp_path, node="test-other")
    one.start(ContainerSpec("mine", "any", 1.0, 1 << 20))
    assert list(other.list()) == []
    assert list(one.list()) == [("mine", True)]
    one.remove("mine")


def test_C16_many_calls_at_once_share_the_pool(containers, caplog):
    """Nobody waits for a connection, and none is thrown away (`Connection pool is full`)."""
    ids = [containers.start() for _ in range(4)]
    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(60) as pool:
        states = list(pool.map(containers.deployment.inspect, ids * 60))
    assert all(state.running for state in states)
    assert [record.message for record in caplog.records] == []


def test_C16_connections_are_used_again_whatever_is_asked_for(containers):
    assert not containers.deployment.inspect("nobody").exists
    before = len(os.listdir("/proc/self/fd"))
    assert not any(containers.deployment.inspect(f"nobody-{number}").exists for number in range(60))
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_ten_starts_at_once(containers):
    with ThreadPoolExecutor(10) as pool:
        ids = list(pool.map(lambda _: containers.start(), range(10)))
        said = list(pool.map(lambda one: containers.hand(one).ask(f"echo {one}"), ids))
    assert said == [f"{one}\n" for one in ids]
