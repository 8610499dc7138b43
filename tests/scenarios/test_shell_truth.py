"""What a caller is told is what bash does: each kind of command over HTTP, against the very value that bash gives."""

import hashlib
import json
import threading
import time
import uuid
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from tests.wire import PREFIX, until

WHOLE = {
    "lines": ("a=1\nb=2\n\necho $((a + b))\n", "3", 0),
    "the code of the last command": ("true\n(exit 9)", "", 9),
    "heredocs, one after the other": ("cat <<A\n$((1 + 1))\nA\ncat <<-'B'\n\t$x \\\\\n\tB\necho end", "2\n$x \\\\\nend", 0),
    "a here-string": ("cat <<< $'a\\tb'", "a\tb", 0),
    "quotes and backslashes": (r"""echo 'a"b' "c'd" e\'f "\\" '\\' $'g\'h' """, "a\"b c'd e'f \\ \\\\ g'h", 0),
    "a comment after a command": ("echo a # b", "a", 0),
    "standard error in its place": ("echo 1; echo 2 >&2; echo 3; echo 4 >&2", "1\n2\n3\n4", 0),
    "a function that returns": ("f() { echo in; return 5; }; f", "in", 5),
    "an array": ("a=(x 'y z'); a[5]=w; echo ${#a[@]} \"${a[1]}\" ${!a[@]}", "3 y z 0 1 5", 0),
    "a map": ("declare -A m=([k]=v); echo ${m[k]} ${#m[@]}", "v 1", 0),
    "a trap on DEBUG": ("trap 'echo debug' DEBUG; :; trap - DEBUG", "debug\ndebug", 0),
    "a trap on ERR": ("trap 'echo failed' ERR; false; trap - ERR; (exit 4)", "failed", 4),
    "a trap in a subshell": ("(trap 'echo bye' EXIT; exit 6)", "bye", 6),
    "set -x": ("(set -x; : a 'b c') 2>&1 | tail -n 1 | tr -d +", " : a 'b c'", 0),
    "a pipeline's last command": ("false | true", "", 0),
    "pipefail": ("(set -o pipefail; (exit 3) | true)", "", 3),
    "job control": ("sleep 98765 & kill %1; wait %1 2>/dev/null; echo $?", "143", 0),
    "a signal": ("bash -c 'kill -TERM $$'; echo $?", "143", 0),
    "a command that is not there": ("nosuchcmd 2>/dev/null", "", 127),
    "a file that cannot be run": ("/etc/passwd 2>/dev/null", "", 126),
    "input, by Python": ("python3 -c 'input()' 2>&1 | tail -n 1", "EOFError: EOF when reading a line", 0),
    "input, by cat": ("cat; cat - | wc -c; read -r x || echo none", "0\nnone", 0),
    "arithmetic that is 0": ("((0))", "", 1),
    "a return at the top": ("return 5", "", 5),
}  # fmt: skip


@pytest.mark.parametrize("command, printed, code", WHOLE.values(), ids=WHOLE)
def test_output_and_exit_code_are_bashs_own(shell, command, printed, code):
    result = shell.run(command).result
    assert (result["output"], result["exit_code"], result["failure_reason"]) == (printed, code, "")
    assert shell.output("echo next") == "next"


ENDING = {
    "set -e": ("set -e; echo a; false; echo b", "a", 1),
    "exit in a function": ("f() { echo a; exit 4; }; f; echo b", "a", 4),
    "an EXIT trap": ("trap 'echo bye' EXIT; echo a; exit 2", "a\nbye", 2),
    "kill": ("echo a; kill -KILL $$; echo b", "a", 137),
    "a program in its place": ("echo a; exec bash -c 'echo b; exit 5'", "a\nb", 5),
}


@pytest.mark.parametrize("command, printed, code", ENDING.values(), ids=ENDING)
def test_S04_the_end_of_a_shell_is_told_and_the_next_one_begins_where_it_was(shell, command, printed, code):
    shell.output("export E='a b'; mkdir -p in; cd in")
    ended = shell.run(command).result
    assert (ended["output"], ended["exit_code"]) == (printed, code) and "ended" in ended["failure_reason"]
    again = shell.run('basename "$PWD"; echo "$E"').result
    assert again["output"] == "in\na b" and str(code) in again["failure_reason"]
    raised = shell.run(command, check="raise").failed(6000, kind="session_ended")
    assert (raised["output"], raised["exit_code"]) == (printed, code)


