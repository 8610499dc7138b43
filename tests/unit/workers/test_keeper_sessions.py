"""A session is a bash that lives on between commands, whatever they do to it; where it ends, that is said."""

import contextlib
import fcntl
import os
import signal
import termios
import time
from pathlib import Path

import pytest

from tests.unit.workers.keeper_process import Keeper
from tests.wire import until
from workers.protocol import frame


def output(keeper, script, session="s"):
    """Run a script that must end well, and return what it printed."""
    answer = keeper.run(script, session)
    assert answer.exit_code == 0 and not answer.shell_ended, answer
    return answer.output.decode()


def test_a_session_keeps_its_state(shell):
    shell.run(
        "cd /; v='a b'; f() { echo \"f $1\"; }; alias g='echo g'; umask 027; set -o noclobber; a=(1 2 3); declare -A m=([k]=w)"
    )
    assert output(shell, 'pwd; echo "$v"; f x; g; umask; set -o | grep noclobber; echo ${a[2]} ${m[k]}') == (
        "/\na b\nf x\ng\n0027\nnoclobber      \ton\n3 w\n"
    )


def test_the_exit_code_of_the_command_before_is_there(shell):
    shell.run("(exit 42)")
    assert output(shell, "echo $?") == "42\n"


def test_positional_parameters_are_the_sessions_own(shell):
    assert output(shell, 'echo "$#:$1"') == "0:\n"
    shell.run("set -- a 'b c'; false")
    assert output(shell, 'echo "$?:$#:$2"') == "1:2:b c\n"


def test_the_environment_is_the_images(tmp_path):
    image = {"LC_ALL": "C.UTF-8", "FROM_IMAGE": "1 '2'"}
    keeper = Keeper(tmp_path, image)
    try:
        keeper.open()
        assert output(keeper, "bash -c 'echo \"$FROM_IMAGE $LC_ALL\"'; umask; echo ${ROCK_RUN_DIR-unset}").splitlines() == [
            "1 '2' C.UTF-8", f"{current_umask():04o}", "unset",
        ]  # fmt: skip
        assert keeper.run("echo $FROM_IMAGE $LC_ALL; umask", "pipe", "EXEC").output.splitlines() == [
            b"1 '2' C.UTF-8", f"{current_umask():04o}".encode(),
        ]  # fmt: skip
    finally:
        keeper.close()


def current_umask():
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


HARMLESS = {
    "PS1": "export PS1='(env) $ '",
    "a prompt command that waits": "PROMPT_COMMAND='sleep 100'",
    "set -u": "set -u",
    "set -x": "set -x",
    "set -C": "set -C",
    "set -f": "set -f",
    "set -v": "set -v",
    "posix": "set -o posix",
    "errexit with a command that goes well": "set -e; true",
    "an odd IFS": "IFS=0123456789abcdef/",
    "a fixed IFS": "IFS=x; readonly IFS",
    "no PATH": "unset PATH",
    "a fixed PATH": "PATH=/nowhere; readonly PATH",
    "printf is a function": "printf() { :; }",
    "builtin and eval are functions": "builtin() { :; }; eval() { :; }",
    "the dot is an alias": "alias .=true; alias builtin=true; alias '\\builtin=true'",
    "printf is off": "enable -n printf",
    "an ERR trap": "trap 'echo oops' ERR",
    "INT is ignored": "trap '' INT TERM",
    "an EXIT trap": "trap 'echo bye' EXIT",
    "a DEBUG trap": "trap : DEBUG",
    "a DEBUG trap that refuses": "shopt -s extdebug; trap false DEBUG",
    "a RETURN trap": "set -T; trap 'echo returned' RETURN",
    "arguments": "set -- a b c",
    "descriptors closed": "exec 3>&- 4>&- 10>&- 11>&- 12>&- 63>&- 255>&-",
    "few descriptors": "ulimit -n 3",
    "too few descriptors to run anything": "ulimit -n 5",
    "too few descriptors for a pipe": "ulimit -n 7",
    "no files of any size": "ulimit -f 0",
    "umask 777": "umask 777",
    "TMOUT": "TMOUT=1",
    "kill 0": "kill 0",
    "a loop control outside of a loop": "break; continue",
    "logout": "logout 2>/dev/null || :",
    "return": "return 0",
    "a folder that is gone": "mkdir g; cd g; rmdir ../g",
    "output that goes elsewhere": "exec >/dev/null 2>&1",
    "input that comes from elsewhere": "exec </dev/null",
    "output that is closed": "exec >&- 2>&-",
    "history": "set -o history; HISTFILE=h; history -w; echo '!!'",
    "a comment at the end": "echo x # y",
    "a backslash at the end": "echo x \\",
    "onecmd": "set -t",
    "restricted": "set -r",
    "a suspended job": "sleep 60 & kill -STOP $!",
    "huponexit and monitor off": "shopt -s huponexit; set +m",
    "locale": "export LC_ALL=POSIX LANG=xx",
    "no clobber, no unset, all at once": "set -euCf; shopt -s failglob nullglob",
}


