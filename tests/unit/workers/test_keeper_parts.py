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
