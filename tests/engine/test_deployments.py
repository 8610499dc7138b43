"""One scenario for every kind of deployment: what the rest of a node relies on."""

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator

import pytest

from rock.errors import AlreadyExists, BadRequest, NotFound, SandboxGone, Unavailable
from tests.engine.conftest import Sandboxes
from workers.deployments import docker_args, processes
from workers.deployments.abstract import ContainerEvent, ContainerSpec, ContainerState
from workers.deployments.docker_args import EngineOptions, Policy
from workers.deployments.seccomp import read_profiles

ZOMBIES = "n=0; for f in /proc/[0-9]*/stat; do read -r s <$f; s=${s##*) }; [[ $s == Z* ]] && n=$((n+1)); done 2>/dev/null; echo $n"


def within(seconds: float, ready) -> bool:
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def printed(sandboxes: Sandboxes, sandbox_id: str, script: str) -> str:
    with sandboxes.deployment.exec_stream(sandbox_id, ["bash", "-c", script]) as process:
        return b"".join(process).decode()


def test_the_main_process_goes_on_when_its_holder_goes(sandboxes):
    sandbox_id = sandboxes.start()
    first = sandboxes.hand(sandbox_id)
    assert first.ask("x=kept; echo hello") == "hello\n"
    first.stream.close()
    time.sleep(0.2)
    again = sandboxes.hand(sandbox_id, fresh=False)
    assert again.ask("echo $x") == "kept\n"
    beside = sandboxes.hand(sandbox_id, fresh=False)
    assert beside.ask("echo both") == "both\n"


def test_a_stream_carries_much_without_blocking(sandboxes):
    hand = sandboxes.hand(sandboxes.start())
    line = "y=" + "x" * 1_000_000
    assert hand.ask(f"{line}; echo ${{#y}}") == "1000000\n"
    assert len(hand.ask('printf "%s\\n" "$y"')) == 1_000_001


def test_the_end_of_the_main_process_ends_the_stream(sandboxes):
    sandbox_id = sandboxes.start()
    hand = sandboxes.hand(sandbox_id)
    hand.send(b"exit 3\n")
    assert within(5, lambda: hand.stream.receive() is None)
    assert within(2, lambda: not sandboxes.deployment.inspect(sandbox_id).running)
    with pytest.raises(SandboxGone, match=sandbox_id):
        sandboxes.deployment.attach(sandbox_id)
    with pytest.raises(SandboxGone, match=sandbox_id):
        sandboxes.deployment.exec_stream(sandbox_id, ["true"])


def test_orphans_are_reaped_while_the_main_process_waits(sandboxes):
    sandbox_id = sandboxes.start()
    hand = sandboxes.hand(sandbox_id)
    hand.ask("for ((i=0; i<200; i++)); do (sleep 0.2 &) ; done")
    main = int(hand.ask("echo $$"))

    def zombies() -> int:
        if sandboxes.deployment.isolation:
            return int(printed(sandboxes, sandbox_id, ZOMBIES))
        return sum(one.state == "Z" and one.parent == main for one in processes._everyone())

    assert within(3, lambda: zombies() == 0)


