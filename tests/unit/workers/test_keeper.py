"""What the keeper promises its host: each call runs once, in order, and is answered whole, whoever asks and however often."""

import os
import secrets
import signal
import time

import pytest

from workers import protocol
from workers.protocol import frame


def runs_recorded(keeper, name="evidence"):
    path = keeper.home / name
    return path.read_text().splitlines() if path.exists() else []


def test_a_command_is_answered_with_its_output_and_exit_code(shell):
    answer = shell.run("echo out; echo err >&2; (exit 7)")
    assert (answer.output, answer.exit_code, answer.shell_ended) == (b"out\nerr\n", 7, False)
    assert [word for word in answer.words if word != "start"] == ["data", "done"]


def test_a_one_off_command_has_its_streams_apart(keeper):
    answer = keeper.run("echo out; echo err >&2; exit 5", "pipe", "EXEC")
    assert (answer.stdout.raw(), answer.stderr.raw(), answer.exit_code) == (b"out\n", b"err\n", 5)


@pytest.mark.parametrize("mode", ["pipe", "file"])
def test_a_one_off_command_gets_its_standard_input(keeper, mode):
    data = bytes(range(256)) * 3000
    answer = keeper.run("cat", mode, "EXEC", stdin=data)
    assert answer.stdout.raw() == data and answer.exit_code == 0


def test_without_standard_input_there_is_its_end(keeper):
    assert keeper.run("cat; echo done", "pipe", "EXEC").output == b"done\n"


def test_a_call_submitted_again_runs_once(shell):
    call = shell.start("echo run >> evidence; echo result")
    for _ in range(3):
        shell.submit(call, b"\\builtin eval 'echo run >> evidence; echo result'")
    assert shell.end_of(call).output == b"result\n"
    shell.submit(call, "echo run >> evidence")
    shell.until(lambda: shell.answer(call).words.count("done") >= 2, "the answer again")
    assert runs_recorded(shell) == ["run"]


def test_a_call_submitted_again_before_its_shell_has_read_it_keeps_its_output(shell):
    pid = int(shell.run("echo $$").output)
    os.kill(pid, signal.SIGSTOP)
    call = shell.start("echo result")
    shell.says(call, "start")
    shell.submit(call, "echo result")
    shell.until(lambda: shell.answer(call).words.count("start") >= 2, "the answer to the second")
    os.kill(pid, signal.SIGCONT)
    assert shell.end_of(call).output == b"result\n"


def test_a_new_host_learns_by_asking_what_became_of_each_call(shell):
    finished, running, waiting = shell.start("echo a; (exit 4)"), secrets.token_hex(5), secrets.token_hex(5)
    shell.end_of(finished)
    shell.submit(running, b"\\builtin eval 'echo first; read _ < fifo; echo second'")
    shell.submit(waiting, b"\\builtin eval 'echo last'")
    shell.says(running, "start")
    shell.says(waiting, "queued")

    shell.answers.clear()
    shell.attach()
    for call in (finished, running, waiting, "ffffffffff"):
        shell.send([frame("ASK", call)])
    shell.says("ffffffffff", "unknown")
    assert shell.end_of(finished).output == b"a\n" and shell.end_of(finished).exit_code == 4
    assert "start" in shell.answer(running).words and "queued" in shell.answer(waiting).words


def test_the_time_a_command_has_run_is_told_to_a_new_host(shell):
    begun = time.monotonic()
    call = shell.start("sleep 60")
    shell.says(call, "start")
    shell.until(lambda: time.monotonic() - begun > 0.5, "half a second")
    seen = len(shell.events)
    shell.send([frame("ASK", call)])
    shell.until(lambda: len(shell.events) > seen, "the answer")
    spent = int(shell.events[-1].args[0]) / 100
    assert shell.events[-1].kind == "start" and 0.3 <= spent <= time.monotonic() - begun + 0.05


