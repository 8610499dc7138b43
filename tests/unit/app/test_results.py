"""Claims, completions and waits."""

import threading
import time
from dataclasses import replace

import pytest

from app.calls import CallState, ClaimWord
from app.records import Event
from app.results import INLINE_LIMIT
from rock.errors import BadRequest, Internal, NodeLost, NotFound, NotRunning, SandboxGone


@pytest.fixture
def running(world):
    world.node()
    world.running()
    return world


def test_claim_attach_done(running):
    call = running.call("r")
    assert running.results.claim(call, 1000).word is ClaimWord.NEW
    assert running.results.claim(call, 1000).node == "n1"
    assert running.results.inflight("n1") == [call.call_id]
    assert running.results.complete(call.call_id, {"status": "Success", "result": "é\ud800"}, 1001)
    claim = running.results.claim(call, 1002)
    assert (claim.word, claim.envelope.isascii()) == (ClaimWord.DONE, True)
    assert running.results.load(call.call_id).envelope == {"status": "Success", "result": "é\ud800"}
    assert running.results.load(call.call_id).body == {}
    assert 0 < running.redis.ttl(running.keys.call(call.call_id)) <= 3600
    assert running.results.inflight("n1") == []


@pytest.mark.parametrize("change", [{"route": "execute"}, {"sandbox_id": "s2"}, {"body": {"command": "y"}}])
def test_an_id_sent_again_for_something_else_is_refused(running, change):
    running.results.claim(running.call("r"), 1000)
    with pytest.raises(BadRequest, match="request_id 'r'"):
        running.results.claim(running.call("r", **change), 1000)


def test_the_same_id_of_another_owner_is_another_call(running):
    running.running("s2", owner="bob")
    running.results.claim(running.call("r"), 1000)
    assert running.results.claim(running.call("r", sandbox_id="s2", owner="bob"), 1000).word is ClaimWord.NEW


def test_what_is_refused(running):
    results = running.results
    with pytest.raises(NotFound, match="Sandbox nope not found"):
        results.claim(running.call("a", sandbox_id="nope"), 1000)
    with pytest.raises(NotFound, match="Sandbox s1 not found"):
        results.claim(running.call("b", owner="bob"), 1000)
    assert results.claim(running.call("b2", owner="bob"), 1000, admin=True).word is ClaimWord.NEW
    with pytest.raises(NodeLost, match="n1"):
        results.claim(running.call("c"), 1016)
    running.create("s2")
    with pytest.raises(NotRunning, match="still starting"):
        results.claim(running.call("d", sandbox_id="s2"), 1000)
    running.stop("s2")
    with pytest.raises(NotRunning, match="stopped"):
        results.claim(running.call("e", sandbox_id="s2"), 1000)
    running.stop("s1", Event.GONE, reason="removed by hand")
    with pytest.raises(SandboxGone, match="removed by hand"):
        results.claim(running.call("f"), 1000)
    # Refused calls leave nothing behind.
    assert results.load(running.call("f").call_id) is None


def test_stop_is_taken_in_any_state(running):
    running.stop()
    claim = running.results.claim(running.call("x", route="stop"), 1000, need_running=False)
    assert (claim.word, claim.node) == (ClaimWord.NEW, "n1")
    assert running.sandboxes.get("s1").inflight == 0


def test_take(running):
    call = running.call("r")
    assert running.results.take(call.call_id, 1000) is None
    running.results.claim(call, 1000)
    taken = running.results.take(call.call_id, 1001)
    assert (taken.state, taken.started, taken.body, taken.node) == (CallState.RUNNING, 1001.0, {"command": "x"}, "n1")
    assert running.results.take(call.call_id, 1002).started == 1001.0
    running.results.fail(call.call_id, Internal("no"), 1003)
    assert running.results.take(call.call_id, 1004) is None


def test_only_the_first_answer_counts_and_only_pending_spares_a_taken_call(running):
    call = running.call("r")
    running.results.claim(call, 1000)
    running.results.take(call.call_id, 1000)
    assert not running.results.fail(call.call_id, Internal("late"), 1001, only_pending=True)
    assert running.results.complete(call.call_id, {"status": "Success"}, 1001)
    assert not running.results.fail(call.call_id, Internal("late"), 1001)
    assert running.results.load(call.call_id).envelope["status"] == "Success"


def test_withdraw_frees_the_id(running):
    call = running.call("r")
    running.results.claim(call, 1000)
    running.results.withdraw(call.call_id, Internal("queue"), 1000)
    assert running.results.load(call.call_id) is None
    assert running.sandboxes.get("s1").inflight == 0
    assert running.results.claim(call, 1000).word is ClaimWord.NEW


