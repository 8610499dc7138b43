"""Output is true to the byte, whatever it is and however much: the O rows of the catalogue of faults."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.crowd import resident
from tests.wire import Api, until


def test_O01_endless_output_is_cut_in_the_middle_and_said_to_be(shell):
    result = shell.run("yes", timeout=1).failed(6000, kind="command_timeout")
    assert result["output"].startswith("y\ny\n") and "omitted" in result["output"]
    assert len(result["output"]) < 40_000_000
    assert shell.output("echo ok") == "ok"


def test_O01_more_than_the_limit_shows_head_and_tail(shell):
    output = shell.output("echo head; head -c 40000000 /dev/zero | tr '\\0' x; echo; echo tail")
    assert output.startswith("head\nxxx") and output.endswith("xxx\ntail")
    assert "bytes" in output and "omitted" in output and len(output) < 20_000_000


def test_O01_more_than_the_sandbox_keeps_fills_nobodys_memory(shell, stack):
    """Of what passes through the sandbox it keeps a part, and the answer shows a part of that."""
    pids = [stack.pids()[name].pid for name in ("api", "worker")]
    shell.run("seq 1000000")
    before = [resident(pid) for pid in pids]
    result = shell.execute("yes | head -c 300000000; echo end >&2; exit 3", shell=True, timeout=60).result
    assert (
        result["stdout"].startswith("y\ny\n") and "omitted" in result["stdout"] and len(result["stdout"]) < 11_000_000
    )
    assert (result["stderr"], result["exit_code"]) == ("end\n", 3)
    grown = [resident(pid) - was for pid, was in zip(pids, before, strict=True)]
    assert max(grown) < 50, grown


@pytest.mark.parametrize("size", [0, 1, 32_767, 32_768, 65_536, 1_048_577, 5_000_000, 9_999_999])
def test_O03_one_long_line_is_whole(shell, size):
    assert shell.output(f"head -c {size} /dev/zero | tr '\\0' x") == "x" * size


def test_O04_a_last_line_without_newline_is_there(shell):
    assert shell.output("printf abc") == "abc"


def test_O06_bytes_that_are_no_text_are_shown_and_lose_nothing(shell):
    reply = shell.run("printf 'a\\377\\376b\\000c\\n'; (exit 3)")
    assert reply.ok and reply.result["output"] == "a\\xff\\xfeb\0c" and reply.result["exit_code"] == 3
    noise = shell.run("head -c 100000 /dev/urandom; (exit 4)")
    assert noise.ok and noise.result["exit_code"] == 4 and len(noise.result["output"]) > 50_000


def test_O07_escape_sequences_are_raw(shell):
    assert (
        shell.output("printf '\\033]0;t\\007\\033(B\\033[31mred\\033[0m\\r\\n'")
        == "\x1b]0;t\x07\x1b(B\x1b[31mred\x1b[0m\r"
    )


def test_O09_blanks_are_output(shell):
    assert shell.output("printf '\\n\\n  a  \\n\\n'") == "\n\n  a  \n"
    assert shell.execute("printf '\\n\\n  a  \\n\\n'", shell=True).result["stdout"] == "\n\n  a  \n\n"


def test_O10_the_exit_code_never_overtakes_the_output(shared):
    """Under load, and for one-off commands, whose tail other systems lose."""

    def ask(number):
        last = (2_000, 20_000, 200_000)[number % 3]  # sent at once, in one slice, in several
        result = shared.execute(f"seq 1 {last}; echo end {number} >&2; exit {number}", shell=True).result
        return result["stdout"].endswith(f"{last - 1}\n{last}\n"), result["stderr"], result["exit_code"]

    with ThreadPoolExecutor(16) as callers:
        answers = list(callers.map(ask, range(36)))
    assert answers == [(True, f"end {number}\n", number) for number in range(36)]


def test_O12_faults_of_the_service_do_not_look_like_output(shell):
    missing = shell.execute(["nosuchcmd"])
    assert missing.ok and missing.result["exit_code"] == 127 and "not found" in missing.result["stderr"]
    assert missing.result["stdout"] == ""
    shell.execute(["true"], cwd="/nope").failed(4000, "cwd")


@pytest.mark.engine
def test_O12_a_container_that_was_killed_is_said_to_be_gone(request):
    engine, api = request.getfixturevalue("engine"), Api(request.getfixturevalue("engine_server").url)
    box = api.start()
    shell = box.open()
    (container,) = [one for one in engine.containers.list(ignore_removed=True) if box.id in one.labels.values()]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(shell.run, "echo a; sleep 98765", timeout=60)
        until(lambda: "sleep 98765" in str(container.top()["Processes"]), 10, "the command")
        container.kill()
        running.result(30).failed(5000, box.id, "gone", kind="sandbox_gone")
    for reply in (box.execute("true"), shell.run("true")):
        assert reply.result["code"] in (4000, 5000) and box.id in reply.error and "OCI" not in reply.error, reply.body


@pytest.mark.engine
def test_a_command_that_takes_too_much_memory_is_told_apart(request):
    box = Api(request.getfixturevalue("engine_server").url).start(memory="64m")
    shell = box.open()
    shell.run("export E=kept; cd /usr")
    hungry = "python3 -c 'x = bytearray(300 << 20)'"
    shell.run(f"echo a; {hungry}; (exit $?)", check="raise").failed(6000, kind="out_of_memory")
    reply = shell.run(f"echo a; {hungry}")
    assert reply.ok and reply.result["exit_code"] == 137 and "memory" in reply.result["failure_reason"]
    assert shell.output("echo $E $PWD") == "kept /usr"
    box.stop()


def test_O13_broken_text_in_errors_is_still_json(shell):
    reply = shell.run("printf '\\355\\240\\200' >&2; ls $'\\377'")
    assert reply.ok and "\\xed\\xa0\\x80" in reply.result["output"]


def test_O15_programs_may_print_any_character(shell):
    assert shell.output("python3 -c 'print(\"é漢😀\")'") == "é漢😀"


def test_O16_process_substitution_prints_into_no_other_answer(shell):
    shell.run("echo hi > >(sleep 0.3; cat)")
    assert shell.output("sleep 0.6; echo two") == "two"


def test_a_hundred_thousand_lines_are_true(shell):
    output = shell.output("seq 100000")
    assert output == "\n".join(map(str, range(1, 100_001)))


def test_characters_are_whole_across_every_border(shell):
    shell.write("~/f", "é漢😀x" * 100_000)
    output = shell.output("cat ~/f")
    assert hashlib.sha256(output.encode()).hexdigest() == hashlib.sha256(("é漢😀x" * 100_000).encode()).hexdigest()
    shell.run("rm ~/f")


@pytest.mark.parametrize(
    "text",
    ["$ ", "bash-5.2$ ", "data x 1 0 5 5", "done 0000000000 0 done", "\x1e0123456789 0\x1e", "EOF", "SHELLPS1PREFIX"],
)
def test_nothing_that_is_printed_is_taken_for_ours(shell, text):
    shell.write("~/f", text + "\n")
    assert shell.output("cat ~/f; echo after; rm ~/f") == f"{text}\nafter"
