"""The wire contract: defaults, ranges, and the words in which a bad field is refused."""

import dataclasses
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rock import actions
from rock.actions import (
    BashAction,
    Command,
    CreateBashSessionRequest,
    SandboxRequest,
    StartRequest,
    State,
    StateTransition,
    StatusResponse,
    UploadForm,
    WriteFileRequest,
    dump,
    load,
    parse,
    parse_memory,
    schema_of,
)
from rock.errors import BadRequest, Internal

ENDINGS = ("Request", "Action", "Command", "Form")
REQUESTS = sorted(
    {item for name, item in vars(actions).items() if name.endswith(ENDINGS)}, key=lambda cls: cls.__name__
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def start(**fields):
    return load(StartRequest, {"image": "python:3.11", **fields})


def run(**fields):
    return load(BashAction, {"sandbox_id": "s", "command": "true", **fields})


def test_start_defaults():
    assert dump(start()) == {
        "request_id": None, "wait": None, "image": "python:3.11", "image_os": "linux", "sandbox_id": None,
        "memory": "8g", "cpus": 2.0, "limit_cpus": None, "disk": "50G", "num_gpus": None, "accelerator_type": None,
        "startup_timeout": None, "auto_clear_seconds": None, "auto_clear_time_minutes": None, "auto_clear_time": None,
        "auto_archive_seconds": None, "auto_delete_seconds": None, "pull": "missing", "registry_username": None,
        "registry_password": None, "docker_args": [], "route_key": None, "use_kata_runtime": False, "runtime": None,
        "env": {}, "metadata": {},
    }  # fmt: skip


def test_the_body_that_the_third_party_client_sends():
    body = {
        "image": "python:3.11", "image_os": "linux", "auto_clear_time": 5, "auto_clear_time_minutes": 5,
        "startup_timeout": 180, "memory": "8g", "cpus": 2, "num_gpus": None, "accelerator_type": None,
        "registry_username": None, "registry_password": None, "use_kata_runtime": False, "limit_cpus": None,
        "sandbox_id": None, "auto_archive_seconds": None, "auto_delete_seconds": None, "disk": "50G",
    }  # fmt: skip
    request = load(StartRequest, body)
    assert request.lease_seconds(1.0) == 300
    assert request.memory_bytes() == 8 * 2**30
    assert request.disk_bytes() == 50 * 2**30


def test_lease_takes_the_most_precise_field():
    assert start().lease_seconds(7.0) == 7.0
    assert start(auto_clear_time=2).lease_seconds(7.0) == 120
    assert start(auto_clear_time=2, auto_clear_time_minutes=0.5).lease_seconds(7.0) == 30
    assert start(auto_clear_time_minutes=1, auto_clear_seconds=3).lease_seconds(7.0) == 3


def test_null_means_the_default_except_where_it_means_none():
    assert start(memory=None, cpus=None).memory == "8g"
    assert start(disk=None).disk is None
    command = {"sandbox_id": "s", "command": "true"}
    assert load(Command, command).timeout == 1200
    assert load(Command, {**command, "timeout": None}).timeout is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"image": " "}, "image must be an image name"),
        ({"image": None}, "image must not be null"),
        ({"image": "a b"}, "image must be an image name"),
        ({"image": "a" * 513}, "image must have at most 512"),
        ({"memory": "8x"}, "memory must be an amount between 16m and 1024t"),
        ({"memory": "1m"}, "memory must be an amount between 16m"),
        ({"memory": "-1"}, "memory must be"),
        ({"memory": 0}, "memory must be"),
        ({"memory": True}, "memory must be"),
        ({"memory": "9" * 5000}, "memory must be"),
        ({"disk": "none"}, "disk must be"),
        ({"cpus": "2"}, "cpus must be a number, not text"),
        ({"cpus": True}, "cpus must be a number, not true/false"),
        ({"cpus": 0}, "cpus must be at least 0.01"),
        ({"cpus": float("nan")}, "cpus must be"),
        ({"cpus": float("inf")}, "cpus must be"),
        ({"cpus": 10**400}, "cpus must be"),
        ({"limit_cpus": -1}, "limit_cpus must be"),
        ({"startup_timeout": 0}, "startup_timeout must be above 0 and at most 31536000 seconds"),
        ({"wait": -1}, "wait must be at least 0"),
        ({"auto_clear_time": 0}, "auto_clear_time must be above 0"),
        ({"auto_archive_seconds": -1}, "auto_archive_seconds must be between 0"),
        ({"auto_archive_seconds": 1.5}, "auto_archive_seconds must be a whole number"),
        ({"auto_archive_seconds": 1, "auto_delete_seconds": 1}, "cannot be given together"),
        ({"sandbox_id": "-a"}, "sandbox_id must be 1 to 128"),
        ({"sandbox_id": "a/b"}, "sandbox_id must be"),
        ({"sandbox_id": "a\n"}, "sandbox_id must be"),
        ({"sandbox_id": "a" * 129}, "sandbox_id must be"),
        ({"pull": "often"}, "pull must be one of missing, never, always"),
        ({"image_os": "windows"}, "image_os must be one of linux"),
        ({"use_kata_runtime": "false"}, "use_kata_runtime must be true or false"),
        ({"docker_args": "-v /a:/a"}, "docker_args must be a list of texts"),
        ({"docker_args": ["-e", 1]}, "docker_args item 1: must be text, not a number"),
        ({"env": {"A": 1}}, "env A: must be text"),
        ({"env": {"A=B": "1"}}, "env 'A=B' is not a variable's name"),
        ({"env": {"A": "\0"}}, "env A: must not hold a NUL"),
        ({"env": []}, "env must be an object of texts, not a list"),
        ({"metadata": {"a": {}}}, "metadata a: must be text"),
        ({"request_id": ""}, "request_id must be 1 to 200"),
        ({"request_id": "a" * 201}, "request_id must have at most 200"),
        ({"request_id": "a\tb"}, "request_id must be"),
        ({"cpus": "2", "pull": 1}, "cpus must be a number, not text; pull must be one of"),
    ],
)  # fmt: skip
def test_start_refuses_by_name(fields, words):
    with pytest.raises(BadRequest) as refused:
        start(**fields)
    assert words in refused.value.message


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"command": "a\ud800"}, "command has a lone surrogate at position 1"),
        ({"command": ["a"]}, "command must be text, not a list"),
        ({"command": None}, "command must not be null"),
        ({"timeout": 1e12}, "timeout must be above 0 and at most 31536000 seconds"),
        ({"timeout": 0}, "timeout must be above 0"),
        ({"timeout": "5"}, "timeout must be a number, not text"),
        ({"session": ""}, "session must be 1 to 256"),
        ({"session": "a\x1b"}, "session must be 1 to 256"),
        ({"check": "maybe"}, "check must be one of raise, silent, ignore"),
        ({"sandbox_id": ""}, "sandbox_id must be"),
        ({"expect": "x"}, "expect must be a list of texts"),
        ({"action_type": "python"}, "action_type must be one of bash"),
    ],
)
def test_run_in_session_refuses_by_name(fields, words):
    with pytest.raises(BadRequest) as refused:
        run(**fields)
    assert words in refused.value.message


