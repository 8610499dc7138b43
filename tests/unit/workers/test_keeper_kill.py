"""A command that does not end is ended, with all that it started; the session and its state stay."""

import os
import signal
import time
from pathlib import Path

import pytest

from workers.protocol import frame

BOUND = 15.0
"""Seconds in which the keeper must have ended whatever it is."""


def kill(keeper, call):
    """End a call, and return its answer."""
    begun = time.monotonic()
    keeper.send([frame("KILL", call)])
    answer = keeper.end_of(call)
    assert time.monotonic() - begun < BOUND
    return answer


def living(keeper, word):
    """Return the processes of the sandbox whose command line holds a word."""
    return [line for line in keeper.processes().values() if word in line and "rock-keeper" not in line]


PYTHON_IGNORING = "python3 -c 'import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]; print(1, flush=True); time.sleep(98765)'"
ENDLESS = {
    "a sleep": "echo a; sleep 98765; echo b",
    "a pure loop": "echo a; while :; do :; done",
    "a loop of programs": "echo a; while :; do sleep 0.01; done",
    "a loop over failing programs": "echo a; until false; do ls /nope 2>/dev/null; done",
    "a subshell": "echo a; (while :; do :; done)",
    "a pipeline": "echo a; yes | cat >/dev/null",
    "a pipeline that prints": "echo a; yes",
    "a command substitution": "echo a; x=$(sleep 98765)",
    "INT and TERM ignored by a child": "echo a; (trap '' INT TERM; sleep 98765; while :; do sleep 98765; done)",
    "INT and TERM ignored by a program": f"echo a; {PYTHON_IGNORING}",
    "a process group of its own": "echo a; setsid sleep 98765",
    "a process group of its own, waited for": "echo a; setsid --wait sleep 98765",
    "a job that is waited for": "echo a; sleep 98765 & wait",
    "a stopped job": "echo a; sleep 98765 & kill -STOP $!; sleep 98765",
    "a stopped foreground child": "echo a; bash -c 'kill -STOP $$; sleep 98765'",
    "a builtin that waits": "echo a; read _ < ~/fifo; echo no",
    "a builtin that waits in a function": "echo a; f() { read _ < ~/fifo; echo no; }; f; echo no",
    "a nested shell": "echo a; bash -c 'bash -c \"sleep 98765; :\"; :'",
    "a list of sleeps": "echo a; " + "sleep 98765; " * 20,
    "a tree": "echo a; for i in 1 2 3; do (sleep 98765 & sleep 98765) & done; wait",
    "a trap on INT that goes on": "echo a; trap 'echo no' INT; sleep 98765; trap - INT",
    "exec of a program": "echo a; exec sleep 98765",
}


@pytest.mark.parametrize("script", ENDLESS.values(), ids=ENDLESS)
def test_a_command_that_does_not_end_is_ended_and_the_session_goes_on(shell, script):
    shell.run("cd /; v=kept")
    call = shell.start(script)
    shell.until(lambda: first_output(shell, call).startswith(b"a\n"), "the command's first line")
    answer = kill(shell, call)
    assert answer.output.startswith(b"a\n") and b"no\n" not in answer.output[:1000]
    after = shell.run("echo $v; pwd")
    if answer.shell_ended:
        assert "exec" in script and after.reopened is not None
    else:
        assert after.output == b"kept\n/\n"
    shell.until(
        lambda: not living(shell, "98765") and not living(shell, "yes"), "the end of all that the command started"
    )


def first_output(keeper, call):
    keeper.send([frame("READ", call, "1", "0")])
    keeper.until(lambda: [one for one in keeper.events if one.id == call and one.kind == "data"], "data")
    return next(one.data for one in reversed(keeper.events) if one.id == call and one.kind == "data")


def test_a_command_that_forks_away_is_ended(shell):
    """Each process starts its successor and ends: a moving target, as a fork bomb is, but of bounded size."""
    before = len(shell.processes())
    call = shell.start("hare() { sleep 0.1; hare & }; for i in 1 2 3 4 5; do hare & done; read _ < ~/fifo")
    shell.until(lambda: len(shell.processes()) > before + 4, "the hares")
    kill(shell, call)
    shell.until(lambda: len(shell.processes()) <= before + 1, "the end of the hares")
    assert shell.run("echo ok").output == b"ok\n"


@pytest.mark.parametrize(
    "script",
    [
        "sleep 98765",
        "while :; do :; done",
        "setsid sleep 98765; sleep 98765",
        "(trap '' INT TERM; sleep 98765)",
        "(setsid sleep 98765 &); sleep 98765",
    ],
)
def test_a_one_off_command_is_ended_too(keeper, script):
    call = keeper.start(f"echo a; {script}", "pipe", "EXEC")
    keeper.until(lambda: first_output(keeper, call).startswith(b"a\n"), "the first line")
    assert kill(keeper, call).output.startswith(b"a\n")
    keeper.until(lambda: not living(keeper, "98765"), "its end")


