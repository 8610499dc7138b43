"""What a terminal shows is searched for what a caller expects: as plain text and as a pattern, in linear time."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rock.errors import BadRequest
from workers.expect import MOST, Expected, shown


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\x1b[?2004h>>> \x1b[1;31mred\x1b[0m", b">>> red"),
        (b"\x1b]0;title\x07$ \x1b]2;t\x1b\\x", b"$ x"),
        (b"a\r\nb\r\r\nc\rd", b"a\nb\nc\rd"),
        (b"bell\x07 \x1b(B\x1b=\x1b>plain", b"bell plain"),
        (b"cut \x1b[", b"cut \x1b["),
    ],
)
def test_what_only_steers_a_terminal_is_not_shown(raw, text):
    assert shown(raw).text == text


@given(st.lists(st.sampled_from([b"a", b"bc", b"\r\n", b"\x1b[31m", b"\x1b]0;t\x07", b"\x1b", b"\r"])).map(b"".join))
def test_every_byte_of_the_text_is_where_it_was(raw):
    seen = shown(raw)
    assert all(raw[seen.offset(at)] == seen.text[at] for at in range(len(seen.text)))
    assert seen.offset(len(seen.text)) <= len(raw)


@pytest.mark.parametrize(
    ("pattern", "text", "at"),
    [
        (">>> ", b"x\n>>> ", 2),
        ("(gdb) ", b"ok\n(gdb) ", 3),
        (r"\(gdb\) $", b"(gdb) (gdb) ", 6),
        ("*** ", b"a *** b", 2),
        ("[unclosed", b"an [unclosed", 3),
        (r"a.b", b"xa\nb", 1),
        ("done\r\n", b"done\n", 0),
        (r"done\r\n", b"done\n", 0),
        ("caf\xe9", "ein café".encode(), 4),
    ],
)
def test_a_pattern_is_found(pattern, text, at):
    found = Expected([pattern]).search(text, 0)
    assert found and (found.pattern, found.start) == (pattern, at)


def test_what_shows_first_wins_and_then_the_order_of_the_list():
    assert Expected(["b", "a"]).search(b"ab", 0).pattern == "a"
    assert Expected(["ab", "a"]).search(b"ab", 0).pattern == "ab"
    assert Expected(["a"]).search(b"aXa", 1).start == 2
    assert Expected(["z"]).search(b"ab", 0) is None


@pytest.mark.parametrize("pattern", ["(?=a)", r"(a)\1", "a{2000}", "x" * 3000])
def test_what_cannot_be_searched_for_is_refused(pattern):
    with pytest.raises(BadRequest, match="expect"):
        Expected([pattern])


def test_there_is_a_limit_to_the_number():
    with pytest.raises(BadRequest, match="expect"):
        Expected(["a"] * (MOST + 1))


def test_no_pattern_makes_a_search_long():
    begun = time.monotonic()
    assert Expected([r"(a+)+b", r"(a|aa)+$x", r"(.*)(.*)(.*)(.*)c"]).search(b"a" * 65536, 0) is None
    assert time.monotonic() - begun < 3
