"""A talk with a program is answered when what is expected shows, it is quiet, it ends, or its time is over: once, with what was shown."""

import pytest

from app.calls import Route
from rock.errors import SandboxGone
from tests.unit.workers.desk_world import World, make
from workers.protocol import Event
from workers.talks import KILL_GRACE, MUTE, QUIET


@pytest.fixture
def world():
    return World()


class Program:
    """The keeper's side of a program that call `job` started, or talks to from `fresh` on."""

    def __init__(self, world, job, name="", given=0, fresh=0, running=True):
        self.world, self.name, self.total = world, name or f"t{job.id}", given
        self.world.hear("talk", job, self.name, given, fresh)
        if running:
            self.says("start", 0)

    def says(self, kind, *args, data=b""):
        self.world.desk.handle(Event(kind, self.name, tuple(map(str, args)), data))

    def shows(self, text):
        data = text if isinstance(text, bytes) else text.encode()
        at, self.total = self.total, self.total + len(data)
        self.says("data", 1, at, len(data), self.total, data=data)

    def ends(self, code=0, how="done"):
        self.says("done", code, how, "-")
        self.shows(f"\x1e{self.name} {code}\x1e")


def talk(world, command="python3", *expect, number=1, quit=False, ask=False, **fields):
    flag = "is_interactive_quit" if quit else "is_interactive_command"
    job = make(Route.RUN_IN_SESSION, number, command=command, expect=list(expect), **{flag: True}, **fields)
    world.desk.submit(job, ask=ask)
    return job


def result(world):
    return world.answer()["result"]


def test_what_is_expected_ends_the_wait_and_is_not_output(world):
    program = Program(world, talk(world, "print(1)", ">>> "))
    program.shows("print(1)\r\n1\r\n")
    assert not world.answers
    program.shows(">>> ")
    assert (
        result(world)["output"] == "1" and result(world)["expect_string"] == ">>> " and result(world)["exit_code"] == 0
    )


def test_what_is_expected_may_come_in_pieces_and_in_colour(world):
    program = Program(world, talk(world, "x", "(gdb) "))
    for piece in ("a\x1b[3", "1m\r", "\n(g", "d\x1b[0mb) "):
        program.shows(piece)
    assert result(world)["output"] == "a"


def test_only_what_comes_after_the_line_counts_but_what_came_before_is_given(world):
    job = talk(world, "next", ">>> ")
    program = Program(world, job, "tother", given=10, fresh=20)
    program.shows("late\r\n>>> ")
    assert not world.answers
    program.shows("next\r\nnew\r\n>>> ")
    assert result(world)["output"] == "late\n>>> new"
    assert world.sent[-1][:4] == ["GIVEN", job.id, "tother", "35"], "before the answer is stored"
    world.desk.stored(job)
    world.pass_time(1)
    assert world.sent[-1][:2] == ["ACK", job.id]


def test_without_expect_a_pause_ends_the_wait(world):
    program = Program(world, talk(world, "cat"))
    world.pass_time(MUTE - 0.1)
    program.shows("a")
    world.pass_time(QUIET - 0.1)
    program.shows("b")
    world.pass_time(QUIET - 0.1)
    assert not world.answers
    world.pass_time(0.2)
    assert result(world)["output"] == "ab"


def test_a_program_that_waits_for_the_session_has_all_its_time(world):
    program = Program(world, talk(world, "x", "y", timeout=5), running=False)
    program.says("queued")
    world.pass_time(100)
    assert not world.answers and "KILL" not in world.verbs()
    program.says("start", 0)
    world.pass_time(5)
    assert "KILL" in world.verbs()


def test_a_missed_expect_ends_the_program_and_tells_what_was_shown(world):
    program = Program(world, talk(world, "x", "never", timeout=5))
    program.shows("some")
    world.pass_time(5)
    assert world.sent[-1][:2] == ["KILL", program.name]
    program.shows("\r\nSession terminated")
    program.ends(143)
    assert result(world)["kind"] == "command_timeout" and result(world)["output"] == "some"
    assert "'never'" in result(world)["failure_reason"]


