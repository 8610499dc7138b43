"""Images that lack things: bash alone is needed, and its lack is told; a userland of busybox is enough."""

import hashlib
import os

import pytest

from scripts.images import ALPINE, DEBIAN, NOBASH
from tests.wire import Api, until

LABEL = "rock.sandbox"
"""Label under which a deployment keeps the sandbox's id."""


@pytest.fixture(scope="module")
def api(engine_server):
    return Api(engine_server.url)


@pytest.fixture(scope="module", params=[DEBIAN, ALPINE])
def box(api, request):
    """A sandbox of each image."""
    started = api.start(image=request.param)
    yield started
    started.stop()


@pytest.fixture
def shell(box):
    opened = box.open()
    yield opened
    opened.close()


def containers(engine, sandbox_id):
    everything = engine.containers.list(all=True, ignore_removed=True)
    return [one.name for one in everything if sandbox_id in one.name or sandbox_id in one.labels.values()]


def test_an_image_without_bash_fails_to_start_and_says_why(api, engine):
    reply = api.post("/start", image=NOBASH, sandbox_id="without-bash", memory="256m", cpus=0.2)
    reply.failed(5000, "bash", kind="start_failed")
    until(lambda: not containers(engine, "without-bash"), 10, "the end of the container")
    status = api.get("/get_status", sandbox_id="without-bash").result
    assert status["state"] == "stopped" and not status["is_alive"]
    assert status["status"]["image_pull"]["status"] == "success"
    assert status["status"]["docker_run"]["status"] == "failed" and "bash" in status["status"]["docker_run"]["message"]


def test_L01_an_image_that_does_not_exist_is_said_to_be_missing(api, engine):
    reply = api.post(
        "/start", image="rock-test/no-such-image:latest", sandbox_id="no-image", memory="256m", cpus=0.2, pull="never"
    )
    assert reply.failed(5000, "rock-test/no-such-image")["kind"] in ("image_not_found", "pull_failed", "image_access")
    assert not containers(engine, "no-image")
    status = api.get("/get_status", sandbox_id="no-image").result["status"]
    assert status["image_pull"]["status"] == "failed" and "no-such-image" in status["image_pull"]["message"]


def test_a_name_that_failed_to_start_is_free_again(api):
    api.post("/start", image=NOBASH, sandbox_id="again", memory="256m", cpus=0.2).failed(5000, "bash")
    api.start(image=DEBIAN, sandbox_id="again").stop()


def test_sessions_work(shell):
    assert shell.output("v=1; echo hi; cd /") == "hi"
    assert shell.output("echo $v $PWD") == "1 /"
    assert shell.output("echo $LANG $HOME $TERM $PAGER") == "C.UTF-8 /root dumb cat", (
        "O15: no image of these sets a locale"
    )
    assert shell.run("exit 3").result["exit_code"] == 3
    assert shell.output("echo ok") == "ok"


def test_T10_a_timeout_needs_no_tool_of_the_image(shell):
    result = shell.run("echo a; sleep 98765", timeout=0.5).failed(6000, kind="command_timeout")
    assert result["output"] == "a" and shell.output("echo ok") == "ok"
    shell.run("while :; do :; done", timeout=0.5).failed(6000, kind="command_timeout")
    shell.run("(trap '' INT TERM; while :; do sleep 98765; done)", timeout=0.5).failed(6000)
    assert shell.output("echo ok") == "ok"


@pytest.mark.parametrize("size", [0, 100, 40_000, 3_000_000])
def test_output_is_true_to_the_byte(shell, size):
    assert shell.output(f"head -c {size} /dev/zero | tr '\\0' x") == "x" * size


def test_nul_and_any_byte_pass(shell):
    assert shell.execute("printf 'a\\000b\\377'", shell=True).result["stdout"] == "a\0b\\xff"


@pytest.mark.parametrize("size", [0, 10, 300_000, 5_000_000])
def test_files_of_any_size_go_in_and_out(box, size):
    data = os.urandom(size)
    assert box.upload(data, "/data/deep/up.bin").ok
    found = box.execute(["sha256sum", "/data/deep/up.bin"]).result["stdout"].split()[0]
    assert found == hashlib.sha256(data).hexdigest()
    assert box.read("/data/deep/up.bin", encoding="latin-1").result["content"] == data.decode("latin-1")


def test_a_link_is_followed_and_a_mode_is_kept(shell):
    shell.output("mkdir -p /w; cd /w; echo old > t; chmod 750 t; ln -sf t l")
    assert shell.post("/write_file", path="/w/l", content="new").ok
    assert shell.output("cat /w/t; readlink /w/l; stat -c %a /w/t") == "newt\n750"


def test_long_commands_run(shell):
    assert shell.output(f"x={'y' * 1_000_000}; echo ${{#x}}") == "1000000"
    assert shell.execute(f"x={'y' * 1_000_000}; echo ${{#x}}", shell=True).result["stdout"] == "1000000\n"


def test_what_a_program_is_missing_is_its_own_message(box):
    assert box.execute(["python3"]).result["exit_code"] == 127
    box.execute(["true"], cwd="/nope").failed(4000, "cwd")
