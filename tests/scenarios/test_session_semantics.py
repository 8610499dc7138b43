"""A session is bash, and nothing of ours shows: the S rows of the catalogue of faults."""

import contextlib
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.wire import Api, until


def test_the_smallest_thing(shell):
    reply = shell.run("echo Hello")
    assert reply.status == 200 and reply.ok
    assert (
        reply.result["output"] == "Hello" and reply.result["exit_code"] == 0 and reply.result["session_type"] == "bash"
    )


def test_S01_lines_are_a_script(shell):
    assert shell.output("sleep 0.2 &\necho hi") == "hi"


def test_S03_heredocs_are_written_byte_for_byte_and_never_hang(shell):
    assert shell.output("cat <<'EOF' > f\n$HOME `id` \\\n\tx\nEOF") == ""
    assert shell.output("cat f") == "$HOME `id` \\\n\tx"
    unterminated = shell.run("cat <<EOF\nabc")
    assert (
        unterminated.ok and "abc" in unterminated.result["output"] and "here-document" in unterminated.result["output"]
    )
    assert shell.output("cat <<A; echo between; cat <<B\n1\nA\n2\nB\necho after") == "1\nbetween\n2\nafter"


def test_S04_a_shell_that_ends_says_so_and_the_session_goes_on(shell):
    shell.run("export E=kept")
    first = shell.run("echo a; exit 3")
    assert first.ok and first.result["output"] == "a" and first.result["exit_code"] == 3
    assert "ended" in first.result["failure_reason"]
    second = shell.run("echo $E")
    assert second.ok and second.result["output"] == "kept" and second.result["failure_reason"]
    assert shell.run("echo ok").result["failure_reason"] == ""
    shell.run("exit 4")
    assert shell.post("/create_session", session=shell.session).ok, "the name is free again"


@pytest.mark.parametrize(
    "script, printed",
    [
        ("case a in a) echo y;; esac", "y"),
        ("A=(1 2); [[ ${A[1]} == 2 ]] && echo y", "y"),
        ("cat <<'EOF' | tr a b\naaa\nEOF", "bbb"),
        ("((1 + 1 == 2)) && echo y", "y"),
        ("f() { echo \"$1\"; }; f 'a  b'", "a  b"),
        ("echo a\\\nb", "ab"),
        ("echo \"a\nb\"", "a\nb"),
        ("for i in 1 2; do\n\techo $i\ndone", "1\n2"),
        ("    echo indented", "indented"),
        ("cat <<< 'here'", "here"),
    ],
)  # fmt: skip
def test_S06_valid_bash_runs(shell, script, printed):
    assert shell.output(script) == printed


def test_L25_a_startup_file_that_fails_is_told_with_what_it_printed(shell):
    shell.write("~/bad", "echo printed; echo complained >&2; V=set; return 1")
    for file, words in (("/etc/nope", ["/etc/nope"]), ("~/bad", ["printed", "complained"])):
        result = shell.post("/create_session", session="started", startup_source=[file]).failed(6000)
        assert all(word in result["output"] for word in words), result
        shell.post("/close_session", session="started")


def test_S07_a_prompt_changes_nothing(shell):
    shell.run("export PS1='(env) $ '")
    assert shell.output("echo ok") == "ok"
    shell.write("~/rc", "PS1='x> '; V=sourced")
    other = shell.open(startup_source=["~/rc"])
    assert other.output("echo $V") == "sourced"
    other.close()


@pytest.mark.parametrize(
    "script, printed",
    [
        ("cat > f; echo end", "end"),
        ("read x; echo got:$x", "got:"),
        ("python3; echo end", "end"),
        ("bash; echo end", "end"),
    ],
)
def test_S09_standard_input_is_empty(shell, script, printed):
    assert shell.output(script) == printed
    assert shell.output("echo next") == "next"


def test_S10_pagers_and_editors_do_not_block(shell):
    made = shell.run("git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m one")
    assert made.result["exit_code"] == 0, made.body
    assert "one" in shell.output("git log")
    assert shell.run("git -c user.name=a -c user.email=a@b commit --allow-empty").result["exit_code"] == 1, (
        "the editor leaves the message empty"
    )
    assert shell.output("seq 1000 | ${PAGER:-less}").endswith("999\n1000")
    assert shell.output("seq 1000 | { less 2>/dev/null || cat; }").endswith("999\n1000")
    assert shell.output("echo $TERM $PAGER $GIT_PAGER") == "dumb cat cat"


@pytest.mark.parametrize("size", [5_000, 200_000, 1_000_000])
def test_S12_long_lines_run(shell, size):
    assert shell.output(f"echo {'x' * size} | wc -c").strip() == str(size + 1)


def test_S13_late_output_of_a_timed_out_command_reaches_no_other(shell):
    shell.run("sleep 1; echo LATE", timeout=0.3).failed(6000, "timeout")
    assert shell.output("sleep 1.2; echo two") == "two"