@pytest.mark.parametrize("command", HARMLESS.values(), ids=HARMLESS)
def test_what_a_command_does_to_its_shell_leaves_the_session_usable(shell, command):
    """Where it cannot (`set -t` ends a shell), the end is said, and the next command has a new shell."""
    shell.run(command)
    answer = shell.run("echo ok")
    if answer.shell_ended:
        answer = shell.run("echo ok")
    shown = [line for line in answer.output.decode().splitlines() if not line.startswith(("+", "returned"))]
    assert shown[-1:] == ["ok"] and answer.exit_code == 0


ENDS = {
    "exit": ("echo a; exit 3", b"a\n", 3),
    "exit in the middle": ("echo a\nexit 4\necho b", b"a\n", 4),
    "set -e": ("set -e; echo a; false; echo b", b"a\n", 1),
    "exec of a program": ("exec bash -c 'echo in; exit 5'", b"in\n", 5),
    "exec of a shell that reads no input": ("exec bash", b"", 0),
    "exec false": ("exec false", b"", 1),
    "kill -9 of the shell": ("echo a; kill -9 $$", b"a\n", 137),
    "an EXIT trap prints": ("trap 'echo bye' EXIT; exit 2", b"bye\n", 2),
}


@pytest.mark.parametrize("script, printed, code", ENDS.values(), ids=ENDS)
def test_a_shell_that_ends_says_so_and_the_next_command_has_a_new_one(shell, script, printed, code):
    shell.run("export E='a \"b\"'; v=1; mkdir -p in; cd in")
    answer = shell.run(script)
    assert (answer.output, answer.exit_code, answer.shell_ended) == (printed, code, True)
    after = shell.run('pwd; echo "$E" ${v-none}')
    assert after.output.decode() == f'{shell.home}/in\na "b" none\n'
    assert after.reopened == code and shell.run("echo on").reopened is None


def test_an_unset_variable_ends_the_command_but_not_the_session(shell):
    """So does an interactive bash."""
    answer = shell.run("v=1; set -u; echo a; echo $nope; echo b")
    assert answer.output.startswith(b"a\n") and b"nope: unbound variable" in answer.output and answer.exit_code != 0
    assert output(shell, "echo $v") == "1\n"


@pytest.mark.parametrize("command", ["kill -STOP $$", "suspend -f", "kill -TSTP $$"])
def test_a_shell_that_stops_itself_is_noticed(shell, command):
    answer = shell.run(command + "; echo on")
    assert answer.shell_ended or answer.output.endswith(b"on\n")
    assert shell.run("echo ok").output == b"ok\n"


def test_an_ended_session_can_be_opened_afresh_or_closed(keeper):
    for session in ("opened", "closed"):
        keeper.open(session)
        keeper.run("export E=1; exit 3", session)
    answer = keeper.open("opened", "echo ${E-none}")
    assert answer.output == b"none\n" and answer.reopened is None
    keeper.send([frame("CLOSE", "c105e00000", "closed")])
    keeper.says("c105e00000", "closed")
    assert keeper.run("echo x", "closed").reason == "nosession"


