"""Processes are killed while a command runs: its caller gets the true result, and it ran exactly once."""

import os
import signal
import threading
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.wire import Api, Reply, retried, until

RETURN = 45
"""Seconds within which the supervisor starts a killed process again: it waits longer each time one dies young."""
SCRIPT = "echo begun; echo run >> {evidence}; while [[ ! -e {gate} ]]; do sleep 0.05; done; echo result; (exit 3)"


@pytest.fixture(scope="module")
def stack(make_stack):
    """A service of this module's own: its processes die. A node counts as lost as late as it does by default."""
    return make_stack(variables={"ROCK_NODE__LOST_AFTER_SECONDS": "15"}).start()


@pytest.fixture
def shell(stack):
    """A session in a sandbox of the test's own."""
    box = Api(stack.url).start()
    yield box.open()
    until(lambda: retried(lambda: box.post("/stop")).ok, what="the stop")


class Running:
    """A command that has begun and will not end before it is let."""

    def __init__(self, shell, tmp_path) -> None:
        self.shell, self.request = shell, f"r-{uuid.uuid4().hex}"
        self.evidence, self.gate = tmp_path / f"evidence-{self.request}", tmp_path / f"gate-{self.request}"
        self.script = SCRIPT.format(evidence=self.evidence, gate=self.gate)
        self._pool = ThreadPoolExecutor(1)
        self.caller: Future[Reply] = self._pool.submit(self.ask)
        until(self.evidence.exists, 20, "the command's begin")

    def ask(self) -> Reply:
        """Ask for it, and again under the same id when the connection breaks."""
        return retried(lambda: self.shell.run(self.script, request_id=self.request))

    def ends_well(self) -> None:
        """Let it end; its caller gets the truth, and it ran once."""
        self.gate.touch()
        self.was_true(self.caller.result(60))
        self._pool.shutdown()

    def was_true(self, reply: Reply) -> None:
        """Check an answer."""
        assert reply.ok and reply.result["output"] == "begun\nresult" and reply.result["exit_code"] == 3, reply.body
        assert self.evidence.read_text() == "run\n", "it ran once"


@pytest.fixture
def command(shell, tmp_path):
    return Running(shell, tmp_path)


def kill(stack, name):
    """Kill a process, and wait until the supervisor has started it again."""
    before = stack.pids()[name]
    os.kill(before.pid, signal.SIGKILL)
    until(lambda: name in (now := stack.pids()) and now[name].pid != before.pid, RETURN, f"the return of {name}")


PROCESSES = ["worker", "lifecycle", "api", "redis", "beat"]


@pytest.mark.parametrize("name", PROCESSES)
def test_a_process_dies_while_the_command_runs(stack, shell, command, name):
    kill(stack, name)
    command.ends_well()
    assert retried(lambda: shell.run("echo on")).result["output"] == "on"


@pytest.mark.parametrize("name", PROCESSES)
def test_the_command_ends_while_the_process_is_dead(stack, shell, command, name):
    os.kill(stack.pids()[name].pid, signal.SIGKILL)
    command.ends_well()
    assert retried(lambda: shell.run("echo on")).result["output"] == "on"


@pytest.mark.parametrize("name", ["worker", "api", "redis"])
def test_a_process_dies_just_when_the_command_is_sent(stack, shell, tmp_path, name):
    """Before, while and after the node takes it: at whatever moment, it runs once."""
    for pause in (0.0, 0.002, 0.01, 0.05):
        before = stack.pids()[name]
        evidence = tmp_path / f"evidence-{pause}"
        killer = threading.Timer(pause, os.kill, (before.pid, signal.SIGKILL))
        killer.start()
        request = f"r-{uuid.uuid4().hex}"
        reply = retried(lambda r=request, e=evidence: shell.run(f"echo run >> {e}; echo result", request_id=r))
        assert reply.ok and reply.result["output"] == "result", reply.body
        assert evidence.read_text() == "run\n"
        killer.join()
        until(lambda old=before: name in (now := stack.pids()) and now[name].pid != old.pid, RETURN, "its return")


def test_all_processes_die_at_once(stack, shell, command):
    for name in ("worker", "lifecycle", "api", "beat", "redis"):
        os.kill(stack.pids()[name].pid, signal.SIGKILL)
    command.ends_well()


