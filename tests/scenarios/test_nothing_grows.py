"""R03: sandboxes, starts that fail and callers that drop their connection come and go, and no process of ours holds more. By hand: `--rounds 300`."""

import contextlib
import json
import socket
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from tests.crowd import descriptors, threads
from tests.wire import PREFIX, Api, until

SMALL = {"image": "python:3.11", "memory": "64m", "cpus": 0.05, "auto_delete_seconds": 0}
PROCESSES = ("api", "worker", "lifecycle")
AT_ONCE = 4
MORE = 10
"""So many descriptors and threads more are chance: a connection more in a pool, a thread that is just ending."""


def life(api: Api) -> None:
    """A whole sandbox, with a bit of everything."""
    box = api.start(**SMALL).open()
    assert box.output("echo hi") == "hi" and box.execute("echo hi", shell=True).ok
    assert box.upload(b"x" * 100_000, "file").ok
    box.close()
    box.stop()


def failure(api: Api) -> None:
    """A start that no node can carry out."""
    reply = api.post(
        "/start", **{**SMALL, "image": "rock-test/no-such-image:1", "pull": "never", "docker_args": ["--privileged"]}
    )
    assert not reply.ok


def drop(api: Api, shell) -> None:
    """A caller who hangs up before the answer."""
    parts, body = urlsplit(api.url), json.dumps(
        {"sandbox_id": shell.id, "session": shell.session, "command": "sleep 0.1", "request_id": uuid.uuid4().hex}
    )  # fmt: skip
    head = f"POST {PREFIX}/run_in_session HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with contextlib.closing(socket.create_connection((parts.hostname, parts.port))) as caller:
        caller.sendall((head + body).encode())


def held(stack) -> dict[str, int]:
    """Return what the processes hold."""
    pids = stack.pids()
    found = {f"descriptors of {name}": descriptors(pids[name].pid) for name in PROCESSES}
    return {**found, **{f"threads of {name}": threads(pids[name].pid) for name in PROCESSES}}


def test_R03_what_comes_and_goes_leaves_no_descriptor_and_no_thread(stack, api, pytestconfig, capsys):
    rounds, shell = pytestconfig.getoption("--rounds"), api.start(**SMALL).open()

    def come_and_go(number: int) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            work = [lambda: life(api), lambda: failure(api), lambda: drop(api, shell)]
            for done in [pool.submit(one) for _ in range(number) for one in work]:
                done.result(120)
        until(lambda: shell.run("true").ok, 60, "the end of what was dropped")

    come_and_go(AT_ONCE)  # every pool has its connections
    before = held(stack)

    def is_flat() -> bool:
        now = held(stack)
        return all(now[name] <= before[name] + MORE for name in before)

    come_and_go(rounds)
    with contextlib.suppress(AssertionError):
        until(is_flat, 20)
    after = held(stack)
    with capsys.disabled():
        sys.stdout.write(f"\n{rounds} rounds ({stack.runtime}): {before} -> {after}\n")
    assert all(after[name] <= before[name] + MORE for name in before), (before, after)
    shell.stop()