def test_the_end_of_one_session_does_not_touch_another(keeper):
    keeper.open("one")
    keeper.open("two")
    keeper.run("v=2", "two")
    assert keeper.run("exit 1", "one").shell_ended
    assert output(keeper, "echo $v", "two") == "2\n"


def test_calls_that_wait_for_a_shell_that_ends_are_told(shell):
    first, second, third = (
        shell.start(text) for text in ("read _ < fifo; exit 9", "echo no >> evidence", "echo no >> evidence")
    )
    shell.says(third, "queued")
    shell.release()
    assert shell.end_of(first).exit_code == 9
    assert shell.end_of(second).reason == "ended" and shell.end_of(third).reason == "ended"
    assert not (shell.home / "evidence").exists()


def test_everything_killed_from_inside_is_noticed(keeper):
    """`kill -9 -1` as root spares the main process of a container alone; here all but the keeper are killed the same way."""
    keeper.open("s")
    keeper.open("t")
    call = keeper.start("read _ < fifo", "s")
    keeper.says(call, "start")
    for pid in keeper.processes():
        os.kill(pid, 9)
    answer = keeper.end_of(call)
    assert answer.exit_code == 137 and answer.shell_ended
    keeper.attach()
    for session in ("s", "t"):
        answer = keeper.run("echo ok", session)
        if answer.shell_ended:  # The keeper has not looked yet: it does so every second.
            answer = keeper.run("echo ok", session)
        assert answer.output == b"ok\n" and answer.reopened == 137


@pytest.mark.parametrize("verb", ["EXEC", "RUN"])
def test_an_end_that_is_told_but_not_yet_read_is_not_taken_for_a_death(keeper, verb):
    """Whoever waited for the command is gone when the keeper looks after its children, and what it told is still in the pipe."""
    if verb == "RUN":
        keeper.open("s")
    call = keeper.start("read _ < fifo; echo whole >&2; exit 7", "pipe" if verb == "EXEC" else "s", verb)
    keeper.says(call, "start")
    stopped, dead = time.monotonic(), ended_children(keeper)
    os.kill(keeper.process.pid, signal.SIGSTOP)
    # Something to be read first, so that the keeper looks after its children before it reads of the end.
    keeper.send([frame("ASK", call)])
    until(lambda: unread(keeper), what="the header of ASK")
    keeper.release()
    until(lambda: ended_children(keeper) > dead, what="the end of the command's parent")
    until(lambda: time.monotonic() > stopped + 1.5, what="the time of the keeper's next look")
    os.kill(keeper.process.pid, signal.SIGCONT)
    answer = keeper.end_of(call)
    assert answer.exit_code == 7
    assert (answer.stderr if verb == "EXEC" else answer.stdout).raw() == b"whole\n"


def unread(keeper):
    """Return how many bytes wait in the pipes that the keeper has open."""
    total = 0
    for fd in Path(f"/proc/{keeper.process.pid}/fd").iterdir():
        if os.readlink(fd).startswith("pipe:") and fd.name not in "012":
            with open(os.open(fd, os.O_RDONLY | os.O_NONBLOCK), "rb") as pipe:
                total += int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, b"1234"), "little")
    return total


