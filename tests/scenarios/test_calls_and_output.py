"""A caller need not wait, may come back, and reads what a running command prints meanwhile."""

import uuid

import pytest

from tests.wire import until


@pytest.fixture
def request_id():
    return f"r-{uuid.uuid4().hex}"


def test_an_unfinished_call_says_so_and_is_polled_to_its_end(shell, request_id):
    begun = shell.run("echo a; sleep 1; echo b; (exit 3)", request_id=request_id, wait=0)
    assert begun.ok and begun.result["request_id"] == request_id and begun.result["state"] in ("pending", "running")
    answer = shell.api.get(f"/results/{request_id}", wait=30)
    assert answer.ok and answer.result["output"] == "a\nb" and answer.result["exit_code"] == 3
    assert shell.api.get(f"/results/{request_id}").body == answer.body, "it can be fetched again"


def test_a_poll_that_is_over_before_the_call_says_that_it_goes_on(shell, request_id):
    shell.run("sleep 2; echo done", request_id=request_id, wait=0)
    assert shell.api.get(f"/results/{request_id}", wait=0.2).result["state"] in ("pending", "running")
    assert shell.run("sleep 2; echo done", request_id=request_id).result["output"] == "done", "asking again attaches"


def test_a_call_that_is_quick_enough_is_answered_at_once(shell, request_id):
    assert shell.run("echo hi", request_id=request_id, wait=20).result["output"] == "hi"
    assert shell.execute("echo hi", shell=True, wait=20).result["stdout"] == "hi\n"


def test_the_header_names_a_request_as_the_field_does(shell, request_id):
    api = type(shell.api)(shell.api.url, {"X-Request-Id": request_id})
    fields = {"sandbox_id": shell.id, "session": shell.session, "command": "echo run >> evidence; echo hi"}
    for _ in range(2):
        assert api.post("/run_in_session", **fields).result["output"] == "hi"
    assert shell.output("cat evidence") == "run"


def test_output_is_read_by_offset_while_the_command_runs_and_after(shell, request_id):
    folder = shell.output("pwd")
    shell.run("printf 'one é\\n'; while [[ ! -e go ]]; do sleep 0.05; done; echo two", request_id=request_id, wait=0)

    def read(offset):
        reply = shell.api.get(f"/results/{request_id}/output", offset=offset)
        assert reply.ok, reply.body
        return reply.result

    first = until(lambda: (part := read(0))["output"] and part, 20, "the first output")
    assert first["output"] == "one é\n" and first["next_offset"] == 7 and first["done"] is False
    assert read(7)["output"] == ""
    shell.execute(["touch", f"{folder}/go"])
    assert shell.api.get(f"/results/{request_id}", wait=30).result["output"] == "one é\ntwo"
    assert until(lambda: (part := read(7))["done"] and part)["output"] == "two\n"
    assert read(0)["output"] == "one é\ntwo\n"


def test_bad_offsets_are_named(shell, request_id):
    shell.run("echo hi", request_id=request_id)
    for offset in ("-1", "x", "1.5"):
        shell.api.get(f"/results/{request_id}/output", offset=offset).failed(4000, "offset")


def test_a_waiting_command_knows_its_place_in_the_queue_of_its_session(shell):
    """FIFO: `position` says how many commands the session runs before it."""
    first, *waiting = (f"r-{uuid.uuid4().hex}" for _ in range(4))
    gate = f"{shell.output('pwd')}/go"
    shell.run(f"while [[ ! -e {gate} ]]; do sleep 0.02; done", request_id=first, wait=0)
    for number, request in enumerate(waiting, start=1):
        begun = shell.run(f"echo {number}", request_id=request, wait=0)
        assert begun.result == {"request_id": request, "state": "pending", "position": number}
    until(lambda: shell.api.get(f"/results/{first}").result == {"request_id": first, "state": "running"})
    for number, request in enumerate(waiting, start=1):
        expected = {"request_id": request, "state": "pending", "position": number}
        assert shell.api.get(f"/results/{request}", wait=0.01).result == expected
    shell.execute(["touch", gate])
    answers = [shell.api.get(f"/results/{request}", wait=30).result["output"] for request in waiting]
    assert answers == ["1", "2", "3"]