def test_a_program_that_cannot_be_ended_is_answered_for(world):
    Program(world, talk(world, "x", "never", timeout=5))
    world.pass_time(5 + KILL_GRACE)
    assert result(world)["kind"] == "command_timeout"


@pytest.mark.parametrize(
    ("code", "check", "status"), [(0, "raise", "Success"), (3, "raise", "Failed"), (3, "silent", "Success")]
)
def test_an_early_end_is_told(world, code, check, status):
    program = Program(world, talk(world, "x", "never", check=check))
    program.shows("bye\r\n")
    program.ends(code)
    assert world.answer()["status"] == status
    assert result(world)["output"] == "bye" and result(world)["exit_code"] == code
    assert f"ended with exit code {code} before any of expect showed" in result(world)["failure_reason"]


def test_the_last_line_waits_for_the_end_whatever_shows(world):
    program = Program(world, talk(world, "exit()", ">>> ", quit=True), "tp")
    program.shows("exit()\r\nbye >>> ")
    world.pass_time(100)
    assert not world.answers
    program.ends(0)
    assert (
        result(world)["output"] == "bye >>> "
        and result(world)["expect_string"] == ">>> "
        and not result(world)["failure_reason"]
    )


def test_the_end_may_be_told_before_or_after_the_last_output(world):
    program = Program(world, talk(world, "x", "never"))
    program.shows(f"all\x1e{program.name} 0\x1e")
    assert not world.answers
    program.says("done", 0, "done", "-")
    assert result(world)["output"] == "all"


def test_a_cancel_ends_the_program(world):
    job = talk(world, "x", "never")
    program = Program(world, job)
    assert world.desk.cancel(job.call.call_id)
    program.ends(143)
    assert result(world)["kind"] == "cancelled"


def test_silence_ends_the_program(world):
    program = Program(world, talk(world, "x", "never", no_output_timeout=5))
    world.pass_time(4)
    program.shows("a")
    world.pass_time(4)
    assert "KILL" not in world.verbs()
    world.pass_time(1)
    program.ends(143)
    assert "no output for 5 s" in result(world)["failure_reason"]


def test_a_new_stream_asks_again_and_answers_once(world):
    job = talk(world, "x", ">>> ")
    program = Program(world, job)
    program.shows("half")
    world.verbs()
    world.desk.resubmit()
    assert world.verbs() == ["ASK"]
    again = Program(world, job)
    again.shows("half and whole\r\n>>> ")
    assert result(world)["output"] == "half and whole"


def test_a_talk_that_the_keeper_does_not_know_is_submitted_then(world):
    job = talk(world, ask=True)
    world.verbs()
    world.hear("unknown", job)
    assert world.verbs() == ["PUT", "PUT", "TALK"]


@pytest.mark.parametrize(
    ("reason", "kind"), [("noprogram", "bad_request"), ("terminal", "bad_request"), ("nospace", "unavailable")]
)
def test_a_refusal_is_the_answer(world, reason, kind):
    world.hear("reject", talk(world), reason)
    assert result(world)["kind"] == kind


def test_a_session_that_is_not_there_refuses_the_program(world):
    job = talk(world)
    world.desk.handle(Event("reject", f"t{job.id}", ("nosession",)))
    assert result(world)["kind"] == "not_found"


def test_all_are_answered_when_the_sandbox_is_gone(world):
    Program(world, talk(world))
    world.desk.fail_all(lambda job: SandboxGone("gone"))
    assert result(world)["kind"] == "sandbox_gone"


def test_an_image_that_makes_no_terminal_is_told_of(world):
    program = Program(world, talk(world, "cat", "x"))
    program.shows("\x1etty\x1e")
    program.ends(127)
    assert result(world)["kind"] == "bad_request" and "`script`" in result(world)["failure_reason"]