def ended_children(keeper):
    """Return the children of the keeper that ended and that it has not collected yet."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state == "Z" and int(parent) == keeper.process.pid:
                found.add(stat.parent.name)
    return found


def test_a_session_is_closed_with_all_that_it_started(shell):
    shell.run("sleep 600 & setsid sleep 600 & (trap '' TERM HUP INT; sleep 600) &")
    shell.until(lambda: sum("sleep 600" in line for line in shell.processes().values()) >= 3, "the three")
    call = "c105e00000"
    shell.send([frame("CLOSE", call, "s")])
    shell.says(call, "closed")
    shell.until(
        lambda: not [line for line in shell.processes().values() if "sleep 600" in line], "the end of the children"
    )
    assert shell.run("echo x").reason == "nosession"


def test_closing_is_idempotent_by_call_and_refused_for_the_unknown(shell):
    for _ in range(2):
        shell.send([frame("CLOSE", "c105e00000", "s")])
    shell.until(lambda: shell.answer("c105e00000").words.count("closed") == 2, "both answers")
    shell.send([frame("CLOSE", "c105e00001", "s")])
    assert shell.end_of("c105e00001").reason == "nosession"


def test_closing_answers_what_runs_and_what_waits(shell):
    running, waiting = shell.start("echo a; read _ < fifo"), shell.start("echo b")
    shell.says(waiting, "queued")
    shell.send([frame("CLOSE", "c105e00000", "s")])
    assert shell.end_of(running).shell_ended and shell.end_of(running).exit_code == 137
    assert shell.end_of(waiting).reason == "ended"


def test_a_name_can_be_used_again_at_once(shell):
    for number in range(10):
        shell.send([frame("CLOSE", f"c105e0000{number}", "s")])
        shell.says(f"c105e0000{number}", "closed")
        assert shell.open().exit_code == 0
        assert output(shell, f"echo {number} ${{v-none}}; v={number}") == f"{number} none\n"


def test_a_session_whose_startup_fails_is_told_and_stays(keeper):
    answer = keeper.open("s", "echo starting; . /etc/nope")
    assert answer.exit_code == 1 and answer.output.startswith(b"starting\n") and b"/etc/nope" in answer.output
    assert output(keeper, "echo ok") == "ok\n"


def test_a_shell_that_waits_for_a_long_command_is_left_alone(keeper):
    """Longer than the keeper takes to decide that a shell is stuck; in several sessions, as it is a matter of chance."""
    sessions = [f"s{number}" for number in range(8)]
    for session in sessions:
        keeper.open(session)
    calls = [keeper.start("sleep 5; echo ok", session) for session in sessions]
    answers = [keeper.end_of(call) for call in calls]
    assert [(answer.output, answer.shell_ended) for answer in answers] == [(b"ok\n", False)] * len(sessions)


def test_S21_a_keeper_outside_of_a_container_has_one_user(keeper):
    """Its own may be named; another is refused, also one that there is."""
    assert keeper.open("a", user="nope").reason == "nouser"
    assert keeper.open("a", user="nobody").reason == "oneuser"
    assert keeper.open("a", "id -u", user=str(os.getuid())).output == f"{os.getuid()}\n".encode()


def with_room(keeper, ask):
    """Ask until there is room: what has ended gives its files back a little later, and pipes that are kept ready may take them first."""
    deadline = time.monotonic() + 10
    while (answer := ask()).reason == "files":
        assert time.monotonic() < deadline, "no room comes back"
    return answer


def test_a_keeper_at_its_limit_of_open_files_refuses_clearly_and_loses_nothing(tmp_path):
    with contextlib.closing(Keeper(tmp_path, files=40)) as keeper:
        names = []
        while not (answer := keeper.open(str(len(names)))).reason:
            names.append(str(len(names)))
        assert answer.reason == "files" and len(names) > 5
        ran = [keeper.run("echo ok; (exit 7)", name) for name in names]
        # Whether there is room for a command depends on what the keeper had open just then.
        assert {(one.output, one.exit_code, one.reason) for one in ran} <= {(b"ok\n", 7, ""), (b"", None, "files")}
        assert with_room(keeper, lambda: keeper.run("echo ok", "pipe", "EXEC")).output == b"ok\n"
        for name in names[: len(names) // 2]:
            keeper.send([frame("CLOSE", f"c105e{name}", name)])
            keeper.says(f"c105e{name}", "closed")
        for name in names[len(names) // 2 :]:
            assert with_room(keeper, lambda name=name: keeper.run("echo ok", name)).output == b"ok\n"
