"""Errors keep class, code, exit code and details over the wire."""

import json
import pickle

import pytest

from rock import errors


@pytest.mark.parametrize("cls", errors.KINDS.values(), ids=errors.KINDS)
def test_every_class_survives_the_wire(cls):
    sent = cls("why", exit_code=7, output="half", sandbox_id="s")
    got = errors.from_envelope(json.loads(json.dumps(sent.to_envelope())))
    assert type(got) is cls
    assert (got.message, got.exit_code, got.details) == ("why", 7, {"output": "half", "sandbox_id": "s"})
    assert got.to_envelope() == sent.to_envelope()


def test_the_kinds_of_the_contract_and_their_codes():
    codes = {
        4000: "bad_request not_found already_exists forbidden not_running unauthorized too_large",
        5000: "no_capacity image_not_found image_access pull_failed start_failed start_timeout node_lost sandbox_gone unavailable internal",
        6000: "session_ended command_failed command_timeout cancelled out_of_memory port_closed program_fault",
    }  # fmt: skip
    for code, kinds in codes.items():
        assert {errors.KINDS[kind].code for kind in kinds.split()} == {code}
    retryable = {kind for kind, cls in errors.KINDS.items() if cls.retryable}
    assert retryable == {"no_capacity", "pull_failed", "start_timeout", "node_lost", "unavailable", "port_closed"}
    http = {kind: cls.http_status for kind, cls in errors.KINDS.items() if cls.http_status != 200}
    assert http == {"unauthorized": 401, "route_not_found": 404, "method_not_allowed": 405, "too_large": 413, "unavailable": 503}  # fmt: skip


def test_a_detail_cannot_pose_as_the_kind():
    result = errors.NotFound("m", kind="internal", code=1).to_result()
    assert (result["kind"], result["code"]) == ("not_found", 4000)


def test_failure_reason_is_the_message_unless_it_is_given():
    assert errors.Internal("m").to_result()["failure_reason"] == "m"
    assert errors.Internal("m", failure_reason="f").to_result()["failure_reason"] == "f"


@pytest.mark.parametrize(
    ("envelope", "cls", "message"),
    [
        ({"result": {"kind": "new", "code": 6000}, "error": "e"}, errors.CommandFailed, "e"),
        ({"result": {"kind": "new", "code": 4000}, "message": "m"}, errors.BadRequest, "m"),
        ({"result": {"code": 5000, "failure_reason": "f"}}, errors.Internal, "f"),
        ({"result": {"kind": ["x"], "code": "y"}, "error": "e"}, errors.Internal, "e"),
        ({"result": None, "error": "e"}, errors.Internal, "e"),
        ({"result": "text"}, errors.Internal, "no reason was given"),
    ],
)
def test_what_is_unknown_takes_the_class_of_its_code(envelope, cls, message):
    error = errors.from_envelope(envelope)
    assert type(error) is cls
    assert error.message == message


def test_a_newer_servers_kind_is_kept_as_it_was_sent():
    error = errors.from_envelope({"result": {"kind": "moon_phase", "code": 5000, "retryable": True}})
    assert (error.kind, error.retryable) == ("moon_phase", True)


def test_errors_can_be_pickled():
    error = pickle.loads(pickle.dumps(errors.CommandFailed("m", exit_code=3, output="o")))
    assert (type(error), error.message, error.exit_code, error.details) == (
        errors.CommandFailed,
        "m",
        3,
        {"output": "o"},
    )