def test_S15_background_jobs_print_into_no_later_answer(shell):
    assert shell.output("(sleep 0.3; echo late) &") == ""
    assert shell.output("sleep 0.6; echo two") == "two"


def test_S16_a_background_child_does_not_hold_the_call(shell):
    begun = time.monotonic()
    assert shell.output("sleep 98765 & echo done") == "done"
    reply = shell.execute("sleep 98766 & echo done", shell=True)
    assert reply.ok and reply.result["stdout"] == "done\n"
    assert time.monotonic() - begun < 5
    assert shell.output("jobs -r | wc -l").strip() == "1", "it lives on"


def test_S16_background_children_live_until_the_stop(api):
    box, long = api.start(), random.randrange(10**6, 10**8)
    shell = box.open()
    shell.output(f"sleep {long} & setsid sleep {long} & disown -a")
    assert box.execute(f"sleep {long} & setsid sleep {long} & echo done", shell=True).result["stdout"] == "done\n"
    until(lambda: sleeping(long) == 4, 10, "the four sleeps")
    assert box.execute("true").ok and shell.output("echo ok") == "ok" and sleeping(long) == 4
    box.stop()
    until(lambda: sleeping(long) == 0, 10, "their end")


def sleeping(long):
    """Return how many processes of this machine, in containers or not, sleep for so long."""
    found = 0
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += file.read_bytes() == f"sleep\0{long}\0".encode()
    return found


def test_S18_closing_frees_the_name_and_ends_the_children(shared):
    box, long = shared.open(), str(random.randrange(10**6, 10**8))
    box.run(f"sleep {long} &")
    assert box.close().ok
    box.close().failed(4000, box.session, kind="not_found")
    count = f"cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep {long[:-1]}[{long[-1]}]'"
    until(lambda: shared.execute(count).result["stdout"] == "0\n", 10, "the end of the child")
    assert box.post("/create_session", session=box.session).ok
    box.close()
    shared.post("/close_session", session="never").failed(4000, "never", kind="not_found")


def test_S19_variables_of_a_session_reach_its_children(shared):
    value = "1 '2' \"$x\"\nz `id` \\ é"
    box = shared.open(env={"A": value, "EMPTY": ""})
    assert box.output("bash -c 'printf %s \"$A\"'") == value
    assert box.output("bash -c 'echo ${EMPTY-unset}'") == ""
    box.close()


@pytest.mark.parametrize("enable", [True, False])
def test_S19_a_session_has_the_variables_of_its_container(shared, enable):
    box = shared.open(env_enable=enable, env={"OWN": "1"})
    names = "PATH HOME LANG TERM PAGER GIT_PAGER OWN"
    assert box.output(f"for n in {names}; do printenv $n >/dev/null || echo no $n; done") == ""
    assert box.output("printenv PATH") == shared.execute(["printenv", "PATH"]).result["stdout"].strip()
    box.close()


def test_S22_a_folder_that_is_gone_or_never_was(shell):
    shell.run("mkdir g; cd g; rm -rf ../g")
    assert shell.output("echo ok") == "ok"
    shell.execute("pwd", cwd="/nope").failed(4000, "cwd", "/nope")


@pytest.mark.parametrize("command", ["kill -9 $$", "kill -9 0", "kill -STOP $$", "suspend -f"])
def test_S24_a_command_that_ends_or_stops_its_shell_is_answered(shell, shared, command):
    other = shared.open()
    other.run("v=alive")
    begun = time.monotonic()
    reply = shell.run(command)
    assert time.monotonic() - begun < 5
    if command.startswith("kill -9"):
        assert reply.ok and reply.result["exit_code"] == 137 and "ended" in reply.result["failure_reason"]
    assert shell.output("echo ok") == "ok"
    assert other.output("echo $v") == "alive"
    other.close()


@pytest.mark.engine
def test_S24_kill_of_everything_leaves_the_sandbox_and_is_told(request):
    """As root in a container; elsewhere it would end the machine's own processes."""
    box = Api(request.getfixturevalue("engine_server").url).start()
    shell, other = box.open(), box.open()
    other.output("cd /usr; export E=kept")
    reply = shell.run("echo a; kill -9 -1; sleep 98765", timeout=20)
    assert reply.ok and reply.result["exit_code"] == 137 and "ended" in reply.result["failure_reason"], reply.body
    after = other.run("pwd; echo $E").result
    assert after["output"] == "/usr\nkept" and "137" in after["failure_reason"], after
    assert shell.output("echo ok") == "ok" and box.open().output("echo new") == "new"
    assert box.execute(["echo", "one-off"]).result["stdout"] == "one-off\n"
    box.stop()


