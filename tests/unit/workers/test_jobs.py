"""What the outcome of a call means to its caller: success, or an error of the right class that keeps what is known."""

import base64

import pytest

from app.calls import Call, Route
from rock.errors import BadRequest, CommandTimeout, NotFound, RockError
from tests.unit.workers.desk_world import make, run
from workers import protocol, scripts
from workers.file_jobs import make_job
from workers.jobs import Outcome, Stopped
from workers.output import Collected


def collected(job, data=b"", code=0):
    stream = Collected(job.id, 10_000)
    held = data + f"\x1e{job.id} {code}\x1e".encode()
    stream.add(0, held, len(held))
    return stream


def outcome(job, stdout=b"", code=0, stderr=b"", **more):
    return Outcome(collected(job, stdout, code), collected(job, stderr, code), code, **more)


def error_of(job, **what):
    with pytest.raises(RockError) as caught:
        job.answer(outcome(job, **what))
    return caught.value


@pytest.mark.parametrize("check", ["silent", "ignore", "raise"])
def test_S30_a_code_that_is_not_zero_is_an_error_only_when_asked_for(check):
    job = run("(exit 7)", check=check)
    if check == "raise":
        error = error_of(job, stdout=b"said\n", code=7)
        assert (error.code, error.kind, error.exit_code) == (6000, "command_failed", 7)
        assert error.details["output"] == "said" and "(exit 7)" in error.message
    else:
        answer = job.answer(outcome(job, b"said\n", 7))
        assert (answer.output, answer.exit_code) == ("said", 7)


def test_a_message_of_the_callers_own_is_shown():
    assert error_of(run(error_msg="the build broke"), code=1).message.startswith("the build broke")


@pytest.mark.parametrize("check", ["silent", "ignore", "raise"])
@pytest.mark.parametrize("code", [0, 3])
def test_S04_a_shell_that_ends_is_the_commands_outcome(check, code):
    job = run("exit", check=check)
    if check == "raise" and code:
        error = error_of(job, stdout=b"a\n", code=code, shell_ended=True)
        assert (error.code, error.kind, error.exit_code, error.details["output"]) == (6000, "session_ended", 3, "a")
    else:
        answer = job.answer(outcome(job, b"a\n", code, shell_ended=True))
        assert answer.exit_code == code and "ended" in answer.failure_reason


def test_the_next_command_says_that_its_shell_is_a_new_one():
    answer = run().answer(outcome(run(), b"hi\n", 0, reopened=3))
    assert answer.output == "hi" and "3" in answer.failure_reason


@pytest.mark.parametrize(
    "why, kind, code", [(Stopped.TIMEOUT, "command_timeout", 124), (Stopped.CANCEL, "cancelled", 130)]
)
def test_T01_a_command_that_was_stopped_keeps_its_output(why, kind, code):
    for job in (run(timeout=2), make(Route.EXECUTE, command="x", timeout=2)):
        error = error_of(job, stdout=b"partial", code=130, stopped=why)
        assert (error.code, error.kind, error.exit_code, error.details["output"]) == (6000, kind, code, "partial")
        assert "timeout" in error.message or kind == "cancelled"


def test_a_stop_that_took_the_shell_along_says_so():
    assert "shell ended too" in error_of(run(timeout=2), code=137, stopped=Stopped.TIMEOUT, shell_ended=True).message


def test_execute_loses_nothing_of_its_streams():
    job = make(Route.EXECUTE, command="x")
    answer = job.answer(outcome(job, b"\n\n out \n\n", 3, b"err\n"))
    assert (answer.stdout, answer.stderr, answer.exit_code) == ("\n\n out \n\n", "err\n", 3)


def test_execute_with_check_fails_with_all_that_is_known():
    error = error_of(make(Route.EXECUTE, command="x", check=True), stdout=b"out", code=3, stderr=b"err")
    assert (
        error.code == 6000
        and error.exit_code == 3
        and error.details["stdout"] == "out"
        and error.details["stderr"] == "err"
    )


def test_execute_names_the_folder_that_is_not_there():
    error = error_of(make(Route.EXECUTE, command="x", cwd="/nope"), code=125, stderr=scripts.CWD_FAILED.encode())
    assert isinstance(error, BadRequest) and "cwd" in error.message and "/nope" in error.message


def test_L25_a_startup_that_fails_shows_what_it_printed():
    job = make(Route.CREATE_SESSION, startup_source=["/etc/nope"])
    error = error_of(job, stdout=b"bash: /etc/nope: No such file or directory\n", code=1)
    assert error.code == 6000 and "/etc/nope" in error.details["output"]