@pytest.mark.parametrize("size", [10, INLINE_LIMIT + 1])
def test_wait_is_woken(running, size):
    call = running.call("r")
    running.results.claim(call, 1000)
    answer = {"status": "Success", "result": "x" * size}
    threading.Timer(0.1, running.results.complete, (call.call_id, answer, 1001)).start()
    started = time.monotonic()
    assert running.results.wait(call.call_id, 5) == answer
    assert time.monotonic() - started < 1
    assert running.results.wait(call.call_id, 0) == answer


def test_wait_gives_up(running):
    call = running.call("r")
    running.results.claim(call, 1000)
    assert running.results.wait(call.call_id, 0.05) is None


def test_waiters_look_again_after_a_cut(running):
    results = running.results
    calls = [running.call(f"r{index}") for index in range(20)]
    answers = {}

    def wait(call):
        answers[call.call_id] = results.wait(call.call_id, 10)

    for call in calls:
        results.claim(call, 1000)
    threads = [threading.Thread(target=wait, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    for call in calls:
        # As if announced while nobody was listening.
        running.redis.hset(running.keys.call(call.call_id), "envelope", f'{{"result": "{call.request_id}"}}')
    running.redis.client_kill_filter(_type="pubsub")
    for thread in threads:
        thread.join(5)
    assert {key: value["result"] for key, value in answers.items()} == {call.call_id: call.request_id for call in calls}


def test_a_call_is_taken_before_its_deadline_or_never(running):
    early, late = replace(running.call("early"), deadline=1010.0), replace(running.call("late"), deadline=1010.0)
    running.results.claim(early, 1000)
    running.results.claim(late, 1000)
    assert running.results.take(early.call_id, 1009).deadline is None
    assert running.results.take(late.call_id, 1011) is None
    # What runs goes on, however late another worker takes it over.
    assert running.results.take(early.call_id, 5000) is not None


@pytest.mark.parametrize("length", [1, 10_000, 50_000])
def test_a_large_text_comes_back_whole_and_is_dropped_with_the_call(running, length):
    body = {"path": "/x", "content": "é" * length}
    call = running.call("r", route="write_file", body=body)
    assert running.results.claim(call, 1000).word is ClaimWord.NEW
    assert running.results.claim(call, 1000).word is ClaimWord.ATTACHED
    assert running.results.take(call.call_id, 1001).body == body
    assert running.results.load(call.call_id).body == body
    with pytest.raises(BadRequest):
        running.results.claim(running.call("r", route="write_file", body={**body, "content": "e" * length}), 1000)
    assert running.results.complete(call.call_id, {"status": "Success"}, 1002)
    assert running.results.claim(call, 1003).word is ClaimWord.DONE
    assert running.results.load(call.call_id).body == {}
    assert not running.redis.exists(running.keys.bulk(call.call_id))


def test_the_position_of_a_call_in_its_session(running):
    """Calls of other sessions, of other sandboxes and without a session stand before nobody."""
    running.running("s2")
    body = {"command": "x", "session": "a"}
    others = [
        running.call("other-session", body={**body, "session": "b"}), running.call("one-off", route="execute"),
        running.call("other-sandbox", sandbox_id="s2", body=body),
    ]  # fmt: skip
    calls = [running.call(f"r{number}", body=body) for number in range(4)]
    for number, call in enumerate([calls[0], *others, *calls[1:]]):
        running.results.claim(call, 1000 + number)
    assert [running.results.position(call.call_id) for call in calls] == [0, 1, 2, 3]
    assert [running.results.position(call.call_id) for call in others] == [0, None, 0]
    running.results.complete(calls[0].call_id, {"status": "Success"}, 1010)
    assert [running.results.position(call.call_id) for call in calls] == [None, 0, 1, 2]
    assert running.results.position("0" * 32) is None


def test_the_last_command_of_a_session_is_known_and_invented_names_do_not_pile_up(running):
    def claim(number, session):
        call = running.call(str(number), body={"command": "x", "session": session})
        running.results.claim(call, running.now)
        return call.call_id

    assert running.sandboxes.last_command("s1", None) is None
    first, second = claim(1, "a b"), claim(2, "b")
    assert running.sandboxes.last_command("s1", "a b") == first
    assert running.sandboxes.last_command("s1", None) == running.sandboxes.last_command("s1", "b") == second
    again = claim(3, "a b")
    assert running.sandboxes.last_command("s1", None) == running.sandboxes.last_command("s1", "a b") == again
    before = len(running.raw_keys())
    latest = [claim(f"n{number}", "n" * 250 + str(number)) for number in range(100)][-1]
    assert running.sandboxes.last_command("s1", None) == latest
    assert running.sandboxes.last_command("s1", "a b") is None
    assert len(running.redis.hget(running.keys.sandbox("s1"), "last")) < 16 * 300
    assert len(running.raw_keys()) == before + 100  # the calls, which expire
    running.results.claim(running.call("e", "execute"), running.now)
    assert running.sandboxes.last_command("s1", None) == latest