def test_S24_a_one_off_command_that_stops_itself_goes_on_and_nothing_else_does(shell):
    job = shell.output("sleep 98765 & kill -STOP $!; echo $!").split()[-1]
    reply = shell.execute("kill -STOP $$; echo ok", shell=True, timeout=20)
    assert reply.ok and reply.result["stdout"] == "ok\n", reply.body
    assert shell.output(f"cat /proc/{job}/stat").split()[2] == "T", "who stopped it wants it so"


@pytest.mark.parametrize("command, code", [("exec bash", 0), ("exec false", 1), ("exec bash -c 'exit 9'", 9)])
def test_S25_exec_replaces_the_shell_and_is_answered(shell, command, code):
    reply = shell.run(command)
    assert reply.ok and reply.result["exit_code"] == code and reply.result["failure_reason"]
    assert shell.output("echo ok") == "ok"


def test_S25_exec_of_what_is_not_there(shell):
    assert shell.run("exec /nonexistent").result["exit_code"] in (126, 127)
    assert shell.output("echo ok") == "ok"


@pytest.mark.parametrize(
    "command",
    ["printf() { :; }", "alias .=true", "enable -n printf", "echo() { :; }", "eval() { :; }", "builtin() { :; }"],
)
def test_S27_shadowed_builtins_hide_nothing(shell, command):
    shell.run(command)
    reply = shell.run("command printf 'o%s\\n' k; (exit 5)")
    assert reply.ok and reply.result["output"].endswith("ok") and reply.result["exit_code"] == 5


@pytest.mark.parametrize(
    "command",
    [
        "ulimit -n 3",
        "ulimit -n 5",
        "set -r",
        "set -t",
        "PROMPT_COMMAND='sleep 100'",
        "shopt -s extdebug; trap false DEBUG",
    ],
)
def test_S28_what_stops_the_shell_from_reporting_is_noticed(shell, command):
    begun = time.monotonic()
    shell.run(command)
    for _ in range(2):
        result = shell.run("echo maybe").result
        ran = result.get("output", "").endswith("maybe") and result["exit_code"] == 0
        assert ran or (result["exit_code"] != 0 and result["failure_reason"]), "done, or clearly not"
    assert time.monotonic() - begun < 15
    assert shell.post("/create_session", session=f"{shell.session}-2").ok
    shell.post("/close_session", session=f"{shell.session}-2")


def test_S30_the_three_ways_to_check(shell):
    result = shell.run("echo a; (exit 7)", check="raise").failed(6000, kind="command_failed")
    assert result["exit_code"] == 7 and result["output"] == "a"
    for check in ("silent", "ignore"):
        reply = shell.run("(exit 7)", check=check)
        assert reply.ok and reply.result["exit_code"] == 7
    default = shell.post("/run_in_session", session=shell.session, command="(exit 7)")
    assert default.failed(6000)["exit_code"] == 7


@pytest.mark.parametrize("command, printed", [("", ""), ("  ", ""), ("# note", ""), ("\n\n", ""), ("echo a \\", "a")])
def test_S31_nothing_to_do_is_done(shell, command, printed):
    assert shell.output(command) == printed


def test_S34_a_syntax_error_is_bashs_own(shell):
    reply = shell.run("echo one\nif\necho two")
    assert reply.ok and reply.result["exit_code"] == 2 and "syntax error" in reply.result["output"]
    for ours in ("/run/", ".cmd", "/p.", "eval"):
        assert ours not in reply.result["output"].replace("bash: eval: line", "bash: line"), reply.body
    assert shell.run("if", check="raise").failed(6000)["exit_code"] == 2


def test_S14_commands_of_one_session_never_mix(shell):
    """Whoever sends them, and however many at once."""

    def ask(number):
        script = f"n=$((n + 1)); echo {number} $n; sleep 0.00{number % 5}; v={number}; echo $v $n >&2"
        return number, shell.output(script)

    with ThreadPoolExecutor(12) as callers:
        answers = list(callers.map(ask, range(36)))
    turns = [int(output.split()[1]) for _, output in answers]
    assert sorted(turns) == list(range(1, 37))
    assert [output for _, output in answers] == [
        f"{number} {turn}\n{number} {turn}" for (number, _), turn in zip(answers, turns, strict=True)
    ]


def test_sessions_run_side_by_side_and_each_keeps_its_order(shared):
    one, two = shared.open(), shared.open()
    one.run("mkfifo ~/meet 2>/dev/null")
    waiting = threading.Thread(target=lambda: one.run("read line < ~/meet; echo $line"))
    waiting.start()
    assert two.output("echo hello > ~/meet; echo sent") == "sent"
    waiting.join(30)
    assert not waiting.is_alive()
    one.run("rm ~/meet")
    one.close()
    two.close()


def test_A15_sessions_that_are_closed_leave_no_process(shared):
    def count():
        return int(shared.execute("cat /proc/[0-9]*/comm | grep -c bash").result["stdout"])

    before = count()
    for _ in range(10):
        shared.open().close()
    until(lambda: count() <= before + 1, what="the end of the shells")