def test_what_passes_unchanged():
    assert run(command="a\0b\r\n").command == "a\0b\r\n"
    assert run(command="").command == ""
    assert run(session="größe 中/..").session == "größe 中/.."
    assert load(Command, {"sandbox_id": "s", "command": ["", "x"][1:]}).command == ["x"]
    assert load(Command, {"sandbox_id": "s", "command": ["printf", ""]}).command == ["printf", ""]
    assert load(WriteFileRequest, {"sandbox_id": "s", "path": "/a", "content": "\0"}).content == "\0"


@pytest.mark.parametrize("command", [[], [""], ["a", None], ["a\0"], 5, {}, "a\0"])
def test_execute_refuses(command):
    with pytest.raises(BadRequest, match="command"):
        load(Command, {"sandbox_id": "s", "command": command})


@pytest.mark.parametrize("path", ["", "a\0", "a" * 4097, 3, None])
def test_paths_that_no_file_can_have(path):
    with pytest.raises(BadRequest, match="path"):
        load(WriteFileRequest, {"sandbox_id": "s", "path": path, "content": ""})
    with pytest.raises(BadRequest, match="target_path"):
        load(UploadForm, {"sandbox_id": "s", "target_path": path})


def test_the_wire_needs_the_id_that_python_leaves_out():
    action = BashAction(command="true")
    assert action.sandbox_id == ""
    with pytest.raises(BadRequest, match="sandbox_id is required"):
        load(BashAction, {"command": "true"})


