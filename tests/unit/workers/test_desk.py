"""A desk answers each call once, with the whole truth, whatever the order in which the keeper says it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.calls import Route
from rock.errors import SandboxGone
from tests.unit.workers.desk_world import World, make, run
from workers.desk import KILL_GRACE, READ_AGAIN, READ_TRIES


@pytest.fixture
def world():
    return World()


def submitted(world, job, **options):
    world.desk.submit(job, ask=False, **options)
    world.verbs()
    return job


def test_a_new_job_is_sent_and_one_that_may_be_known_is_asked_for(world):
    world.desk.submit(run(), ask=False)
    assert world.verbs() == ["RUN"]
    world.desk.submit(run(number=2), ask=True)
    assert world.verbs() == ["ASK"]


def test_a_job_in_hand_is_not_submitted_again(world):
    job = submitted(world, run())
    world.desk.submit(job, ask=True)
    assert world.verbs() == [] and len(world.desk) == 1


def test_a_call_that_the_keeper_does_not_know_is_submitted_then(world):
    job = run()
    world.desk.submit(job, ask=True)
    world.verbs()
    world.hear("unknown", job)
    assert world.verbs() == ["RUN"]


@pytest.mark.parametrize("output_first", [True, False])
def test_the_answer_needs_the_end_and_the_whole_output(world, output_first):
    job = submitted(world, run())
    steps = [lambda: world.hear_output(job, b"hi\n"), lambda: world.hear("done", job, 0, "done")]
    for step in steps if output_first else reversed(steps):
        assert not world.answers
        step()
    assert world.answer()["status"] == "Success" and world.answer()["result"]["output"] == "hi"


def test_output_without_its_mark_is_asked_for_until_it_is_whole(world):
    job = submitted(world, run())
    world.hear_output(job, b"first ", code=None)
    world.hear("done", job, 0, "done")
    for _ in range(3):
        assert not world.answers
        world.pass_time(READ_AGAIN)
        world.hear_output(job, b"", code=None, offset=6)
    assert set(world.verbs()) == {"READ"}
    world.hear_output(job, b"second", offset=6)
    assert world.answer()["result"]["output"] == "first second"


def test_long_output_is_read_on_at_once(world):
    job = submitted(world, run())
    world.hear("data", job, 1, 0, 5, 500, data=b"12345")
    world.hear("done", job, 0, "done")
    assert world.sent == [["READ", job.id, "1", "5"]]


def test_a_mark_that_never_comes_is_given_up(world):
    job = submitted(world, run(check="silent"))
    world.hear("done", job, 7, "done")
    for _ in range(READ_TRIES + 2):
        world.pass_time(READ_AGAIN)
        world.hear_output(job, b"", code=None)
    assert world.answer()["result"]["exit_code"] == 7


def test_an_answer_is_given_once_and_forgotten_when_it_is_stored(world):
    job = submitted(world, run())
    for _ in range(2):
        world.hear_output(job, b"hi\n")
        world.hear("done", job, 0, "done")
    world.pass_time(1000)
    assert world.answer() and world.verbs() == []
    world.desk.stored(job)
    world.pass_time(1)
    assert world.verbs() == ["ACK"] and len(world.desk) == 0
    world.desk.stored(job)
    world.pass_time(1)
    assert world.verbs() == []


def test_the_next_command_takes_the_thanks_along(world):
    job = submitted(world, run())
    world.hear_output(job, b"hi\n")
    world.hear("done", job, 0, "done")
    world.desk.stored(job)
    assert world.verbs() == []
    world.desk.submit(run(number=2), ask=False)
    assert world.verbs() == ["ACK", "RUN"]


def test_a_timeout_ends_the_command_and_its_output_is_kept(world):
    job = submitted(world, run(timeout=2))
    world.hear("start", job, 0)
    world.pass_time(1.9)
    assert world.verbs() == []
    world.pass_time(0.2)
    assert world.verbs() == ["KILL"]
    world.hear_output(job, b"partial\n", 130)
    world.hear("done", job, 130, "done")
    answer = world.answer()
    assert answer["result"]["code"] == 6000 and answer["result"]["kind"] == "command_timeout"
    assert (
        answer["result"]["exit_code"] == 124
        and answer["result"]["output"] == "partial"
        and "timeout" in answer["error"]
    )


def test_the_timeout_counts_from_the_start_and_not_from_the_queue(world):
    job = submitted(world, run(timeout=2))
    world.hear("queued", job)
    world.pass_time(100)
    assert world.verbs() == []
    world.hear("start", job, 0)
    world.pass_time(2.1)
    assert world.verbs() == ["KILL"]


def test_the_timeout_goes_on_counting_when_the_process_is_a_new_one(world):
    job = run(timeout=10)
    world.desk.submit(job, ask=True)
    world.verbs()
    world.hear("start", job, 900)  # hundredths of a second
    world.pass_time(0.9)
    assert world.verbs() == []
    world.pass_time(0.2)
    assert world.verbs() == ["KILL"]


def test_a_command_that_cannot_be_stopped_is_answered_all_the_same(world):
    job = submitted(world, run(timeout=1))
    world.hear("start", job, 0)
    world.hear_output(job, b"so far", code=None)
    world.pass_time(1 + KILL_GRACE + 0.1)
    assert world.answer()["result"]["kind"] == "command_timeout" and world.answer()["result"]["output"] == "so far"


def test_an_end_before_the_timeout_is_the_commands_own(world):
    job = submitted(world, run(timeout=1, check="silent"))
    world.hear("start", job, 0)
    world.hear("done", job, 5, "done")
    world.pass_time(10)
    world.hear_output(job, b"x", 5)
    assert "KILL" not in world.verbs() and world.answer()["result"]["exit_code"] == 5


def test_cancel_ends_a_call_in_hand_only(world):
    job = submitted(world, run())
    assert world.desk.cancel(job.call.call_id) and world.verbs() == ["KILL"]
    assert not world.desk.cancel("f" * 32)
    world.hear_output(job, b"", 130)
    world.hear("done", job, 130, "done")
    assert world.answer()["result"]["kind"] == "cancelled"
    assert not world.desk.cancel(job.call.call_id)


@pytest.mark.parametrize(
    "reason, kind, code",
    [
        ("nosession", "not_found", 4000),
        ("exists", "already_exists", 4000),
        ("ended", "session_ended", 6000),
        ("withdrawn", "cancelled", 6000),
        ("nospace", "unavailable", 5000),
        ("files", "command_failed", 6000),
        ("something new", "internal", 5000),
    ],
)
def test_a_refusal_of_the_keeper_is_an_answer(world, reason, kind, code):
    job = submitted(world, run(session="mine"))
    world.hear("reject", job, reason)
    result = world.answer()["result"]
    assert (result["kind"], result["code"]) == (kind, code)
    assert "box" in world.answer()["error"] or kind == "cancelled"


def test_a_new_stream_asks_for_all_in_hand_and_starts_its_output_afresh(world):
    job, done = submitted(world, run()), submitted(world, run(number=2))
    world.hear_output(job, b"old part ", code=None)
    world.hear_output(done, b"x")
    world.hear("done", done, 0, "done")
    world.desk.resubmit()
    assert world.sent == [["ASK", job.id, "-", "-"]]
    world.hear_output(job, b"old part and new")
    world.hear("done", job, 0, "done")
    assert world.answers[-1][1]["result"]["output"] == "old part and new"


def test_when_the_sandbox_is_gone_all_in_hand_are_told(world):
    jobs = [submitted(world, run(number=number)) for number in (1, 2, 3)]
    world.hear_output(jobs[0], b"hi")
    world.hear("done", jobs[0], 0, "done")
    world.desk.fail_all(lambda job: SandboxGone(f"sandbox of {job.id} is gone"))
    kinds = [envelope["result"].get("kind") for _, envelope in world.answers]
    assert kinds == [None, "sandbox_gone", "sandbox_gone"], "the first had its answer"


def test_both_streams_of_execute_must_be_whole(world):
    job = submitted(world, make(Route.EXECUTE, command="x"))
    world.hear_output(job, b"out", 3)
    world.hear("done", job, 3, "done")
    assert not world.answers
    world.hear_output(job, b"err", 3, stream=2)
    result = world.answer()["result"]
    assert (result["stdout"], result["stderr"], result["exit_code"]) == ("out", "err", 3)


def test_events_of_calls_that_are_not_in_hand_are_ignored(world):
    world.hear_output(run(number=9), b"x")
    world.hear("done", run(number=9), 0, "done")
    assert not world.answers


@given(data=st.binary(max_size=400), cut=st.lists(st.integers(1, 60), max_size=20), done_at=st.integers(0, 20))
def test_any_split_of_the_output_and_any_moment_of_the_end_give_the_same_answer(data, cut, done_at):
    world = World()
    job = submitted(world, run(check="silent"))
    held, offset, told = data + f"\x1e{job.id} 3\x1e".encode(), 0, False
    for number, size in enumerate([*cut, len(held)]):
        if number == min(done_at, len(cut)):
            world.hear("done", job, 3, "done")
            told = True
        part = held[offset : offset + size]
        world.hear("data", job, 1, offset, len(part), len(held), data=part)
        offset += len(part)
    assert told
    text = data.decode("utf-8", "backslashreplace")
    assert world.answer()["result"]["output"] == (text[:-1] if data.endswith(b"\n") else text)
    assert world.answer()["result"]["exit_code"] == 3


def test_T12_a_command_that_is_silent_for_its_limit_is_ended(world):
    job = submitted(world, run(no_output_timeout=10))
    world.hear("start", job, 0)
    world.pass_time(9)
    world.hear("data", job, 1, 1 << 40, 0, 5)  # it printed meanwhile
    world.pass_time(9)
    assert "KILL" not in world.verbs()
    world.pass_time(2)
    assert "KILL" in world.verbs()
    world.hear_output(job, b"a\n", code=130)
    world.hear("done", job, 130, "done")
    result = world.answer()["result"]
    assert (result["kind"], result["output"]) == ("command_timeout", "a") and "no output for 10 s" in result[
        "failure_reason"
    ]
