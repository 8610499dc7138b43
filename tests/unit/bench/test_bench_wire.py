"""Requests and messages, in whatever pieces they arrive."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.client import check_hi, success_of
from bench.trivial import ANSWER, ENVELOPE
from bench.wire import Address, BenchError, MessageReader, unchunk

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    b"5\r\nhello\r\n7;name=x\r\n, world\r\n0\r\n\r\n"
)


def feed_in_pieces(message, cuts):
    """Feed a message cut at the given places; return the reader and the bodies it gave."""
    reader, bodies, last = MessageReader(), [], 0
    for cut in [*sorted(cuts), len(message)]:
        bodies.append(reader.feed(message[last:cut]))
        last = cut
    return reader, bodies


@given(st.sets(st.integers(1, len(ANSWER) - 1)))
def test_a_message_by_length_is_read_whatever_the_pieces(cuts):
    reader, bodies = feed_in_pieces(ANSWER, cuts)
    assert bodies[-1] == ENVELOPE and not any(bodies[:-1])
    assert reader.status == 200 and not reader.closes


@given(st.sets(st.integers(1, len(CHUNKED) - 1)))
def test_a_message_in_chunks_is_read_whatever_the_pieces(cuts):
    reader, bodies = feed_in_pieces(CHUNKED, cuts)
    assert bodies[-1] == b"hello, world" and not any(bodies[:-1])
    assert reader.closes


def test_a_message_without_a_body_is_complete_at_its_head():
    reader = MessageReader()
    assert reader.feed(b"HTTP/1.1 204 No Content\r\n\r\n") == b""
    assert reader.status == 204


def test_chunks_that_are_none_are_an_error():
    with pytest.raises(ValueError, match="invalid literal"):
        unchunk(b"zz\r\n", 0)


def test_addresses_and_requests():
    address = Address.of("http://127.0.0.1:8080/rock/")
    assert address == Address("127.0.0.1", 8080, "/rock")
    assert Address.of("localhost:81") == Address("localhost", 81)
    head, _, body = address.request("POST", "/x", {"X-API-Key": "k"}, b"{}").partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /rock/x HTTP/1.1", b"Host: 127.0.0.1:8080", b"X-API-Key: k", b"Content-Type: application/json",
        b"Content-Length: 2",
    ]  # fmt: skip
    assert body == b"{}"
    assert address.request("GET", "/", {}).endswith(b"Host: 127.0.0.1:8080\r\n\r\n")


@pytest.mark.parametrize("url", ["https://x", "ftp://x", "http://"])
def test_other_urls_are_refused(url):
    with pytest.raises(ValueError, match="not an http"):
        Address.of(url)


def test_only_a_success_has_a_result():
    assert success_of("x", 200, ENVELOPE)["output"] == "hi"
    for status, body in [
        (200, b'{"status": "Failed", "error": "no such sandbox"}'),
        (500, ENVELOPE),
        (200, b"<html>"),
        (200, b"[]"),
    ]:
        with pytest.raises(BenchError, match="^what: HTTP"):
            success_of("what", status, body)


def test_a_wrong_answer_is_not_a_step():
    check_hi("hi\r\n")
    with pytest.raises(BenchError, match="gave"):
        check_hi("hiSHELLPS1PREFIX")