@pytest.mark.parametrize("body", [None, [], "x", 3])
def test_a_body_that_is_no_object(body):
    with pytest.raises(BadRequest, match="JSON object"):
        load(SandboxRequest, body)


@pytest.mark.parametrize("cls", REQUESTS, ids=lambda cls: cls.__name__)
@settings(deadline=None)  # the machine is shared
@given(data=st.data())
def test_any_json_is_accepted_or_refused_in_words(cls, data):
    names = [field.name for field in dataclasses.fields(cls)]
    body = data.draw(st.dictionaries(st.sampled_from([*names, "extra"]), json_values))
    try:
        request = load(cls, body)
    except BadRequest as refused:
        assert any(name in refused.message for name in names)
    else:
        again = load(cls, json.loads(json.dumps(dump(request))))
        assert again == request


@settings(deadline=None)
@given(st.integers(16, 2**20), st.sampled_from(["m", "M", "mb", "MB", "Mi", "MiB"]))
def test_memory_units_are_powers_of_1024(amount, unit):
    assert parse_memory(f"{amount}{unit}") == parse_memory(amount * 2**20) == amount * 2**20


@settings(deadline=None)
@given(st.text() | st.integers())
def test_parse_memory_answers_or_says_what_it_wants(value):
    try:
        assert 16 * 2**20 <= parse_memory(value) <= 2**50
    except ValueError as error:
        assert "512m" in str(error)


def test_memory_examples():
    assert parse_memory("8g") == parse_memory("8Gi") == parse_memory("8G") == parse_memory(8 * 2**30) == 8 * 2**30
    assert parse_memory("1.5g") == 3 * 2**29
    assert parse_memory("536870912") == parse_memory("512m")


def test_responses_go_and_come():
    sent = StatusResponse(
        sandbox_id="s",
        state=State.RUNNING,
        is_alive=True,
        status={"image_pull": {"status": "success", "message": "", "started_at": None, "completed_at": None}},
        port_mapping={"80": 32768},
        state_history=[StateTransition(from_state="pending", to_state="running", event="opened", timestamp="t")],
    )
    wire = json.loads(json.dumps(dump(sent)))
    assert wire["state"] == "running"
    got = parse(StatusResponse, {**wire, "of_a_newer_server": 1})
    assert got == sent
    assert got.status["image_pull"]["status"] == "success"


@pytest.mark.parametrize("result", [None, "x", {}, {"sandbox_id": "s", "state": "lost"}])
def test_an_answer_of_another_shape_is_the_services_fault(result):
    with pytest.raises(Internal, match="StatusResponse"):
        parse(StatusResponse, result)


def test_secrets_stay_out_of_repr():
    request = start(registry_username="u", registry_password="hunter2")
    assert "hunter2" not in repr(request)
    assert dump(request)["registry_password"] == "hunter2"


def test_schemas_are_made_once():
    assert schema_of(BashAction) is schema_of(BashAction)
    assert schema_of(CreateBashSessionRequest).fields["sandbox_id"].required


def test_large_contents_load_in_no_time():
    body = {"sandbox_id": "s", "path": "/a", "content": "é" * 10_000_000}
    began = time.perf_counter()
    load(WriteFileRequest, body)
    assert time.perf_counter() - began < 1
