"""One stream of one call: whole within the limit, head and tail beyond it, text whatever the bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.output import Collected

CALL = "0123456789"


def mark(code: int, call: str = CALL) -> bytes:
    return f"\x1e{call} {code}\x1e".encode()


def drive(held: bytes, limit: int, part: int) -> Collected:
    """Ask for what is wanted next until the end is there, as the desk does."""
    collected = Collected(CALL, limit)
    for _ in range(len(held) // part + 10):
        if collected.exit_code is not None:
            break
        offset = collected.next_offset
        collected.add(offset, held[offset : offset + part], len(held))
    return collected


@given(data=st.binary(max_size=500), code=st.integers(0, 255), part=st.integers(1, 600))
def test_output_within_the_limit_is_whole(data, code, part):
    collected = drive(data + mark(code), 10_000, part)
    assert (collected.raw(), collected.exit_code, collected.omitted, collected.total) == (data, code, 0, len(data))


@given(size=st.integers(3000, 6000), limit=st.integers(200, 1000), part=st.integers(20, 100))
def test_output_beyond_the_limit_keeps_head_and_tail_and_says_what_is_missing(size, limit, part):
    data = b"".join(b"%04d," % number for number in range(size // 5))
    collected = drive(data + mark(0), limit, part)
    raw, half = collected.raw(), limit // 2
    assert collected.exit_code == 0 and collected.omitted > 0
    assert len(raw) + collected.omitted == len(data) and len(raw) <= limit + part
    assert data.startswith(raw[:half]) and data.endswith(raw[half + 20 :])
    assert f"[... {collected.omitted} bytes of {len(data)} omitted ...]" in collected.text()


def test_a_part_that_was_asked_for_twice_counts_once():
    collected = Collected(CALL, 1000)
    collected.add(0, b"abc", 6)
    collected.add(0, b"abc", 6)
    collected.add(3, b"def", 6)
    assert collected.raw() == b"abcdef" and collected.next_offset == 6


def test_nothing_comes_after_the_end():
    collected = Collected(CALL, 1000)
    collected.add(0, b"abc" + mark(3), 3 + len(mark(3)))
    collected.add(3, b"late", 7)
    assert (collected.raw(), collected.exit_code) == (b"abc", 3)


def test_what_is_printed_after_the_mark_belongs_to_nobody():
    """A background job that holds the stream open prints late."""
    collected = Collected(CALL, 1000)
    collected.add(0, b"abc" + mark(0) + b"late", 100)
    assert collected.raw() == b"abc" and collected.exit_code == 0


@pytest.mark.parametrize("forged", [mark(9), mark(9, "ffffffffff"), b"\x1e", b"\x1e" + CALL.encode() + b" "])
def test_a_forged_mark_is_output(forged):
    """The call's own mark too, if more output follows it; the shell's mark is the last."""
    collected = drive(forged + b" and more" + mark(1), 1000, 1000)
    assert collected.exit_code == 1 and collected.raw().endswith(b" and more")


def test_a_second_mark_at_once_is_no_output():
    """A kill between the shell's mark and its report makes it print another one."""
    collected = drive(b"abc" + mark(0) + mark(130), 1000, 1000)
    assert (collected.raw(), collected.exit_code) == (b"abc", 0)


@given(data=st.binary(max_size=300))
def test_any_bytes_become_text_that_utf8_carries(data):
    collected = drive(data + mark(0), 1000, 1000)
    assert collected.text() == data.decode("utf-8", "backslashreplace")
    collected.text().encode("utf-8")


@given(text=st.text(max_size=200), part=st.integers(1, 5))
def test_a_character_cut_at_any_border_is_whole(text, part):
    data = text.encode("utf-8", "replace")
    assert drive(data + mark(0), 10_000, part).text() == data.decode()


@pytest.mark.parametrize(
    "held, shown", [("a\n", "a"), ("a\n\n", "a\n"), ("\n", ""), ("a", "a"), ("", ""), ("a\r\n", "a\r"), ("  \n", "  ")]
)
def test_one_trailing_newline_is_dropped_and_nothing_else(held, shown):
    collected = drive(held.encode() + mark(0), 1000, 1000)
    assert collected.text(strip_newline=True) == shown and collected.text() == held


def test_a_stream_without_a_mark_can_be_given_up():
    collected = Collected(CALL, 1000)
    collected.add(0, b"abc", 3)
    collected.give_up(137)
    assert (collected.exit_code, collected.raw()) == (137, b"abc")
