"""Single functions of the keeper, called by themselves."""

import subprocess

import pytest

from workers import keeper


def call(snippet: str) -> str:
    """Run a snippet in a bash that knows all the keeper's functions; return what it printed."""
    functions = keeper.script().removesuffix(b"k_main\n")
    done = subprocess.run(
        ["bash", "--noprofile", "--norc"], input=functions + snippet.encode(), capture_output=True, timeout=20
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


@pytest.mark.parametrize(
    ("parts", "seen", "kept"),
    [
        (["hi", "MARK"], 2, ["hi"]),  # it grew while it was read
        (["hi", "MA", "RK"], 2, ["hi"]),
        (["a", "b", "MARK"], 6, ["a", "b", "MARK"]),  # real NULs, and it was whole
        (["a", "b", "more"], 3, ["a", "b", "m"]),
        (["", "", "x"], 1, ["", "", "x"]),
        (["", "x"], 0, [""]),
    ],
)
def test_only_what_was_there_before_counts(parts, seen, kept):
    given = " ".join(f"'{part}'" for part in parts)
    assert call(f"a=({given}); k_settle {seen}; printf '<%s>' \"${{a[@]}}\"\n") == "".join(f"<{part}>" for part in kept)


LATE = """K=$$ R=$(mktemp -d)
exec {EV}<> <(:) {TURN}<> <(:)
read() { builtin read "$@"; return 142; }
"""
"""Each read gets what there is, and says all the same that its time is over: it was, at that very moment."""


def test_an_event_that_is_read_at_the_end_of_the_time_for_it_is_not_lost():
    lines = "printf 'd 1 0\\n\\nq 2\\n' >&\"$EV\"\n" + "k_line 1; printf '<%s>' \"$LINE\"\n" * 3
    assert call(f'{LATE}{lines}rm -r "$R"\n') == "<d 1 0><><q 2>"


def test_nothing_is_heard_where_nothing_is_told():
    assert call("exec {EV}<> <(:)\nLINE=old\nk_line 0.001; printf '<%s>' \"$LINE\"\n") == "<>"


def test_a_turn_that_is_taken_at_the_end_of_the_time_for_it_is_not_lost():
    taken = (
        'k_go_on() { echo waited; }\nprintf "\\n" >&"$TURN"\nk_take_turn; [[ $(<"$R/turn") == "$$" ]] && echo taken\n'
    )
    assert call(f'{LATE}{taken}rm -r "$R"\n') == "taken\n"