def test_a_job_of_an_earlier_command_is_spared(shell):
    shell.run("sleep 98765 &")
    call = shell.start("sleep 12345")
    shell.says(call, "start")
    shell.until(lambda: living(shell, "12345"), "the command")
    kill(shell, call)
    assert living(shell, "98765") and not living(shell, "12345")
    assert b"sleep 98765" in shell.run("jobs").output


def test_other_sessions_and_one_off_commands_are_spared(keeper):
    keeper.open("one")
    keeper.open("two")
    other, one_off = keeper.start("read _ < fifo; echo two", "two"), keeper.start("sleep 98765", "pipe", "EXEC")
    call = keeper.start("sleep 12345", "one")
    for one in (other, one_off, call):
        keeper.says(one, "start")
    kill(keeper, call)
    assert living(keeper, "98765")
    keeper.release()
    assert keeper.end_of(other).output == b"two\n"


def test_a_command_is_ended_although_whoever_ends_it_is_killed(shell):
    call = shell.start("echo a; (trap '' INT TERM; sleep 98765; :)")
    shell.until(lambda: living(shell, "98765"), "the command")
    before = children(shell)
    shell.send([frame("KILL", call)])
    shell.until(lambda: children(shell) - before, "the killer")
    (killer,) = children(shell) - before
    os.kill(int(killer), signal.SIGKILL)
    assert living(shell, "98765"), "it was not done yet"
    assert shell.end_of(call).output == b"a\n"
    assert not living(shell, "98765") and shell.run("echo ok").output == b"ok\n"


def children(keeper):
    pid = keeper.process.pid
    return set(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def test_T04_stubborn_commands_that_are_ended_together_do_not_wait_for_each_other(keeper):
    """Each of them takes the machine from the others; one after the other would take longer than the sleep."""
    for number in range(9):
        keeper.open(str(number))
    calls = [keeper.start("echo a; (trap '' INT TERM; while :; do :; done)", str(number)) for number in range(8)]
    sleeper = keeper.start("sleep 5", "8")
    for call in [*calls, sleeper]:
        keeper.says(call, "start")
    keeper.send([frame("KILL", call) for call in calls])
    for call in calls:
        assert keeper.end_of(call).output == b"a\n"
    assert keeper.answer(sleeper).exit_code is None
    assert keeper.run("echo ok", "0").output == b"ok\n"


def test_the_next_command_waits_for_the_end_and_runs(shell):
    call, following = shell.start("sleep 98765"), shell.start("echo next")
    shell.says(following, "queued")
    kill(shell, call)
    assert shell.end_of(following).output == b"next\n"


def test_a_handler_on_int_gets_to_clean_up(shell):
    # Without a child: bash takes an INT for handled elsewhere, and runs no trap, when the child it waits for just then ends by itself.
    call = shell.start("bash -c 'trap \"echo cleaned; exit 9\" INT; echo a; while :; do :; done'")
    shell.until(lambda: first_output(shell, call).startswith(b"a\n"), "the first line")
    assert kill(shell, call).output == b"a\ncleaned\n"


def test_an_end_just_before_the_kill_is_the_commands_own(shell):
    call = shell.start("exec_code() { return 5; }; exec_code")
    shell.says(call, "done")
    shell.send([frame("KILL", call)])
    answer = shell.end_of(call)
    assert answer.exit_code == 5 and answer.words.count("done") == 1
    assert shell.run("echo ok").output == b"ok\n"


def test_kills_in_a_row_and_at_odd_moments_leave_a_working_session(shell):
    for number in range(30):
        call = shell.start(f"for i in {{1..{number * 40}}}; do :; done; sleep 0.0{number % 10}; echo {number}")
        for _ in range(number % 3 + 1):
            shell.send([frame("KILL", call)])
        answer = shell.end_of(call)
        assert answer.output in (b"", f"{number}\n".encode()), "an end by kill or its own"
        after = shell.run(f"echo after {number}")
        assert after.output == f"after {number}\n".encode() and after.reopened is None


def test_late_output_of_an_ended_command_reaches_no_other(shell):
    call = shell.start("sleep 98765 & (sleep 0.3; echo LATE) & sleep 98765")
    shell.says(call, "start")
    shell.until(lambda: len(living(shell, "98765")) >= 2, "the command")
    kill(shell, call)
    assert shell.run("sleep 0.5; echo two").output == b"two\n"


def test_a_keeper_that_is_told_to_end_does_not(keeper):
    """It is the main process of a container: signals from inside must not end the sandbox."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        os.kill(keeper.process.pid, number)
    keeper.open()
    assert keeper.run("echo ok").output == b"ok\n"