def test_many_commands_survive_the_worker(stack, shell, tmp_path):
    """Some run, some wait in the session's queue, some are one-off: each is answered, each ran once, in order."""
    log = tmp_path / "log"

    def ask(number):
        request = f"r-{uuid.uuid4().hex}"
        if number % 3 == 0:
            script = f"sleep 0.1; echo {number} >> {log}-{number}; echo {number}"
            return retried(lambda: shell.execute(script, shell=True, request_id=request)).result["stdout"].strip()
        script = f"sleep 0.05; echo {number} >> {log}-{number}; echo {number}"
        return retried(lambda: shell.run(script, request_id=request)).result["output"]

    with ThreadPoolExecutor(30) as callers:
        answers = [callers.submit(ask, number) for number in range(30)]
        for _ in range(2):
            kill(stack, "worker")
        assert [answer.result(90) for answer in answers] == [str(number) for number in range(30)]
    assert [(tmp_path / f"log-{number}").read_text() for number in range(30)] == [f"{number}\n" for number in range(30)]


def test_a_timeout_holds_across_the_death_of_the_worker(stack, shell):
    begun = time.monotonic()
    with ThreadPoolExecutor(1) as caller:
        waiting = caller.submit(lambda: shell.run("echo a; sleep 98765", timeout=4))
        until(lambda: time.monotonic() - begun > 1)
        kill(stack, "worker")
        result = waiting.result(60).failed(6000, kind="command_timeout")
    assert result["output"] == "a" and 3.5 < time.monotonic() - begun < 4 + RETURN


def talk(shell, line, *expect, **fields):
    """Say a line to the program at the session's terminal, again under the same id while no answer comes."""
    fields = {"is_interactive_command": True, "expect": list(expect), "timeout": 60, **fields}
    request = f"r-{uuid.uuid4().hex}"
    return retried(lambda: shell.run(line, request_id=request, **fields))


def test_S33_a_program_at_the_terminal_outlives_the_worker(stack, shell, tmp_path):
    """Between lines, while a line waits for what it expects, and while the end is waited for."""
    gate, said = tmp_path / "gate", tmp_path / "said"
    shell.run("v=kept")
    assert talk(shell, "n=0; while read -r -p 'more> ' x; do eval \"$x\"; done; exit 4", "more> ").ok
    kill(stack, "worker")
    assert talk(shell, "echo $((6 * 7))", "more> ").result["output"] == "42"
    wait = f"echo run >> {said}; until [[ -e {gate} ]]; do sleep 0.05; done"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(talk, shell, f"{wait}; echo there", "more> ")
        until(said.exists, 20, "the line's begin")
        kill(stack, "worker")
        gate.touch()
        reply = waiting.result(60)
        assert reply.ok and reply.result["output"] == "there" and reply.result["expect_string"] == "more> ", reply.body
        gate.unlink()
        waiting = pool.submit(
            talk, shell, f"{wait}; echo bye; exit 4", is_interactive_command=False, is_interactive_quit=True
        )
        until(lambda: said.read_text() == "run\n" * 2, 20, "the last line's begin")
        kill(stack, "worker")
        gate.touch()
        reply = waiting.result(60)
    assert reply.ok and reply.result["output"].strip() == "bye" and reply.result["exit_code"] == 4, reply.body
    assert said.read_text() == "run\n" * 2, "each line was typed once"
    after = retried(lambda: shell.run("echo $v; (read -t 5 x; echo $?)"))
    assert after.result["output"] == "kept\n1" and not after.result["failure_reason"], "the terminal is given back"


@pytest.mark.parametrize("name", ["lifecycle", "worker", "api", "redis"])
def test_a_start_survives_the_death_of_a_process(stack, name):
    api, request = Api(stack.url), f"r-{uuid.uuid4().hex}"
    with ThreadPoolExecutor(1) as caller:
        fields = {"image": "python:3.11", "memory": "256m", "cpus": 0.2, "request_id": request}
        starting = caller.submit(lambda: retried(lambda: api.post("/start", **fields)))
        kill(stack, name)
        reply = starting.result(60)
    assert reply.ok, reply.body
    again = retried(lambda: api.post("/start", **fields))
    assert again.result["sandbox_id"] == reply.result["sandbox_id"], "one sandbox"
    assert retried(lambda: api.post("/stop", sandbox_id=reply.result["sandbox_id"])).ok


def test_state_and_files_of_a_session_survive_everything(stack, shell):
    shell.run("cd /; v=kept; f() { echo function; }")
    for name in ("worker", "redis", "api", "lifecycle"):
        kill(stack, name)
    reply = retried(lambda: shell.run("echo $v; pwd; f"))
    assert reply.result["output"] == "kept\n/\nfunction" and not reply.result["failure_reason"]


def test_an_answer_is_kept_for_a_caller_who_comes_back(stack, shell, command):
    """The API dies after the command has ended: the answer is fetched by its id."""
    command.ends_well()
    kill(stack, "api")
    command.was_true(command.ask())
    command.was_true(retried(lambda: shell.api.get(f"/results/{command.request}", wait=5)))
