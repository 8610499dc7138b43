"""Whatever is run, and whatever it prints: the keeper says what the same bash says when it is run directly."""

import os
import random
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rock.actions import Command
from tests.unit.workers.keeper_process import Answer, Keeper
from workers import scripts

EXAMPLES = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture(scope="module")
def shell(tmp_path_factory) -> Iterator[Keeper]:
    """One keeper with an open session, for all examples."""
    running = Keeper(tmp_path_factory.mktemp("keeper"))
    running.open()
    yield running
    running.close()


def directly(keeper: Keeper, script: str, *, joined: bool) -> "subprocess.CompletedProcess[bytes]":
    """Run a script by bash itself, in the same folder and with the same (empty) standard input."""
    file = keeper.home.parent / "script"
    file.write_bytes(script.encode())
    return subprocess.run(
        ["bash", "--noprofile", "--norc", str(file)],
        cwd=keeper.home,
        env={"PATH": os.environ["PATH"], "HOME": str(keeper.home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if joined else subprocess.PIPE,
        timeout=30,
    )


def session_is_fresh(answer: Answer) -> bool:
    return answer.reopened is None and not answer.shell_ended


# --- programs that end well or badly, made of what bash knows ---------------------------------------------------------

names = st.sampled_from(["a", "b", "c", "long_name"])
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def printing(data: bytes) -> str:
    """Return a command that prints these bytes, NUL included."""
    return "printf '" + "".join(f"\\{byte:03o}" for byte in data) + "'"


def heredoc(text: str, strip: bool) -> str:
    body = text.replace("\0", "").replace("EOF", "eof")
    return f"cat <<{'-' if strip else ''}'EOF'\n{body}\nEOF\n"


# Without NUL, about which bash complains in the middle of a line when it is substituted.
data = st.binary(max_size=40).map(lambda raw: raw.replace(b"\0", b"0"))
simple = st.one_of(
    data.map(printing),
    data.map(lambda raw: printing(raw) + " >&2"),
    words.map(lambda text: f"echo {quoted(text)}"),
    words.map(lambda text: f"printf %s {quoted(text)}"),
    st.tuples(names, words).map(lambda pair: f"{pair[0]}={quoted(pair[1])}"),
    names.map(lambda name: f'printf "%s|" "${name}"'),
    st.integers(0, 255).map(lambda code: f"(exit {code})"),
    st.tuples(words, st.booleans()).map(lambda pair: heredoc(*pair)),
    words.map(lambda text: f"cat <<< {quoted(text)}"),
    st.sampled_from(
        [
            "true", "false", ":", "cat", "read x", "read -r x; echo \"[$x]\"", "echo $?", "echo ${#a} ${b:-none} ${c^^}", "shift",
            "a=(1 2 '3 4'); echo ${#a[@]} \"${a[2]}\"; unset a", "[[ -e /nope ]]", "((1 + 1))", "((0))", "# nothing", "",
            "case x in x) echo y;; esac", "f() { echo \"in $1\"; return 3; }; f arg", "let x=3; echo $x", "wait", "true | false",
            "false | true", "! true", "set -- p q; echo $# $2; set --", "local v 2>/dev/null", "kill -9 $BASHPID & wait $! 2>/dev/null; echo $?",
        ]
    ),
)  # fmt: skip


def compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(inner, inner)
    return st.one_of(
        two.map(lambda pair: f"{pair[0]}\n{pair[1]}"),
        two.map(lambda pair: f"{pair[0]}\n{{ {pair[1]}\n}}"),
        two.map(lambda pair: f"if {pair[0]}\nthen {pair[1]}\n:\nfi"),
        two.map(lambda pair: f"{{ {pair[0]}\n}} && {{ {pair[1]}\n}}"),
        two.map(lambda pair: f"{{ {pair[0]}\n}} || {{ {pair[1]}\n}}"),
        inner.map(lambda one: f"(\n{one}\n)"),
        inner.map(lambda one: f"for i in 1 2 3; do\n{one}\ndone"),
        inner.map(lambda one: f"{{ {one}\n}} | cat"),
        inner.map(lambda one: f"x=$(\n{one}\n)\nprintf '%s.' \"$x\""),
        inner.map(lambda one: f"g() {{\n{one}\n}}\ng"),
        inner.map(lambda one: f"{{ {one}\n}} 2>/dev/null"),
    )


programs = st.recursive(simple, compound, max_leaves=12)


@EXAMPLES
@given(script=programs)
def test_a_program_prints_and_returns_what_it_does_in_bash_itself(shell, script):
    script = f"unset a b c x i long_name\nset --\n{script}"  # what earlier examples left
    answer, direct = shell.run(script), directly(shell, script, joined=True)
    if "| cat" in script and ">&2" in script:
        # Two processes write at once: bash itself promises no order. Where it complains, nobody can tell what was its own.
        complains = any(comparable(said) != said.split(b"\n") for said in (answer.output, direct.stdout))
        assert complains or sorted(answer.output) == sorted(direct.stdout)
    else:
        assert comparable(answer.output) == comparable(direct.stdout)
    assert answer.exit_code == direct.returncode and session_is_fresh(answer)


@EXAMPLES
@given(script=programs)
def test_a_one_off_program_has_the_same_two_streams_and_code(shell, script):
    answer = shell.run(scripts.execute(Command(command=script, shell=True)), "pipe", "EXEC")
    direct = directly(shell, script, joined=False)
    assert answer.stdout.raw() == direct.stdout
    assert comparable(answer.stderr.raw()) == comparable(direct.stderr)
    assert answer.exit_code == direct.returncode or is_broken(direct.stderr)


def is_broken(said: bytes) -> bool:
    return b"syntax error" in said or b"unexpected EOF" in said


def comparable(data: bytes) -> list[bytes]:
    """Return the lines but for what bash says itself: it names the way in and the line (`bash: -c: line 1:`)."""
    return [line for line in data.split(b"\n") if b"bash: " not in line and b" line " not in line]


# --- any text at all ---------------------------------------------------------------------------------------------------

noise = st.text(st.sampled_from(list("echo e  \n\t'\"\\$`(){}[]|;#!*?=%^,:@-+0123é\r\x1b\x1e")), max_size=60)


@pytest.mark.parametrize("script", ["-0", "-x echo a", "--", "-", "echo a \\", "\\"])
def test_text_at_the_border_of_a_command_is_what_it_is_in_a_script(shell, script):
    answer, direct = shell.run(script), directly(shell, script, joined=True)
    assert comparable(answer.output) == comparable(direct.stdout) and answer.exit_code == direct.returncode


@EXAMPLES
@given(
    # `$0` is the script there, which may not be executed, and the shell here.
    script=noise.filter(lambda text: not text.strip().startswith("-") and not text.endswith("\\") and "$0" not in text)
)
def test_any_text_has_the_exit_code_that_bash_gives_it(shell, script):
    """Most of it is a syntax error, an unknown command, or an open quote."""
    answer = shell.run(script)
    direct = directly(shell, script, joined=True)
    assert session_is_fresh(answer)
    # Of a script with a syntax error bash itself reports the code of the command before it, if there was one.
    assert answer.exit_code == direct.returncode or (is_broken(direct.stdout) and answer.exit_code in (1, 2))
    assert shell.run("echo ok").output == b"ok\n"


@EXAMPLES
@given(data=st.binary(max_size=300))
def test_any_bytes_come_out_as_they_went_in(shell, data):
    assert shell.run("cat", "file", "EXEC", stdin=data).stdout.raw() == data
    assert shell.run(printing(data)).output == data


@pytest.mark.parametrize("seed", range(6))
def test_large_random_output_is_true_to_the_byte(shell, seed):
    """Sizes around the borders between inline answers, slices and frames."""
    size = random.Random(seed).choice([32_767, 32_768, 65_537, 1_048_575, 1_048_577, 3_000_001])
    data = random.Random(seed).randbytes(size)
    (shell.home / "data").write_bytes(data)
    answer = shell.run("cat data; (exit 3)")
    assert answer.output == data and answer.exit_code == 3
    one_off = shell.run("cat data; cat data >&2; exit 4", "pipe", "EXEC")
    assert one_off.stdout.raw() == data and one_off.stderr.raw() == data and one_off.exit_code == 4


@EXAMPLES
@given(name=names, value=words)
def test_a_variable_keeps_any_text(shell, name, value):
    shell.run(f"export {name}={quoted(value)}")
    assert shell.run(f'printf %s "${name}"').output == value.encode()
    assert shell.run(f"bash -c 'printf %s \"${name}\"'").output == value.encode()