@pytest.mark.parametrize(
    "code, kind, said",
    [
        (scripts.NO_FILE, NotFound, "no such file"),
        (scripts.IS_FOLDER, BadRequest, "is a folder"),
        (scripts.NO_ACCESS, BadRequest, "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_the_callers_fault_and_named(code, kind, said):
    error = error_of(make(Route.READ_FILE, path="/a/b"), code=code, stderr=said.encode())
    assert type(error) is kind and "/a/b" in error.message and said in error.message and error.code == 4000


def test_F01_a_file_that_is_no_text_says_what_to_pass():
    error = error_of(make(Route.READ_FILE, path="/bin/ls"), stdout=b"\x7fELF\xff")
    assert error.code == 4000 and "latin-1" in error.message and "errors" in error.message
    for how, content in ({"encoding": "latin-1"}, "\x7fELF\xff"), ({"errors": "replace"}, "\x7fELF�"):
        job = make(Route.READ_FILE, path="/bin/ls", **how)
        assert job.answer(outcome(job, b"\x7fELF\xff")).content == content


@pytest.mark.parametrize(
    "how", [{"encoding": "nope"}, {"errors": "nope"}, {"encoding": "hex"}, {"encoding": "rot13"}, {"encoding": "zip"}]
)
def test_F21_an_unknown_encoding_is_named(how):
    error = error_of(make(Route.READ_FILE, path="/x", **how), stdout=b"a\xffb")
    assert error.code == 4000 and ("encoding" in error.message or "errors" in error.message)


def test_F21_a_known_encoding_works():
    job = make(Route.READ_FILE, path="/x", encoding="gbk")
    assert job.answer(outcome(job, "汉字".encode("gbk"))).content == "汉字"


def test_a_file_above_the_limit_is_refused():
    error = error_of(make(Route.READ_FILE, path="/big"), stdout=b"x" * 1001)
    assert error.code == 4000 and "1000" in error.message


def test_what_is_written_is_what_was_sent():
    assert make(Route.WRITE_FILE, path="/x", content="é\0\r\n").stdin() == "é\0\r\n".encode()
    upload = make(Route.UPLOAD, target_path="/x", content_base64=base64.b64encode(b"\xff\0").decode(), file_name="f")
    assert upload.stdin() == b"\xff\0" and upload.answer(outcome(upload)).file_name == "f"


@pytest.mark.parametrize(
    "route, body, verb",
    [
        (Route.RUN_IN_SESSION, {"command": "x"}, "RUN"),
        (Route.CREATE_SESSION, {}, "OPEN"),
        (Route.CLOSE_SESSION, {}, "CLOSE"),
        (Route.EXECUTE, {"command": "x"}, "EXEC"),
        (Route.READ_FILE, {"path": "/x"}, "EXEC"),
        (Route.WRITE_FILE, {"path": "/x", "content": ""}, "EXEC"),
    ],
)
def test_each_route_is_one_verb_under_the_calls_id(route, body, verb):
    job = make(route, **body)
    words = b"".join(job.frames()).split(b"\n", 1)[0].decode().split(" ")
    assert words[0] == verb and words[1] == job.id == job.call.call_id[:10]
    if route.value.endswith("session"):
        assert words[2] == protocol.session_key("default")


@pytest.mark.parametrize("route, body", [(Route.RUN_IN_SESSION, {}), (Route.EXECUTE, {}), (Route.START, {})])
def test_a_body_that_makes_no_sense_is_refused(route, body):
    with pytest.raises(BadRequest):
        make_job(Call("a" * 32, "r", "", route, "box", {"sandbox_id": "box", **body}), 1000)


def test_a_timeout_error_names_the_limit():
    error = error_of(run(timeout=0.5), code=130, stopped=Stopped.TIMEOUT)
    assert isinstance(error, CommandTimeout) and "0.5 s" in error.message


@pytest.mark.parametrize(("user", "word"), [(None, b"-"), ("nobody", b"nobody"), ("1000:1000", b"1000:1000")])
def test_S21_the_keeper_is_told_the_user_of_a_session(user, word):
    job = make(Route.CREATE_SESSION, session="a", remote_user=user)
    assert next(job.frames()).split(b" ")[3] == word


@pytest.mark.parametrize("reason", ["nouser", "oneuser", "noswitch"])
def test_S21_a_user_that_cannot_be_is_the_callers_fault(reason):
    error = make(Route.CREATE_SESSION, session="a", remote_user="nope").refused(reason)
    assert isinstance(error, BadRequest) and "remote_user 'nope'" in error.message
    assert error.details["field"] == "remote_user"


@pytest.mark.parametrize("user", ["root; id", "", "-x", "a b", "$(id)", "a:b:c", "a:", "../x", "a\nb", "a" * 65, 5])
def test_X04_a_user_is_one_word(user):
    with pytest.raises(BadRequest, match="remote_user"):
        make(Route.CREATE_SESSION, session="a", remote_user=user)
