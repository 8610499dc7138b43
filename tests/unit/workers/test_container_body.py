"""What is asked of the engine for a sandbox: the hardening, in one place."""

import os
import resource

import pytest

from workers.deployments.abstract import ContainerSpec
from workers.deployments.container_body import Ulimits, create_body, environment, hostname
from workers.deployments.docker_args import EngineOptions, Gpus, Port
from workers.deployments.mounts import Mount
from workers.deployments.seccomp import Profile

LIMITS = Ulimits(nofile=1000, nproc=2000)


def spec(**changes: object) -> ContainerSpec:
    values: dict[str, object] = {"sandbox_id": "s_1", "image": "img", "cpus": 0.5, "memory_bytes": 1 << 29, "pids": 99}
    return ContainerSpec(**{**values, **changes})  # type: ignore[arg-type]


def body(image_env: tuple[str, ...] = (), **changes: object) -> dict:
    return create_body(spec(**changes), boot_argv=["bash", "x"], labels={"l": "1"}, image_env=image_env, ulimits=LIMITS)


def test_a_sandbox_is_hardened_by_default():
    made, host = body(), body()["HostConfig"]
    assert (made["Entrypoint"], made["Cmd"], made["User"]) == (["bash", "x"], [], "0:0")
    assert (made["OpenStdin"], made["StdinOnce"], made["Tty"]) == (True, False, False)
    assert made["Image"] == "img:latest", "without its tag it could be the beginning of another image's id"
    assert host["LogConfig"]["Type"] == "none"
    assert (host["Memory"], host["MemorySwap"], host["NanoCpus"], host["PidsLimit"]) == (
        1 << 29,
        1 << 29,
        500_000_000,
        99,
    )
    assert (host["Privileged"], host["CapDrop"], host["SecurityOpt"]) == (False, ["ALL"], ["no-new-privileges"])
    assert not {"NET_RAW", "MKNOD", "AUDIT_WRITE", "SYS_ADMIN", "SYS_PTRACE"} & set(host["CapAdd"])
    assert host["Tmpfs"]["/run/rock"] == "rw,nosuid,nodev,noexec,mode=0700,size=268435456"
    assert host["Tmpfs"]["/run/rock-users"] == "rw,nosuid,nodev,noexec,mode=0711,size=67108864"
    assert host["NetworkMode"] == "bridge"
    assert (host["Mounts"], host["PortBindings"], host["Devices"]) == ([], {}, [])
    assert {"PidMode", "IpcMode", "Runtime", "StorageOpt", "DeviceRequests"} & set(host) == set()
    assert {one["Name"]: one["Hard"] for one in host["Ulimits"]} == {"nofile": 1000, "nproc": 2000, "core": 0}


def test_R12_programs_are_told_how_many_threads_are_of_use():
    told = environment(spec(threads=2, env={"GOMAXPROCS": "9"}), ["RAYON_NUM_THREADS"])
    assert (told["OMP_NUM_THREADS"], told["PYTHON_CPU_COUNT"], told["GOMAXPROCS"]) == ("2", "2", "9")
    assert "RAYON_NUM_THREADS" not in told and "OMP_NUM_THREADS" not in environment(spec(), [])


def test_L24_a_seccomp_profile_comes_beside_the_hardening():
    host = body(options=EngineOptions(seccomp=Profile("/p.json", "{}")))["HostConfig"]
    assert host["SecurityOpt"] == ["no-new-privileges", "seccomp={}"]


def test_our_labels_win():
    assert body(labels={"l": "2", "m": "3"})["Labels"] == {"l": "1", "m": "3"}


def test_what_the_options_ask_for_is_there():
    options = EngineOptions(
        mounts=(Mount("bind", "/b", "/a", read_only=True), Mount("tmpfs", "/t", size=9), Mount("volume", "/v")),
        network="none", shm_size=7, ulimits={"nofile": (1, 2)}, cap_add=("NET_RAW",), workdir="/w", extra_hosts=("a:1.1.1.1",),
        devices=(("/dev/a", "/dev/b", "r"),), gpus=Gpus(ids=("0",)), ports=(Port(80, 0, "tcp", "127.0.0.1"),), ipc_mode="none",
    )  # fmt: skip
    made = body(options=options, runtime="runsc", disk_bytes=5, init=True)
    host = made["HostConfig"]
    assert host["Mounts"] == [{"Type": "bind", "Source": "/a", "Target": "/b", "ReadOnly": True}]
    assert host["Tmpfs"]["/t"] == "rw,nosuid,nodev,noexec,size=9,mode=1777"
    assert made["Volumes"] == {"/v": {}}
    assert (host["NetworkMode"], host["ShmSize"], host["IpcMode"], host["Init"]) == ("none", 7, "none", True)
    assert (host["Runtime"], host["StorageOpt"]) == ("runsc", {"size": "5"})
    assert {"Name": "nofile", "Soft": 1, "Hard": 2} in host["Ulimits"]
    assert "NET_RAW" in host["CapAdd"]
    assert made["WorkingDir"] == "/w"
    assert host["DeviceRequests"][0]["DeviceIDs"] == ["0"]
    assert host["PortBindings"] == {"80/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]}
    assert "Hostname" not in body(options=EngineOptions(network="host"))


@pytest.mark.parametrize(
    ("image", "env", "name", "value"),
    [
        ((), {}, "PAGER", "cat"),
        ((), {}, "TERM", "dumb"),
        ((), {}, "LANG", "C.UTF-8"),
        (("LANG",), {}, "LANG", None),
        (("LC_ALL",), {}, "LANG", None),
        ((), {"LC_ALL": "C"}, "LANG", None),
        (("PAGER",), {}, "PAGER", None),
        ((), {"PAGER": "less"}, "PAGER", "less"),
    ],
)
def test_quiet_defaults_give_way_to_image_and_caller(image, env, name, value):
    assert environment(spec(env=env), image).get(name) == value


def test_docker_args_win_over_env():
    assert environment(spec(env={"A": "1"}, options=EngineOptions(env={"A": "2"})), ())["A"] == "2"


@pytest.mark.parametrize(("given", "made"), [("a_b.c", "a-b-c"), ("x" * 40, "x" * 12), ("_", "sandbox")])
def test_a_host_name_is_what_dns_allows(given, made):
    assert hostname(given) == made


def test_limits_stay_within_this_machines_and_the_engines():
    limits = Ulimits.within(os.getpid())
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert 0 < limits.nofile <= 65536
    assert hard == resource.RLIM_INFINITY or limits.nofile <= hard
    assert Ulimits.within(None).nofile == limits.nofile


def test_a_container_of_another_user_lets_its_keeper_write():
    made = body(options=EngineOptions(user="nobody", workdir="/w"))
    assert (made["User"], made["WorkingDir"]) == ("nobody", "/w")
    assert "mode=1777" in made["HostConfig"]["Tmpfs"]["/run/rock"]
    assert "/run/rock-users" not in made["HostConfig"]["Tmpfs"]
