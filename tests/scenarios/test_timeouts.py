"""A command ends at its time with what it printed, and nobody else notices: the T rows of the catalogue of faults."""

import json
import random
import shlex
import threading
import time
import uuid
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from tests.wire import PREFIX, until

PYTHON = "python3 -c 'import signal, time; signal.signal(2, lambda *a: 0); print(1, flush=True); time.sleep(LONG)'"


@pytest.fixture
def long():
    """A time in seconds that no other process of the machine sleeps: it tells the test's processes."""
    return str(random.randrange(10**6, 10**8))


def running(box, word):
    """Return how many processes of the sandbox have a word in their command line."""
    script = f"for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $f 2>/dev/null; echo; done | grep -c '{word[:-1]}[{word[-1]}]'"
    return int(box.execute(script).result["stdout"])


def test_T01_C06_a_timeout_keeps_the_output(shell):
    """The limit is the keeper's and the node's own: Celery's do nothing in its pools of threads."""
    begun = time.monotonic()
    result = shell.run("echo a; sleep 98765", timeout=1).failed(6000, "timeout", kind="command_timeout")
    assert time.monotonic() - begun < 4
    assert result["output"] == "a" and result["exit_code"] == 124 and "timeout" in result["failure_reason"]


def test_T12_a_command_that_prints_nothing_is_ended(shell):
    ticks = shell.run("for i in 1 2 3 4 5 6 7; do echo $i; sleep 0.3; done", no_output_timeout=1)
    assert ticks.ok and ticks.result["output"].endswith("7")
    begun = time.monotonic()
    result = shell.run("echo a; sleep 98765", timeout=60, no_output_timeout=1).failed(6000, "no output for 1 s")
    assert 1 <= time.monotonic() - begun < 4 and result["output"] == "a" and result["kind"] == "command_timeout"
    assert shell.output("echo ok") == "ok"


def test_T03_the_session_and_its_state_stay(shell):
    shell.run("v=kept; mkdir -p d; cd d")
    shell.run("while :; do :; done", timeout=0.5).failed(6000, kind="command_timeout")
    assert shell.output("echo $v; basename $PWD", timeout=5) == "kept\nd"


@pytest.mark.parametrize(
    "script",
    [
        "trap '' INT TERM; sleep LONG",
        "setsid sleep LONG",
        PYTHON,
        "(trap '' INT TERM; while :; do sleep LONG; done)",
        "sleep LONG & kill -STOP $!; wait",
        "sleep LONG | yes > /dev/null",
        "bash -c 'bash -c \"sleep LONG; :\"; :'",
    ],
)
def test_T04_all_that_the_command_started_is_ended(shell, script, long):
    """T02 too: no child survives, whatever it ignores and whichever process group it is in."""
    begun = time.monotonic()
    shell.run(script.replace("LONG", long), timeout=0.5).failed(6000, kind="command_timeout")
    assert time.monotonic() - begun < 6
    shell.run("trap - INT TERM")
    assert shell.output("echo ok") == "ok"
    until(lambda: running(shell, long) == 0, 10, "the end of the children")


def test_T04_nothing_else_stands_still_while_a_stubborn_command_is_ended(own):
    """Who was stopped and goes on is told by the kernel: SIGCONT."""
    other, stubborn = own.open(), own.open()
    note = "import signal, time; signal.signal(signal.SIGCONT, lambda *a: print('stopped', flush=True)); print('ready', flush=True); time.sleep(98765)"
    other.run(f"python3 -c {shlex.quote(note)} > ~/noted & until [[ -s ~/noted ]]; do sleep 0.05; done")
    stubborn.run("(trap '' INT TERM; while :; do sleep 98765; done)", timeout=0.5).failed(6000, kind="command_timeout")
    assert other.output("cat ~/noted; jobs -r | wc -l").split() == ["ready", "1"]


@pytest.mark.parametrize("timeout", [0, -1, "5", 1e12, True, float("nan"), float("inf")])
@pytest.mark.parametrize("route", ["/run_in_session", "/execute"])
def test_T06_an_impossible_timeout_is_named(shell, route, timeout):
    reply = shell.post(route, session=shell.session, command="echo hi", timeout=timeout)
    reply.failed(4000, "timeout", kind="bad_request")


def test_T06_fractions_and_null_are_timeouts(shell):
    begun = time.monotonic()
    shell.run("sleep 98765", timeout=0.5).failed(6000, "0.5")
    assert time.monotonic() - begun < 4
    assert shell.output("echo ok", timeout=None) == "ok"


def test_T07_no_layer_has_a_shorter_limit_of_its_own(shell):
    assert shell.output("sleep 35; echo done", timeout=60) == "done"


def test_T09_a_connection_that_is_dropped_loses_nothing(shell):
    request, folder = f"r-{uuid.uuid4().hex}", shell.output("pwd")
    fields = {"sandbox_id": shell.id, "session": shell.session, "request_id": request}
    fields["command"] = "echo run >> evidence; sleep 1; echo result"
    parts = urlsplit(shell.api.url)
    connection = HTTPConnection(parts.hostname, parts.port)
    connection.request("POST", f"{PREFIX}/run_in_session", json.dumps(fields), {"Content-Type": "application/json"})
    until(lambda: shell.execute(["cat", f"{folder}/evidence"]).result["exit_code"] == 0, 10, "the command")
    connection.close()
    assert shell.api.post("/run_in_session", **fields).result["output"] == "result"
    assert shell.output("cat evidence") == "run"


def test_T09_a_retry_after_a_lost_connection_runs_nothing_twice(shell):
    request = f"r-{uuid.uuid4().hex}"
    answers = []

    def ask():
        answers.append(shell.run("sleep 1; echo run >> evidence; echo result", request_id=request))

    callers = [threading.Thread(target=ask) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    answers.append(shell.run("sleep 1; echo run >> evidence; echo result", request_id=request))
    assert [answer.result["output"] for answer in answers] == ["result"] * 4
    assert shell.output("cat evidence") == "run"


def test_the_same_limit_holds_for_one_off_commands(shell, long):
    result = shell.execute(f"echo out; echo err >&2; sleep {long}", shell=True, timeout=0.5).failed(
        6000, kind="command_timeout"
    )
    assert result["exit_code"] == 124 and result["stdout"] == "out\n" and result["stderr"] == "err\n"
    until(lambda: running(shell, long) == 0, 10, "the end of the child")


def test_C13_a_running_call_is_cancelled(shell, long):
    """It ends in the sandbox, and its caller is answered with what it printed."""
    request = f"r-{uuid.uuid4().hex}"
    begun = shell.run(f"echo a; sleep {long}", request_id=request, wait=0)
    assert begun.ok and begun.result["request_id"] == request and begun.result["state"] in ("pending", "running")
    until(lambda: running(shell, long) == 1, 10, "the command")
    assert shell.api.post(f"/results/{request}/cancel").ok
    result = shell.api.get(f"/results/{request}", wait=10).failed(6000, kind="cancelled")
    assert result["output"] == "a"
    assert shell.output("echo ok") == "ok"
    until(lambda: running(shell, long) == 0, 10, "the command's end")


def test_a_waiting_call_is_withdrawn_and_never_runs(shell):
    first, second = (f"r-{uuid.uuid4().hex}" for _ in range(2))
    shell.run("sleep 2", request_id=first, wait=0)
    shell.run("echo ran > evidence", request_id=second, wait=0)
    assert shell.api.post(f"/results/{second}/cancel").ok
    shell.api.get(f"/results/{second}", wait=10).failed(6000, kind="cancelled")
    assert shell.output("ls") == "", "the first has ended, the second did not run"