def test_commands_of_one_session_run_in_the_order_they_came(shell):
    calls = [shell.start(f"echo {number} >> evidence") for number in range(20)]
    for call in calls:
        shell.end_of(call)
    assert runs_recorded(shell) == [str(number) for number in range(20)]


def test_sessions_run_side_by_side(keeper):
    keeper.open("one")
    keeper.open("two")
    waits = keeper.start("read line < fifo; echo got $line", "one")
    keeper.says(waits, "start")
    assert keeper.run("echo hello > fifo; echo sent", "two").output == b"sent\n"
    assert keeper.end_of(waits).output == b"got hello\n"


def test_a_waiting_call_is_withdrawn_and_never_runs(shell):
    first, second, third = (
        shell.start("read _ < fifo"),
        shell.start("echo no >> evidence"),
        shell.start("echo yes >> evidence"),
    )
    shell.says(second, "queued")
    shell.send([frame("KILL", second)])
    assert shell.end_of(second).reason == "withdrawn"
    shell.release()
    assert shell.end_of(first).exit_code == 0 and shell.end_of(third).exit_code == 0
    assert runs_recorded(shell) == ["yes"]


def test_a_withdrawn_call_may_be_submitted_again(shell):
    first, second = shell.start("read _ < fifo"), shell.start("echo again")
    shell.send([frame("KILL", second)])
    assert shell.end_of(second).reason == "withdrawn"
    shell.release()
    shell.end_of(first)
    shell.answers.pop(second)
    shell.submit(second, b"\\builtin eval 'echo again'")
    assert shell.end_of(second).output == b"again\n"


def test_a_session_must_be_opened_first(keeper):
    assert keeper.run("echo x", "nobody").reason == "nosession"


def test_a_living_name_is_not_opened_twice(shell):
    shell.run("v=kept")
    assert shell.run(":", "s", "OPEN").reason == "exists"
    assert shell.run("echo $v").output == b"kept\n"


def test_a_frame_cut_short_by_a_host_that_died_harms_nothing(shell):
    whole = frame("RUN", "0123456789", "s", "-", b"\\builtin eval 'echo no >> evidence'")
    for length in (3, 12, len(whole) - 40, len(whole) - 2, len(whole) - 1):
        shell.cut_short(whole[:length])
        shell.attach()
        assert shell.run(f"echo after {length}").output == f"after {length}\n".encode()
    assert runs_recorded(shell) == []
    shell.submit("0123456789", b"\\builtin eval 'echo once >> evidence'")
    assert shell.end_of("0123456789").exit_code == 0
    assert runs_recorded(shell) == ["once"]


