"""Frames and events survive any chunking; what came before the sync is never taken for an answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers import protocol
from workers.protocol import Event, Parser

TOKEN = "0123456789abcdef"
SYNC = f"\nsync {TOKEN}\n".encode()
ids = st.text("0123456789abcdef", min_size=10, max_size=10)


def line(event: Event) -> bytes:
    """Return the bytes that a keeper sends for an event."""
    return " ".join([event.kind, event.id, *event.args]).encode() + b"\n" + event.data


def data_event(id: str, stream: int, offset: int, data: bytes) -> Event:
    return Event("data", id, (str(stream), str(offset), str(len(data)), str(offset + len(data))), data)


events = st.one_of(
    st.builds(lambda id, rc: Event("done", id, (str(rc), "done")), ids, st.integers(0, 255)),
    st.builds(lambda id, ago: Event("start", id, (str(ago),)), ids, st.integers(0, 10**6)),
    st.builds(lambda id: Event("queued", id), ids),
    st.builds(lambda id: Event("unknown", id), ids),
    st.builds(lambda id: Event("reject", id, ("nosession",)), ids),
    st.builds(data_event, ids, st.sampled_from([1, 2]), st.integers(0, 10**9), st.binary(max_size=200)),
)


def parse_in_chunks(stream: bytes, borders: list[int]) -> list[Event]:
    parser, found, start = Parser(TOKEN), [], 0
    for border in [*sorted(one % (len(stream) + 1) for one in borders), len(stream)]:
        found += parser.feed(stream[start:border])
        start = border
    return found


@given(sent=st.lists(events, max_size=20), borders=st.lists(st.integers(0, 10**6), max_size=30))
def test_events_are_the_same_however_the_stream_is_cut(sent, borders):
    stream = SYNC + b"".join(map(line, sent))
    assert parse_in_chunks(stream, borders) == [Event("sync", ""), *sent]


@given(sent=st.lists(events, max_size=20))
def test_events_are_the_same_byte_by_byte(sent):
    stream = SYNC + b"".join(map(line, sent))
    assert parse_in_chunks(stream, list(range(len(stream)))) == [Event("sync", ""), *sent]


@given(
    before=st.binary(max_size=300),
    sent=st.lists(events, max_size=5),
    borders=st.lists(st.integers(0, 10**6), max_size=10),
)
def test_nothing_before_the_sync_is_heard(before, sent, borders):
    """It may be the middle of an earlier host's data, and hold anything but this attach's token."""
    stream = before + SYNC + b"".join(map(line, sent))
    assert parse_in_chunks(stream, borders) == [Event("sync", ""), *sent]


def test_the_sync_of_another_attach_is_not_ours():
    assert Parser(TOKEN).feed(b"\nsync ffffffffffffffff\ndone 0123456789 0 done\n") == []


def test_output_that_looks_like_events_is_output():
    forged = b"done 0123456789 0 done\n" + SYNC + b"data 0123456789 1 0 3 3\nabc"
    event = data_event("0123456789", 1, 0, forged)
    assert Parser(TOKEN).feed(SYNC + line(event)) == [Event("sync", ""), event]


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\xff\xfe\n",
        b"data x 1 0 many 9\n",
        b"data x\n",
        b"data x 1 0 -17 0\n",
        b"data x 1 0 99999999999 0\n",
        b"data x 1 -1 5 5\nabcde",
        b"x" * 100_000,
        b"x" * 100_000 + b"done 0123456789 0 done\n",
        b"xdone 0123456789 0 done\n",
    ],
)
def test_a_line_that_no_keeper_sends_is_told(nonsense):
    """Root in a sandbox can write them; none may hold up the thread that serves all sandboxes of the node."""
    with pytest.raises(ValueError):
        Parser(TOKEN).feed(SYNC + nonsense)


def read_frames(stream: bytes) -> list[tuple[list[str], bytes]]:
    """Return the header words and payload of each frame, as a keeper reads them."""
    found = []
    while stream:
        head, _, stream = stream.partition(b"\n")
        words = head.decode().split(" ")
        assert len(words) == 6 and words[5] == "."
        length = int(words[4])
        payload, stream = stream[:length], stream[length:]
        if length:
            assert stream[:1] == b"\n"
            stream = stream[1:]
        found.append((words, payload))
    return found


@given(
    script=st.binary(max_size=2000).map(lambda data: data.replace(b"\0", b"")),
    times=st.sampled_from([1, 300]),
    stdin=st.none() | st.binary(max_size=3000),
)
def test_a_submission_carries_script_and_input_whole(script, times, stdin):
    script *= times
    frames = read_frames(b"".join(protocol.submit("EXEC", "0123456789", "file", script, stdin)))
    puts = {kind: b"".join(load for words, load in frames if words[0] == "PUT" and words[2] == kind) for kind in "pi"}
    assert puts["i"] == (stdin or b"")
    assert frames[-1][0][:3] == ["EXEC", "0123456789", "file"]
    assert (frames[-1][1] or puts["p"]) == script
    assert all(len(load) <= protocol.MAX_PAYLOAD for _, load in frames)


def test_bytes_with_nul_are_announced():
    ((words, _),) = read_frames(b"".join(protocol.put("0123456789", "i", b"a\0b")))
    assert words[3] == "b0"


def test_the_paddings_complete_the_longest_frames():
    text = protocol.frame("RUN", "0123456789", "s", "-", b"x" * protocol.MAX_TEXT)
    binary = protocol.frame("PUT", "0123456789", "i", "b0", b"x" * protocol.MAX_PAYLOAD)
    assert len(protocol.PADDING) > len(text)
    assert len(protocol.LONG_PADDING) > len(binary)


@given(name=st.text(max_size=50), other=st.text(max_size=50))
def test_a_session_key_is_safe_and_its_own(name, other):
    key = protocol.session_key(name)
    assert len(key) == 16 and set(key) <= set("0123456789abcdef")
    assert (key == protocol.session_key(other)) == (name == other)
