"""Programs at a terminal of a session: driven line by line, ended, and the session as before (S33)."""

import time

import pytest

from tests.wire import Api, until

PYTHON = "python3 -i -q"


def talk(box, line, *expect, timeout=20, **fields):
    return box.run(line, is_interactive_command=True, expect=list(expect), timeout=timeout, **fields)


def quit(box, line, **fields):
    return box.run(line, is_interactive_quit=True, timeout=20, **fields)


def test_S33_a_program_is_driven_line_by_line(shell):
    shell.run("export OWN=1; cd /usr; v=kept")
    started = talk(shell, PYTHON, ">>> ").result
    assert (started["output"], started["expect_string"], started["exit_code"]) == ("", ">>> ", 0)
    assert talk(shell, "print(6 * 7)", ">>> ").result["output"] == "42"
    seen = talk(shell, "import os; print(os.getcwd(), os.environ['OWN'], os.isatty(0))", r"(?m)^>>> $").result
    assert seen["output"] == "/usr 1 True" and seen["expect_string"] == r"(?m)^>>> $"
    assert quit(shell, "exit(0)").result["exit_code"] == 0
    assert shell.output("echo $v $OWN $PWD") == "kept 1 /usr"


def test_S33_a_missed_expect_is_an_error_and_the_session_goes_on(shell):
    begun = time.monotonic()
    result = talk(shell, "echo partial; sleep 98765", "never", timeout=1).failed(6000, "never", kind="command_timeout")
    assert time.monotonic() - begun < 8 and result["output"] == "partial"
    assert shell.output("echo ok") == "ok"


def test_S33_a_program_that_ends_early_is_told(shell):
    seen = talk(shell, "echo over", "never").result
    assert (
        seen["output"] == "over"
        and seen["exit_code"] == 0
        and "ended with exit code 0 before" in seen["failure_reason"]
    )
    talk(shell, "exit 3", "never", check="raise").failed(6000, "exit code 3", kind="command_failed")
    assert talk(shell, "exit 3", "never", check="silent").result["exit_code"] == 3


def test_without_expect_a_pause_ends_the_wait(shell):
    assert talk(shell, "cat").result["output"] == ""
    assert talk(shell, "hello").result["output"] == "hello"
    assert quit(shell, "\x04").result["exit_code"] == 0


def test_a_prompt_that_is_no_pattern_is_found_as_text(shell):
    script = "while read -e -p '(gdb) ' x && [[ $x != quit ]]; do echo \"<$x>\"; done"
    assert talk(shell, script, "(gdb) ").result["expect_string"] == "(gdb) "
    assert talk(shell, "info line", "(gdb) ").result["output"] == "<info line>"
    assert quit(shell, "quit").result["exit_code"] == 0


def test_bash_inside_bash(shell):
    assert talk(shell, "PS1='inner> ' bash --norc", "inner> ").ok
    assert talk(shell, "cd /tmp; x=5; echo $x", "inner> ").result["output"] == "5"
    assert talk(shell, "sleep 98765 &\nkill %1; wait; echo $PWD", "inner> $").ok
    assert quit(shell, "exit 4", check="silent").result["exit_code"] == 4
    assert shell.output("echo ${x-unset}") == "unset"


def test_passwords_are_typed_and_never_shown(shell):
    asked = talk(shell, "read -s -p 'Password: ' p; echo; echo got ${#p}", "Password: ").result
    assert asked["expect_string"] == "Password: "
    assert quit(shell, "secret").result["output"].strip() == "got 6"


def test_a_password_is_read_from_the_terminal_itself(shell):
    script = "import getpass; print(len(getpass.getpass('Secret: ')))"
    assert talk(shell, f'python3 -c "{script}" </dev/null', "Secret: ").ok
    assert quit(shell, "secret").result["output"].strip() == "6"


def test_control_keys_reach_the_program(shell):
    talk(shell, PYTHON, ">>> ")
    slow = shell.post(
        "/run_in_session",
        session=shell.session,
        command="import time; time.sleep(98765)",
        is_interactive_command=True,
        expect=[">>> "],
        wait=0,
        request_id=f"slow-{shell.session}",
    )
    assert slow.ok
    assert "KeyboardInterrupt" in talk(shell, "\x03", ">>> ").result["output"]
    assert quit(shell, "exit()").ok


def test_other_commands_are_refused_while_a_program_has_the_terminal(shell):
    talk(shell, PYTHON, ">>> ")
    shell.run("echo no").failed(4000, "is_interactive_quit", kind="bad_request")
    assert quit(shell, "exit()").ok
    quit(shell, "exit()").failed(4000, "no interactive program", kind="bad_request")
    assert shell.output("echo ok") == "ok"


def test_a_pattern_that_cannot_be_searched_for_is_refused(shell):
    talk(shell, "cat", "(?=a)").failed(4000, "expect", kind="bad_request")
    assert shell.output("echo ok") == "ok"


def test_a_talk_can_be_cancelled(shell):
    name = f"talk-{shell.session}"
    shell.post("/run_in_session", session=shell.session, command="echo up; sleep 98765", is_interactive_command=True,
               expect=["never"], wait=0, request_id=name)  # fmt: skip
    until(lambda: shell.api.get(f"/results/{name}").result["state"] == "running")
    shell.api.post(f"/results/{name}/cancel")
    shell.api.get(f"/results/{name}", wait=20).failed(6000, kind="cancelled")
    assert shell.output("echo ok") == "ok"


def test_silence_ends_a_program_too(shell):
    talk(shell, "echo a; sleep 98765", "never", no_output_timeout=1).failed(6000, "no output for 1 s")
    assert shell.output("echo ok") == "ok"


def test_much_output_comes_whole_enough_and_the_end_is_found(shell):
    seen = talk(shell, "seq 100000; echo the end", "the end\n", timeout=60).result
    assert seen["output"].endswith("100000") and seen["expect_string"] == "the end\n"
    until(lambda: shell.run("echo ok").ok, what="the end of the program")


@pytest.mark.engine
def test_an_image_without_anything_for_terminals_says_so(request):
    box = Api(request.getfixturevalue("engine_server").url).start(image="rock-test/alpine-bash").open()
    try:
        talk(box, "cat", "x").failed(4000, "script", "python3", kind="bad_request")
        assert box.output("echo ok") == "ok"
    finally:
        box.stop()


@pytest.mark.engine
def test_a_program_of_another_user(request):
    box = Api(request.getfixturevalue("engine_server").url).start()
    try:
        session = box.open(remote_user="nobody")
        assert talk(session, PYTHON, ">>> ").ok
        assert (
            talk(session, "import os; print(os.getuid(), os.ttyname(0)[:9])", ">>> ").result["output"]
            == "65534 /dev/pts/"
        )
        assert quit(session, "exit()").ok
        talk(session, "echo a; sleep 98765", "never", timeout=1).failed(6000, kind="command_timeout")
        assert session.output("id -u") == "65534"
    finally:
        box.stop()