def test_a_large_payload_cut_short_is_whole_when_it_is_sent_again(keeper):
    data = secrets.token_bytes(600_000)
    frames = list(protocol.submit("EXEC", "abcdef0123", "file", b"cat", data))
    keeper.cut_short(frames[0] + frames[1][: len(frames[1]) // 2])
    keeper.attach()
    keeper.submit("abcdef0123", "cat", "file", "EXEC", data)
    assert keeper.end_of("abcdef0123").stdout.raw() == data


def test_what_an_earlier_host_left_in_the_stream_reaches_no_later_one(shell):
    calls = [shell.start(f"seq {number} {number + 500}") for number in range(10)]
    shell.answers.clear()
    shell.attach()
    assert shell.run("echo mine").output == b"mine\n"
    for number, call in enumerate(calls):
        shell.send([frame("ASK", call)])
        expected = "".join(f"{one}\n" for one in range(number, number + 501)).encode()
        assert shell.end_of(call).output == expected


@pytest.mark.parametrize("size", [0, 1, 32_767, 32_768, 32_769, 1_048_576, 5_000_000])
def test_output_of_any_size_arrives_whole(shell, size):
    answer = shell.run(f"head -c {size} /dev/zero | tr '\\0' x")
    assert answer.output == b"x" * size and answer.exit_code == 0


def test_output_is_read_by_offset_while_the_command_runs(shell):
    call = shell.start("printf 0123456789; read _ < fifo; printf abc")
    shell.says(call, "start")

    def read(offset):
        before = len(shell.events)
        shell.send([frame("READ", call, "1", str(offset))])
        shell.until(lambda: [one for one in shell.events[before:] if one.kind == "data"], "data")
        return next(one.data for one in shell.events[before:] if one.kind == "data")

    shell.until(lambda: read(0) == b"0123456789", "the output so far")
    assert read(4) == b"456789" and read(10) == b""
    shell.release()
    shell.until(lambda: "done" in shell.answer(call).words, "the end")
    assert read(8).startswith(b"89abc")


def test_every_byte_value_passes(shell):
    everything = "".join(f"\\x{value:02x}" for value in range(256))
    assert shell.run(f"printf '{everything}'").output == bytes(range(256))
    assert shell.run(f"printf '{everything}' | tee bytes").output == bytes(range(256))
    assert (shell.home / "bytes").read_bytes() == bytes(range(256))


def test_nul_bytes_pass_in_large_output_too(shell):
    assert shell.run("head -c 100000 /dev/zero").output == bytes(100_000)


@pytest.mark.parametrize("size", [5_000, 200_000, 1_000_000])
def test_a_long_command_runs(shell, size):
    assert shell.run(f"echo {'x' * size} | wc -c").output == f"{size + 1}\n".encode()


def test_a_command_that_prints_marks_and_events_fools_nobody(shell):
    call = secrets.token_hex(5)
    (shell.home / "name").write_text(call + "\n")
    shell.submit(call, "read call < name; printf '\\036%s 99\\036' $call; echo 'done x 0 done'; (exit 3)")
    answer = shell.end_of(call)
    assert answer.exit_code == 3 and answer.output.endswith(b"done x 0 done\n")


def test_R09_the_run_folder_stays_small(shell):
    for number in range(300):
        shell.run("echo x")
        if number % 3 == 0:
            shell.run("echo x", "pipe", "EXEC")
            shell.run("cat", "file", "EXEC", stdin=b"x" * 100)
    assert len(list(shell.folder.iterdir())) < 200
    assert sum(one.stat().st_size for one in shell.folder.iterdir()) < 100_000


def test_an_acknowledged_call_is_forgotten(shell):
    call = shell.start("echo x")
    shell.end_of(call)
    shell.send([frame("ACK", call), frame("ASK", call)])
    shell.says(call, "reject")
    assert shell.answer(call).reason == "past"
    shell.send([frame("ASK", "0123456789")])
    shell.says("0123456789", "unknown")


@pytest.mark.parametrize(("verb", "target"), [("RUN", "s"), ("EXEC", "pipe")])
def test_an_answered_call_never_runs_again(shell, verb, target):
    """The host may have forgotten in a crash that it had the answer."""
    call = shell.start("echo run >> $HOME/runs", target, verb)
    shell.end_of(call)
    for number in (1, 2):
        shell.send([frame("ACK", call)])
        shell.submit(call, "echo run >> $HOME/runs", target, verb)
        shell.until(lambda n=number: shell.answer(call).words.count("reject") == n, "the refusal")
    assert (shell.home / "runs").read_text() == "run\n"


def test_only_the_latest_answered_calls_are_remembered(shell):
    first = shell.start("true", "pipe", "EXEC")
    shell.end_of(first)
    shell.send([frame("ACK", first), *(frame("ACK", f"{number:010x}") for number in range(1000)), frame("ASK", first)])
    shell.says(first, "unknown")


def test_an_end_at_the_moment_of_the_keepers_own_clock_is_not_lost(shell):
    """The keeper looks up 20 ms after a command began; an event that arrives just then must not be cut in two."""
    for number in range(20):
        spent = 0.017 + number % 10 * 0.0005
        assert shell.run(f"sleep {spent}; echo {number}").output == f"{number}\n".encode()
        assert shell.run(f"sleep {spent}; echo {number}", "pipe", "EXEC").output == f"{number}\n".encode()