def test_the_state_of_a_session_persists(shell):
    shell.output(
        "v='a b'; f() { echo \"f $1\"; }; alias g='echo g'; umask 027; set -o noclobber; shopt -s nullglob; a=(1 2 3)"
    )
    shell.output("sleep 98765 &")
    seen = shell.output(
        'echo "$v"; f x; g; umask; [[ -o noclobber ]] && echo on; shopt -q nullglob && echo on; echo ${a[2]}; jobs -r | wc -l'
    )
    assert seen.split("\n") == ["a b", "f x", "g", "0027", "on", "on", "3", "1"]


def test_an_unset_variable_is_an_error_under_set_u_and_the_session_goes_on(shell):
    result = shell.run("v=kept; set -u; echo a; echo $nope; echo b").result
    assert result["output"].startswith("a\n") and "unbound variable" in result["output"] and result["exit_code"] == 1
    assert shell.output("echo $v") == "kept"


@pytest.mark.parametrize("size", [1, 50_000_000])
def test_O03_a_line_of_any_length_is_cut_in_the_answer_and_whole_by_offset(shell, size):
    request, digest, offset = f"r-{uuid.uuid4().hex}", hashlib.sha256(), 0
    result = shell.run(f"head -c {size} /dev/zero | tr '\\0' x; (exit 3)", request_id=request).result
    assert result["exit_code"] == 3
    if size == 1:
        assert result["output"] == "x"
    else:
        head, mark, tail = result["output"].partition("\n")[0], result["output"], result["output"].rpartition("\n")[2]
        omitted = size - len(head) - len(tail)
        assert set(head + tail) == {"x"} and str(omitted) in mark.replace(",", "") and len(mark) < 11_000_000
    while not (part := shell.api.get(f"/results/{request}/output", offset=offset).result)["done"] or part["output"]:
        digest.update(part["output"].encode())
        offset = part["next_offset"]
    assert offset == size and digest.hexdigest() == hashlib.sha256(b"x" * size).hexdigest()


def stream(shell, request):
    """Yield the server-sent events of a command, with the time of each."""
    parts = urlsplit(shell.api.url)
    connection = HTTPConnection(parts.hostname, parts.port, timeout=30)
    try:
        path = f"{PREFIX}/results/{request}/output?offset=0"
        connection.request("GET", path, headers={"Accept": "text/event-stream"})
        kind = ""
        for line in connection.getresponse():
            if line.startswith(b"event: "):
                kind = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                yield kind, json.loads(line[6:]), time.monotonic()
                if kind == "done":
                    return
    finally:
        connection.close()


def test_two_readers_see_the_same_bytes_and_one_that_returns_misses_nothing(shell):
    request, seen = f"r-{uuid.uuid4().hex}", [[], []]
    gate = f"{shell.output('pwd')}/go"
    script = f"printf 'one é\\n'; until [[ -e {gate} ]]; do sleep 0.02; done; printf 'two\\xff\\n'; (exit 3)"
    shell.run(script, request_id=request, wait=0)
    readers = [threading.Thread(target=lambda into=into: into.extend(stream(shell, request))) for into in seen]
    for reader in readers:
        reader.start()
    left = next(stream(shell, request))
    assert left[0] == "output" and left[1] == {"offset": 0, "text": "one é\n"}
    until(lambda: all(seen), 10, "the first output")
    shell.execute(["touch", gate])
    for reader in readers:
        reader.join(30)
    for events in seen:
        assert "".join(data["text"] for kind, data, _ in events if kind == "output") == "one é\ntwo\\xff\n"
        assert events[-1][0] == "done" and events[-1][1]["result"]["exit_code"] == 3
    assert "".join(data["text"] for kind, data, _ in stream(shell, request) if kind == "output") == "one é\ntwo\\xff\n"


def test_a_running_command_shows_what_it_prints_while_it_runs(shell):
    """Each line is there before the next is printed, which takes the reader's word."""
    request, folder = f"r-{uuid.uuid4().hex}", shell.output("pwd")
    shell.run(
        f"for i in 1 2 3; do echo $i; until [[ -e {folder}/$i ]]; do sleep 0.02; done; done", request_id=request, wait=0
    )
    for kind, data, _ in stream(shell, request):
        if kind == "output":
            shell.execute(["touch", f"{folder}/{data['text'].strip()}"])
    assert shell.api.get(f"/results/{request}", wait=10).result["output"] == "1\n2\n3"
