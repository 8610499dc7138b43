"""`docker_args`: what each flag means, and what is refused by name."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rock.errors import BadRequest
from workers.deployments.docker_args import EngineOptions, Gpus, Policy, Port, parse
from workers.deployments.mounts import Mount
from workers.deployments.seccomp import Profile, read_profiles

LINKS = {"/data/escape": "/etc", "/var/run/docker.sock": "/run/docker.sock", "/srv/alias": "/data/real"}
OPEN = Policy(
    allowed_mounts=("/data",), networks=("lan",), capabilities=frozenset({"SYS_PTRACE"}), devices=("/dev/fuse",),
    gpus=True, privileged=True, host_network=True, host_pid=True, host_ipc=True, engine_socket=True,
)  # fmt: skip


def resolve(path: str) -> str:
    """Links by table, `..` by arithmetic: no disk."""
    parts: list[str] = []
    for part in path.split("/")[1:]:
        parts = parts[:-1] if part == ".." else [*parts, part] if part not in ("", ".") else parts
        parts = LINKS.get("/" + "/".join(parts), "/" + "/".join(parts)).strip("/").split("/")
    return "/" + "/".join(parts)


def read(*args: str, policy: Policy = OPEN) -> EngineOptions:
    return parse(args, policy, resolve)


def test_nothing_asked_is_nothing_set():
    assert read() == EngineOptions()


@pytest.mark.parametrize(
    ("args", "field", "value"),
    [
        (["-v", "/data/a:/b"], "mounts", (Mount("bind", "/b", "/data/a"),)),
        (["-v/data/a:/b:ro"], "mounts", (Mount("bind", "/b", "/data/a", read_only=True),)),
        (["--volume=/data/a:/b/../c:ro,cached"], "mounts", (Mount("bind", "/c", "/data/a", read_only=True),)),
        (["-v", "/srv/alias:/b"], "mounts", (Mount("bind", "/b", "/data/real"),)),
        (["-v", "/cache"], "mounts", (Mount("volume", "/cache"),)),
        (["--mount", "type=bind,src=/data,dst=/b,readonly"], "mounts", (Mount("bind", "/b", "/data", read_only=True),)),
        (["--mount=type=bind,source=/data,target=/b,ro=false"], "mounts", (Mount("bind", "/b", "/data"),)),
        (
            ["--mount", "type=tmpfs,destination=/t,tmpfs-size=1m,tmpfs-mode=700"],
            "mounts",
            (Mount("tmpfs", "/t", size=1 << 20, mode=0o700),),
        ),
        (["--tmpfs", "/t"], "mounts", (Mount("tmpfs", "/t"),)),
        (
            ["--tmpfs=/t:rw,exec,size=64m,mode=1777"],
            "mounts",
            (Mount("tmpfs", "/t", size=64 << 20, mode=0o1777, executable=True),),
        ),
        (["-e", "A=b=c", "--env=B=", "-eC=d"], "env", {"A": "b=c", "B": "", "C": "d"}),
        (["--network", "none"], "network", "none"),
        (["--net=default"], "network", "bridge"),
        (["--network", "lan"], "network", "lan"),
        (["--network=host"], "network", "host"),
        (["--pid", "host"], "pid_mode", "host"),
        (["--ipc=host"], "ipc_mode", "host"),
        (["--shm-size", "1g"], "shm_size", 1 << 30),
        (["--ulimit", "nofile=10:20", "--ulimit=core=-1"], "ulimits", {"nofile": (10, 20), "core": (-1, -1)}),
        (["--cap-add", "CAP_SYS_PTRACE"], "cap_add", ("SYS_PTRACE",)),
        (["--privileged"], "privileged", True),
        (["--privileged=false"], "privileged", False),
        (["-u", "1000:1000"], "user", "1000:1000"),
        (["-w", "/srv"], "workdir", "/srv"),
        (["--add-host", "db:10.0.0.1", "--add-host=x:host-gateway"], "extra_hosts", ("db:10.0.0.1", "x:host-gateway")),
        (["--add-host", "db:fe80::1"], "extra_hosts", ("db:fe80::1",)),
        (["--device", "/dev/fuse"], "devices", (("/dev/fuse", "/dev/fuse", "rwm"),)),
        (["--device=/dev/fuse:/dev/f:r"], "devices", (("/dev/fuse", "/dev/f", "r"),)),
        (["--gpus", "all"], "gpus", Gpus(count=-1)),
        (["--gpus=2"], "gpus", Gpus(count=2)),
        (["--gpus", '"device=0,1"'], "gpus", Gpus(ids=("0", "1"))),
        (["-p", "80"], "ports", (Port(80, address="127.0.0.1"),)),
        (["-p", "8080:80/udp"], "ports", (Port(80, 8080, "udp", "127.0.0.1"),)),
        (["-p", "0.0.0.0::80"], "ports", (Port(80, 0, "tcp", "0.0.0.0"),)),
        (["--publish=[::1]:8080:80"], "ports", (Port(80, 8080, "tcp", "::1"),)),
    ],
)
def test_a_flag_means_what_it_means_to_docker(args, field, value):
    assert getattr(read(*args), field) == value


def test_the_last_of_a_flag_wins_and_lists_grow():
    options = read("-u", "a", "-u", "b", "-v", "/data/a:/a", "-v", "/data/b:/b")
    assert options.user == "b"
    assert [mount.target for mount in options.mounts] == ["/a", "/b"]


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--rm"], "--rm"),
        (["--security-opt", "seccomp=unconfined"], "--security-opt"),
        (["-it"], "-it"),
        (["python"], "'python'"),
        (["-v"], "-v needs a value"),
        (["-e", "HOME"], "NAME=value"),
        (["-e", "A B=c"], "NAME=value"),
        (["-v", "/data/a:/b:z"], "'z'"),
        (["-v", "/data/a:/b:ro,rw"], "ro,rw"),
        (["-v", "/data/a:/b:ro:x"], "source:target"),
        (["-v", "name:/b"], "named volumes"),
        (["-v", "/data/a:b"], "absolute path in the container"),
        (["-v", "/data/a:/"], "below /"),
        (["-v", "/data/a:/run/rock/x"], "belongs to the service"),
        (["--tmpfs", "/run/rock"], "belongs to the service"),
        (["-v", "/data/a:/b", "--tmpfs", "/b"], "mounted twice"),
        (["--mount", "type=bind,target=/b"], "source is missing"),
        (["--mount", "type=npipe,target=/b"], "npipe"),
        (["--mount", "type=volume,source=n,target=/b"], "named volumes"),
        (["--mount", "type=bind,source=/data,target=/b,bind-propagation=shared"], "bind-propagation"),
        (["--mount", "type=bind,source=/data"], "target is missing"),
        (["--mount", "type=bind,source=/data,src=/data,target=/b"], "twice"),
        (["--tmpfs", "/t:suid"], "'suid'"),
        (["--tmpfs", "/t:size=x"], "size"),
        (["--tmpfs", "/t:mode=9"], "mode"),
        (["--shm-size", "0"], "--shm-size"),
        (["--shm-size", "big"], "--shm-size"),
        (["--ulimit", "nofile"], "--ulimit"),
        (["--ulimit", "nofile=5:1"], "soft limit"),
        (["--cap-add", "SYS_ADMIN"], "SYS_ADMIN"),
        (["--cap-add=ALL"], "ALL"),
        (["--privileged=perhaps"], "--privileged"),
        (["--user", "root; id"], "--user"),
        (["--workdir", "srv"], "--workdir"),
        (["--add-host", "db"], "--add-host"),
        (["--add-host", "db:nowhere"], "--add-host"),
        (["--device", "/dev/sda"], "/dev/sda"),
        (["--device", "/dev/fuse:/dev/f:x"], "permissions"),
        (["--gpus", "0"], "--gpus"),
        (["--gpus", "device="], "--gpus"),
        (["--network", "container:other"], "container:other"),
        (["--pid", "container:other"], "container:other"),
        (["-p", "http"], "-p"),
        (["-p", "70000"], "1 to 65535"),
        (["-p", "1.2.3.4.5:1:1"], "-p"),
        (["-e", "A=\0"], "NUL"),
    ],
)
def test_what_cannot_be_is_refused_by_name(args, named):
    with pytest.raises(BadRequest) as refused:
        read(*args)
    assert named in refused.value.message
    assert "docker_args" in refused.value.message


@pytest.mark.parametrize(
    "args",
    [
        ["-v", "/etc:/b"],
        ["-v", "/:/host"],
        ["-v", "/data/../etc:/b"],
        ["-v", "/data/escape/passwd:/b"],
        ["-v", "/database:/b"],
        ["--privileged"],
        ["--network", "host"],
        ["--network", "lan"],
        ["--pid", "host"],
        ["--ipc", "host"],
        ["--gpus", "all"],
        ["--device", "/dev/fuse"],
        ["--cap-add", "SYS_PTRACE"],
    ],
)
def test_a_careful_node_refuses_what_reaches_the_host(args):
    with pytest.raises(BadRequest):
        read(*args, policy=Policy(allowed_mounts=("/data",)))


@pytest.mark.parametrize("source", ["/var/run/docker.sock", "/run/docker.sock", "/run", "/var/../run", "/"])
def test_the_engines_socket_is_refused_even_in_an_allowed_folder(source):
    with pytest.raises(BadRequest, match="container engine"):
        read("-v", f"{source}:/s", policy=Policy(allowed_mounts=("/",)))


def test_no_folder_is_allowed_unless_one_is_configured():
    with pytest.raises(BadRequest, match="allowed_mounts: none"):
        read("-v", "/tmp:/b", policy=Policy())


def test_links_on_the_real_disk_are_followed(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "way").symlink_to("/etc")
    policy = Policy(allowed_mounts=(str(tmp_path / "open"),))
    assert parse(["-v", f"{tmp_path}/open:/b"], policy).mounts[0].source == str((tmp_path / "open").resolve())
    with pytest.raises(BadRequest, match="outside"):
        parse(["-v", f"{tmp_path}/open/way:/b"], policy)


@given(st.lists(st.text(alphabet=string.printable, max_size=20), max_size=6))
def test_any_words_are_read_or_refused(words):
    try:
        parse(words, OPEN, resolve)
    except BadRequest as error:
        assert "docker_args" in error.message


@given(st.text(alphabet="ab./", max_size=30))
def test_no_source_gets_out_of_the_allowed_folders(path):
    try:
        options = read("-v", f"/data/{path}:/b")
    except BadRequest:
        return
    source = options.mounts[0].source
    assert source == "/data" or source.startswith("/data/")


PROFILES = Policy(seccomp={name: Profile(name, "") for name in ("unconfined", "/etc/p.json")})


@pytest.mark.parametrize("name", PROFILES.seccomp)
def test_L24_a_seccomp_profile_that_is_allowed_is_chosen_by_its_name(name):
    for args in (["--security-opt", f"seccomp={name}"], [f"--security-opt=seccomp={name}"]):
        assert read(*args, policy=PROFILES) == EngineOptions(seccomp=PROFILES.seccomp[name])


@pytest.mark.parametrize(
    ("value", "policy", "says"),
    [
        ("seccomp=unconfined", Policy(), "node.seccomp_profiles: none"),
        ("seccomp=/etc/other.json", PROFILES, "/etc/p.json"),
        ("seccomp=/etc/../etc/p.json", PROFILES, "does not allow"),
        ("apparmor=unconfined", PROFILES, "only seccomp=PROFILE"),
        ("no-new-privileges=false", PROFILES, "only seccomp=PROFILE"),
    ],
)
def test_L24_other_security_options_are_refused(value, policy, says):
    with pytest.raises(BadRequest, match=says):
        read("--security-opt", value, policy=policy)


def test_a_seccomp_profile_of_the_configuration_must_be_one(tmp_path):
    for content in (None, "no json", "[]", "{}"):
        file = tmp_path / f"p{content}.json"
        if content is not None:
            file.write_text(content)
        with pytest.raises(BadRequest, match="node.seccomp_profiles: .*json"):
            read_profiles([str(file)])
