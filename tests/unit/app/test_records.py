"""Records and their way in and out of Redis; calls; keys; what clients see."""

from dataclasses import replace

import pytest

from app import status
from app.calls import Call, call_id, fingerprint
from app.keys import Keys, check_name
from app.records import TRANSITIONS, Event, NodeRecord, SandboxRecord, State, millicpus
from rock.actions import StatusResponse, parse
from rock.errors import BadRequest

RECORD = SandboxRecord(
    sandbox_id="s1", owner="alice", node="n1", cpus=0.5, memory=2**30, lease=60.0, created=1000.0,
    spec={"image": "x", "memory": "1g", "metadata": {"a": 1}}, identity={"user_id": "u"}, start_call="c",
    host_name="h", host_ip="1.2.3.4", port_mapping={"80": 1234}, container={"id": "abc"}, runtime="docker",
    phases={"image_pull": {"status": "success", "message": "", "started_at": 1000.5, "completed_at": 1001.5}},
    history=[{"from_state": "pending", "to_state": "running", "event": "started", "timestamp": 1002.0}],
)  # fmt: skip
RUNNING = replace(RECORD, state=State.RUNNING, started=1002.0, expires=1062.0)


def test_records_round_trip():
    assert SandboxRecord.from_hash("s1", RUNNING.to_hash()) == RUNNING
    node = NodeRecord("n1", 4.0, 2**33, labels={"cluster": "x"}, deployment="docker", info={"engine": "20"})
    assert NodeRecord.from_hash("n1", node.to_hash()) == node


def test_calls_round_trip():
    call = Call("i", "r", "o", "execute", "s1", {"command": ["ls"]}, "n1", 1.5, 2.5)
    assert Call.from_hash("i", call.to_hash()) == call


def test_call_ids_keep_owners_apart():
    assert call_id("a", "b") != call_id("", "ab")
    assert len(call_id("ü\ud800", "x")) == 32
    one = Call("i", "r", "o", "execute", "s1")
    assert fingerprint(one, "{}") != fingerprint(replace(one, route="start"), "{}")


@pytest.mark.parametrize("name", ["", "../x", "A b", "ü", "x" * 129, "a:b", "-a", "a\n"])
def test_names_that_could_be_keys_or_paths_are_refused(name):
    with pytest.raises(BadRequest, match="sandbox_id"):
        check_name(name, "sandbox_id")


def test_a_prefix_is_no_pattern():
    with pytest.raises(ValueError, match="prefix"):
        Keys("a*")


@pytest.mark.parametrize(("cpus", "thousandths"), [(1, 1000), (0.1, 100), (0.0001, 1), (0.3, 300), (1.0011, 1002)])
def test_reservations_round_up(cpus, thousandths):
    assert millicpus(cpus) == thousandths


def test_ended_states_never_run_again_by_themselves():
    assert set(TRANSITIONS) == set(State)
    assert State.RUNNING not in TRANSITIONS[State.STOPPED]


def test_status_is_what_the_contract_says():
    shown = status.to_status(RUNNING, True)
    parsed = parse(StatusResponse, shown)
    assert (parsed.is_alive, parsed.state, parsed.cpus, parsed.memory) == (True, State.RUNNING, 0.5, "1g")
    assert parsed.port_mapping == {"80": 1234}
    assert shown["auto_stop_time"] == "1970-01-01T00:17:42.000+00:00"
    assert shown["status"]["image_pull"]["completed_at"] == "1970-01-01T00:16:41.500+00:00"
    assert shown["status"]["docker_run"]["status"] == "waiting"
    assert shown["state_history"][0]["timestamp"].endswith("+00:00")
    assert "abc" not in str(shown)


def test_status_tells_a_lost_node_and_missing_isolation():
    assert status.to_status(RUNNING, False)["is_alive"] is False
    assert "node lost" in status.message(RUNNING, False)
    assert status.to_status(replace(RUNNING, runtime="local"), True)["isolated"] is False


def test_R10_status_tells_what_is_not_enforced_as_it_was_asked():
    assert status.to_status(RUNNING, True)["notes"] == []
    noted = replace(RUNNING, container={**RUNNING.container, "notes": ["disk limit not enforced here"]})
    assert status.to_status(noted, True)["notes"] == ["disk limit not enforced here"]


def test_who_sees_ended_sandboxes():
    stopped = replace(RUNNING, state=State.STOPPED, stopped=2000.0, stop_event=Event.STOP.value)
    assert status.is_visible(stopped, True, 2001)
    assert not status.is_visible(stopped, False, 2001)
    failed = replace(stopped, stop_event=Event.START_FAILED.value)
    assert status.is_visible(failed, False, 2599)
    assert not status.is_visible(failed, False, 2601)
