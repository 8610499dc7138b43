"""The engine's frames, however the bytes are cut."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rock.errors import Internal
from workers.deployments.streams import STDERR, STDOUT, Demultiplexer

FRAMES = st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(max_size=50)), max_size=20)


def framed(stream: int, payload: bytes) -> bytes:
    return struct.pack(">B3xI", stream, len(payload)) + payload


def joined(pieces: list[tuple[int, bytes]], stream: int) -> bytes:
    return b"".join(piece for one, piece in pieces if one == stream)


@given(FRAMES, st.lists(st.integers(0, 1200)))
def test_every_byte_arrives_once_and_in_order(frames, cuts):
    data = b"".join(framed(*frame) for frame in frames)
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    parser, pieces = Demultiplexer(), []
    for start, end in zip(edges, edges[1:], strict=False):
        pieces += parser.feed(data[start:end])
    for stream in (STDOUT, STDERR):
        assert joined(pieces, stream) == b"".join(payload for one, payload in frames if one == stream)
    assert not parser.mid_frame
    assert all(piece for _, piece in pieces)


def test_a_payload_is_handed_on_before_its_frame_is_whole():
    parser = Demultiplexer()
    assert parser.feed(framed(STDOUT, b"abcdef")[:-2]) == [(STDOUT, b"abcd")]
    assert parser.mid_frame
    assert parser.feed(b"ef") == [(STDOUT, b"ef")]


def test_a_header_cut_anywhere_is_kept():
    parser, data = Demultiplexer(), framed(STDERR, b"x")
    assert [piece for byte in data for piece in parser.feed(bytes([byte]))] == [(STDERR, b"x")]


def test_bytes_that_are_no_frames_are_told():
    with pytest.raises(Internal, match="out of step"):
        Demultiplexer().feed(b"OCI runtime exec failed")