def test_a_second_start_finds_the_first_and_a_dead_one_is_not_revived(sandboxes):
    spec = sandboxes.spec()
    states: list[ContainerState] = []
    threads = [threading.Thread(target=lambda: states.append(_start(sandboxes, spec))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert any(state.running for state in states)
    assert sandboxes.deployment.start(spec).running
    assert list(sandboxes.deployment.list()) == [(spec.sandbox_id, True)]
    sandboxes.deployment.stop(spec.sandbox_id)
    with pytest.raises(AlreadyExists, match=spec.sandbox_id):
        sandboxes.deployment.start(spec)


def _start(sandboxes: Sandboxes, spec: ContainerSpec) -> ContainerState:
    try:
        return sandboxes.deployment.start(spec)
    except AlreadyExists:  # the other one is between making it and starting it
        return ContainerState(exists=True)


def test_L21_stop_ends_everything_at_once_and_keeps_the_files(sandboxes):
    """Whatever ignores the signals that ask for an end; engines wait ten seconds for it."""
    sandbox_id = sandboxes.start()
    hand = sandboxes.hand(sandbox_id)
    hand.ask("cd; echo data >file; (env -i setsid sleep 1000 &); (trap '' TERM INT HUP; sleep 1000) &")
    began = time.monotonic()
    sandboxes.deployment.stop(sandbox_id)
    assert time.monotonic() - began < 2
    sandboxes.deployment.stop(sandbox_id)
    # An engine may see the end a little later.
    assert within(5, lambda: not sandboxes.deployment.inspect(sandbox_id).running)
    assert sandboxes.deployment.inspect(sandbox_id).exists
    assert sandboxes.deployment.restart(sandbox_id).running
    again = sandboxes.hand(sandbox_id)
    assert again.ask("cd; read -r line <file; echo $line") == "data\n"
    if not sandboxes.deployment.isolation:
        main = int(again.ask("echo $$"))
        assert {one.pid for one in processes._everyone() if one.parent == main} == set()


def test_what_is_gone_is_gone(sandboxes):
    sandbox_id, deployment = sandboxes.start(), sandboxes.deployment
    deployment.remove(sandbox_id)
    deployment.remove(sandbox_id)
    deployment.stop(sandbox_id)
    assert not deployment.inspect(sandbox_id).exists
    for verb in (deployment.attach, deployment.statistics, lambda one: deployment.exec_stream(one, ["true"])):
        with pytest.raises(SandboxGone, match=sandbox_id):
            verb(sandbox_id)
    with pytest.raises(NotFound, match=sandbox_id):
        deployment.restart(sandbox_id)


def test_statistics_are_of_the_sandbox_in_percent_of_its_limits(sandboxes):
    sandbox_id = sandboxes.start(cpus=0.5)
    hand = sandboxes.hand(sandbox_id)
    idle = sandboxes.deployment.statistics(sandbox_id)
    assert idle.cpu < 30
    assert 0 < idle.mem < 10
    assert idle.disk is None or 0 < idle.disk <= 100
    hand.ask("(while :; do :; done) & y=$(printf '%070000000d' 0); echo")
    time.sleep(0.3)
    began = time.monotonic()
    busy = sandboxes.deployment.statistics(sandbox_id)
    assert time.monotonic() - began < 1
    assert busy.cpu > 60
    assert busy.mem > idle.mem + 10


def test_big_data_goes_through_a_process_of_its_own(sandboxes):
    sandbox_id = sandboxes.start()
    block = os.urandom(1 << 20)
    wanted, seen = hashlib.sha256(block * 20), hashlib.sha256()
    with sandboxes.deployment.exec_stream(sandbox_id, ["cat"], stdin=(block for _ in range(20))) as process:
        for chunk in process:
            seen.update(chunk)
    assert process.exit_code == 0
    assert seen.hexdigest() == wanted.hexdigest()


def test_a_process_tells_its_exit_code_and_keeps_its_streams_apart(sandboxes):
    sandbox_id = sandboxes.start()
    with sandboxes.deployment.exec_stream(sandbox_id, ["bash", "-c", "printf out; printf err >&2; exit 3"]) as process:
        assert b"".join(process) == b"out"
    assert (process.exit_code, process.stderr) == (3, b"err")
    with sandboxes.deployment.exec_stream(sandbox_id, ["bash", "-c", "kill -9 $$"]) as process:
        list(process)
    assert process.exit_code == 137


def test_a_process_that_stops_reading_does_not_hold_its_sender(sandboxes):
    sandbox_id = sandboxes.start()
    endless: Iterator[bytes] = iter(lambda: b"x" * 65536, b"")
    with sandboxes.deployment.exec_stream(sandbox_id, ["bash", "-c", "head -c 5; exit 4"], stdin=endless) as process:
        assert b"xxxxx".startswith(b"".join(process))  # Podman may drop what was printed last
    assert process.exit_code == 4


@pytest.mark.parametrize("argv", [["no-such-program"], ["a\0b"], []])
def test_a_program_that_cannot_be_is_the_callers_fault(sandboxes, argv):
    sandbox_id = sandboxes.start()
    with pytest.raises(BadRequest):
        with sandboxes.deployment.exec_stream(sandbox_id, argv) as process:
            list(process)


def test_an_unknown_user_is_the_callers_fault(sandboxes):
    sandbox_id = sandboxes.start()
    with pytest.raises(BadRequest, match="nobody-here"):
        with sandboxes.deployment.exec_stream(sandbox_id, ["true"], user="nobody-here") as process:
            list(process)


def test_half_an_upload_never_passes_for_a_whole_one(sandboxes):
    def broken() -> Iterator[bytes]:
        yield b"half"
        time.sleep(0.3)
        raise ConnectionError("the caller went away")

    sandbox_id = sandboxes.start()
    script = "cd; cat >part && mv part whole"
    with pytest.raises(ConnectionError):
        with sandboxes.deployment.exec_stream(sandbox_id, ["bash", "-c", script], stdin=broken()) as process:
            list(process)
    time.sleep(0.3)
    assert printed(sandboxes, sandbox_id, "cd; [[ -e whole ]] && echo whole; [[ -e part ]] && echo part") == "part\n"


def test_a_download_that_is_left_ends_and_nothing_waits_for_it(sandboxes):
    sandbox_id = sandboxes.start()
    with sandboxes.deployment.exec_stream(sandbox_id, ["cat", "/dev///zero"]) as process:
        next(iter(process))
    look = (
        "for f in /proc/[0-9]*/cmdline; do IFS= read -r -d '' a <$f; [[ $a == endless ]] && echo $f; done 2>/dev/null"
    )
    assert within(3, lambda: not printed(sandboxes, sandbox_id, look))
    began = time.monotonic()
    sandboxes.deployment.remove(sandbox_id)
    assert time.monotonic() - began < 2


def test_a_death_is_reported_at_once(sandboxes):
    seen: list[ContainerEvent] = []
    stop = threading.Event()
    sandbox_id = sandboxes.start()
    watcher = threading.Thread(target=sandboxes.deployment.watch, args=(seen.append, stop))
    watcher.start()
    time.sleep(0.5)
    sandboxes.deployment.stop(sandbox_id)
    assert within(2, lambda: any((one.sandbox_id, one.event) == (sandbox_id, "die") for one in seen))
    sandboxes.deployment.remove(sandbox_id)
    assert within(2, lambda: any((one.sandbox_id, one.event) == (sandbox_id, "destroy") for one in seen))
    stop.set()
    watcher.join(3)
    assert not watcher.is_alive()


@pytest.mark.parametrize("sandbox_id", ["", "../x", "a/b", "-a", "a b", "a\n", "x" * 129])
def test_an_id_that_is_no_name_is_refused(sandboxes, sandbox_id):
    with pytest.raises(BadRequest, match="sandbox_id"):
        sandboxes.deployment.start(sandboxes.spec(sandbox_id=sandbox_id))
    with pytest.raises(BadRequest, match="sandbox_id"):
        sandboxes.deployment.inspect(sandbox_id)


def test_the_environment_is_quiet_and_the_callers_wins(sandboxes):
    odd = "q'\"$(id) \n\\"
    sandbox_id = sandboxes.start(env={"ODD": odd, "TERM": "vt100"}, options=EngineOptions(env={"BOTH": "2"}))
    hand = sandboxes.hand(sandbox_id)
    assert hand.ask('printf %s "$ODD"') == odd
    assert hand.ask("echo $PAGER $TERM $BOTH $LANG") == "cat vt100 2 C.UTF-8\n"


def test_descriptors_do_not_pile_up(sandboxes):
    def once() -> None:
        sandbox_id = sandboxes.start()
        sandboxes.hand(sandbox_id).ask("echo")
        printed(sandboxes, sandbox_id, "echo")
        sandboxes.clear()

    once()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        once()
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_a_commit_has_the_files_of_a_running_or_stopped_sandbox(sandboxes):
    sandbox_id, deployment = sandboxes.start(), sandboxes.deployment
    tag = "localhost/rock-test/deployments-commit:1"
    if not deployment.isolation:
        pytest.skip("what a local node keeps instead has tests of its own (test_local_copies)")
    hand = sandboxes.hand(sandbox_id)
    hand.ask("echo running >/state")
    made: set[str] = set()
    try:
        for state in ("running", "stopped"):
            if state == "stopped":
                hand.ask("echo stopped >/state")
                deployment.stop(sandbox_id)
            deployment.commit(sandbox_id, tag)
            assert deployment.images.has(tag)
            made.add(deployment._engine.image(tag)["Id"])
            other = sandboxes.start(image=tag)
            assert printed(sandboxes, other, "read -r x </state; echo $x") == f"{state}\n"
            assert not deployment.images.evict(tag, asked_for=True), "a running sandbox uses it"
            deployment.stop(other)
            assert not deployment.images.evict(tag, asked_for=True), "a stopped one still does"
            deployment.remove(other)
    finally:
        assert deployment.images.evict(tag, asked_for=True)
    assert not deployment.images.has(tag) and not deployment.images.remove(tag)
    assert len(made) == 2 and not any(deployment._engine.image(one) for one in made), (
        "a replaced image must not stay nameless"
    )


def test_L24_a_node_allows_seccomp_profiles_by_name(sandboxes, tmp_path):
    """Engines' own profiles refuse user namespaces, which browsers and bwrap need; here one refuses something else instead."""
    if sandboxes.deployment.name not in ("docker", "podman"):
        pytest.skip("no containers, or an engine that has no other profile than the machine's")
    profile = tmp_path / "no-links.json"
    refused = {"names": ["symlinkat", "symlink"], "action": "SCMP_ACT_ERRNO"}
    profile.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [refused]}))
    policy = Policy(seccomp=read_profiles(["unconfined", str(profile)]))
    asked: dict[str, list[str]] = {name: ["--security-opt", f"seccomp={name}"] for name in policy.seccomp}
    said = {}
    for name, args in {"": [], **asked}.items():
        hand = sandboxes.hand(sandboxes.start(options=docker_args.parse(args, policy)))
        seccomp = hand.ask("grep ^Seccomp: /proc/self/status")[-2]
        spaces = hand.ask("unshare -U true 2>/dev/null && echo yes").strip()
        said[name] = (seccomp, spaces, hand.ask("ln -s x /link 2>/dev/null && echo yes").strip())
    seccomp, _, links = said.pop("")
    assert (seccomp, links) == ("2", "yes"), "whether the engine's own allows namespaces is the engine's matter"
    assert said == {"unconfined": ("0", "yes", "yes"), str(profile): ("2", "yes", "")}


def test_an_image_is_removed_though_a_stopped_sandbox_has_it_and_not_from_under_a_running_one(sandboxes):
    """Podman would remove the sandboxes with it, running or not."""
    deployment, tag = sandboxes.deployment, f"rock-test/removed-{os.getpid()}:1"
    if not deployment.isolation:
        pytest.skip("what a local node keeps instead has tests of its own (test_local_copies)")
    image_id = deployment.commit(sandboxes.start(), tag)
    user = sandboxes.start(image=tag)
    printed(sandboxes, user, "echo kept >/mine")
    with pytest.raises(Unavailable, match="running sandboxes"):
        deployment.images.remove(tag)
    deployment.stop(user)
    assert deployment.images.remove(tag) and not deployment.images.has(tag)
    assert deployment.restart(user).running
    assert printed(sandboxes, user, "cat /mine") == "kept\n"
    deployment.remove(user)
    assert deployment._engine.image(image_id) is None, "a nameless image must not be left"
