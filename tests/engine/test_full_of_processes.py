"""L18: a sandbox at its limit of processes fails clearly, can be stopped, and harms no other."""

import time
import uuid

import pytest

from tests.wire import Api, Reply

LIMIT = 100
BOMB = ":(){ :|:& };:"
FILL = """for count in /sys/fs/cgroup/pids/pids.current /sys/fs/cgroup/pids.current; do [[ -r $count ]] && break; done
while read -r n <$count; ((n < 98)); do sleep 98765 & done"""


@pytest.fixture(scope="module")
def api(make_stack, engine_url):
    """A service whose sandboxes may have few processes."""
    variables = {"DOCKER_HOST": engine_url, "ROCK_RUNTIME__PIDS_LIMIT": str(LIMIT)}
    return Api(make_stack(runtime="docker", variables=variables).start().url)


@pytest.fixture
def box(api):
    box = api.start()
    yield box
    begun = time.monotonic()
    box.stop()
    assert time.monotonic() - begun < 10, "whatever runs in it (under a second where nothing else runs)"


def clear(reply: Reply) -> bool:
    """Return whether a command did its work, or failed in a way that nobody takes for an empty success."""
    if not reply.ok:
        return bool(reply.error)
    said = str(reply.result.get("output", reply.result.get("stdout")))
    return "ok" in said or reply.result["exit_code"] != 0


def test_a_fork_bomb_ends_and_others_are_unharmed(api, box):
    other = api.start()
    shell, neighbour = box.open(), other.open()
    begun = time.monotonic()
    shell.run(f"{BOMB}\nwait", timeout=5)
    assert time.monotonic() - begun < 15
    for _ in range(5):
        begun = time.monotonic()
        assert neighbour.output("echo hi") == "hi"
        assert time.monotonic() - begun < 2
    assert clear(shell.run("echo ok", timeout=5))
    assert clear(box.execute("echo ok", shell=True, timeout=5))
    other.stop()


def test_a_full_sandbox_refuses_clearly_and_still_ends_commands(box):
    """The keeper itself starts nothing that it could not: a failed fork would end it, and with it the sandbox."""
    full, shell, request = box.open(), box.open(), f"r-{uuid.uuid4().hex}"
    shell.output("true")
    full.run(FILL, timeout=20)
    for refused in (
        box.execute("echo ok", shell=True), box.execute(["echo", "ok"]), box.read("/etc/hostname"),
        box.write("/tmp/x", "x"), box.post("/create_session", session="new"),
    ):  # fmt: skip
        refused.failed(6000, "limit of processes", kind="command_failed")
    assert clear(shell.run("echo ok", timeout=5)) and clear(shell.run("/bin/echo ok", timeout=5))
    begun = time.monotonic()
    shell.run("while :; do :; done", timeout=1).failed(6000, kind="command_timeout")
    shell.run("while :; do :; done", request_id=request, wait=0)
    assert shell.api.post(f"/results/{request}/cancel").ok
    shell.api.get(f"/results/{request}", wait=10).failed(6000, kind="cancelled")
    assert time.monotonic() - begun < 15
    full.close()
