"""What passes between a caller and a program in a sandbox, and what does not."""

import pytest

from app.forwarding import answer_headers, find_target, request_headers
from rock.errors import BadRequest

BASE = "/v1/sandboxes/a/proxy"
HOST = "api.example:8080"


def target(rest="", header=None):
    return find_target(BASE + rest, BASE, header)


@pytest.mark.parametrize(
    ("rest", "header", "port", "path"),
    [
        ("", None, 8080, "/"),
        ("/", None, 8080, "/"),
        ("/x/y?q=%20&z", None, 8080, "/x/y?q=%20&z"),
        ("/port/3000", None, 3000, "/"),
        ("/port/3000?x", None, 3000, "/?x"),
        ("/port/3000/a//b/../%2e%2f", None, 3000, "/a//b/../%2e%2f"),
        ("/port/name/3", None, 8080, "/port/name/3"),
        ("/portal/1", "81", 81, "/portal/1"),
        ("/x?rock_target_port=82&a=1&a=2", None, 82, "/x?a=1&a=2"),
        ("/x?a=1&rock%5Ftarget_port=83", None, 83, "/x?a=1"),
        ("/x?rock_target_port=65535", None, 65535, "/x"),
        ("//evil.example/", "84", 84, "//evil.example/"),
        ("/sp ace/\xe9", "85", 85, "/sp%20ace/%E9"),
    ],
)
def test_port_and_path(rest, header, port, path):
    found = target(rest, header)
    assert (found.port, found.path) == (port, path)


def test_an_absolute_request_target_is_the_same():
    assert find_target(f"http://elsewhere.example{BASE}/x", BASE, None).path == "/x"


@pytest.mark.parametrize(
    ("rest", "header"),
    [
        ("/port/1/?rock_target_port=1", None),
        ("/port/1/", "1"),
        ("/?rock_target_port=1", "1"),
        ("/?rock_target_port=1&rock_target_port=1", None),
        ("/port/0/", None),
        ("/port/65536/", None),
        ("/?rock_target_port=", None),
        ("/?rock_target_port=80@10.0.0.1", None),
        ("/?rock_target_port=%D9%A3", None),
        ("/", "99999"),
        ("/", "10.0.0.1:80"),
        ("/", "+80"),
    ],
)
def test_a_port_that_is_none_or_named_twice_is_refused(rest, header):
    with pytest.raises(BadRequest, match="port"):
        target(rest, header)


def test_a_path_that_hides_where_it_begins_is_refused():
    with pytest.raises(BadRequest, match="without escapes"):
        find_target("/v1%2Fsandboxes/a/proxy/x", BASE, None)


def passed(*fields, rest="/port/3000"):
    return request_headers(fields, target(rest), HOST, "https", lambda value: value == "Bearer ours")


def test_keys_of_the_service_do_not_pass():
    for name in ("X-API-Key", "x-key", "X-ROCK-Target-Port"):
        assert name.lower() not in {one.lower() for one, _ in passed((name, "secret"))}
    assert ("Authorization", "Bearer ours") not in passed(("Authorization", "Bearer ours"))
    for value in ("Bearer its-own", "Basic eDp5"):
        assert ("Authorization", value) in passed(("Authorization", value))


def test_what_is_for_one_hop_does_not_pass():
    sent = [("Connection", "keep-alive, X-Mine"), ("X-Mine", "1"), ("Keep-Alive", "5"), ("TE", "trailers"), ("Upgrade", "h2c"),
            ("Transfer-Encoding", "chunked"), ("Content-Length", "5"), ("Expect", "100-continue"), ("Host", HOST),
            ("Proxy-Authorization", "Basic x"), ("Trailer", "x")]  # fmt: skip
    kept = [("Accept", "*/*"), ("Cookie", "a=b"), ("Content-Type", "x/y"), ("Sec-WebSocket-Protocol", "a,b")]
    ours = [("X-Forwarded-Host", HOST), ("X-Forwarded-Proto", "https"), ("X-Forwarded-Prefix", f"{BASE}/port/3000")]
    assert passed(*sent, *kept, ("X-Forwarded-Prefix", "/forged")) == [("Host", "localhost:3000"), *kept, *ours]


def test_its_own_pages_have_its_own_origin():
    assert ("Origin", "http://localhost:3000") in passed(("Origin", f"https://{HOST}"))
    assert ("Origin", "https://other.example") in passed(("Origin", "https://other.example"))


def test_an_answer_loses_what_is_for_one_hop_and_keeps_what_comes_twice():
    sent = [("Connection", "close, X-Hop"), ("X-Hop", "1"), ("Date", "x"), ("Server", "x"), ("Transfer-Encoding", "chunked"),
            ("Content-Length", "5"), ("Content-Encoding", "gzip"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")]  # fmt: skip
    kept = [("Content-Length", "5"), ("Content-Encoding", "gzip"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")]
    assert answer_headers(sent, target(), HOST) == kept


@pytest.mark.parametrize(
    ("rest", "location", "outside"),
    [
        ("/port/3000/x", "/login?a=1#top", f"{BASE}/port/3000/login?a=1#top"),
        ("/port/3000/x", "http://localhost:3000/login", f"{BASE}/port/3000/login"),
        ("/port/3000/x", "http://127.0.0.1:3000", f"{BASE}/port/3000/"),
        ("/port/3000/x", f"https://{HOST}/login", f"{BASE}/port/3000/login"),
        ("/port/3000/x", "http://localhost:3001/login", "http://localhost:3001/login"),
        ("/port/3000/x", "https://example.com/x", "https://example.com/x"),
        ("/port/3000/x", "//example.com/x", "//example.com/x"),
        ("/port/3000/x", "next", "next"),
        ("/x?rock_target_port=3000", "/login", f"{BASE}/login?rock_target_port=3000"),
        ("/x?rock_target_port=3000", "/login?a#b", f"{BASE}/login?a&rock_target_port=3000#b"),
        ("/x", "/login", f"{BASE}/login"),
        ("/x", "http://[broken", "http://[broken"),
        # A program that heeds X-Forwarded-Prefix (and -Host) says it itself.
        ("/port/3000/x", f"{BASE}/port/3000/login", f"{BASE}/port/3000/login"),
        ("/port/3000/x", f"https://{HOST}{BASE}/port/3000?a", f"https://{HOST}{BASE}/port/3000?a"),
        ("/port/3000/x", f"{BASE}/port/30001", f"{BASE}/port/3000{BASE}/port/30001"),
    ],
)
def test_a_redirect_leads_to_where_the_caller_finds_it(rest, location, outside):
    assert answer_headers([("Location", location)], target(rest), HOST) == [("Location", outside)]


@pytest.mark.parametrize(
    ("rest", "sent", "outside"),
    [
        ("/port/3000/x", "a=1", "a=1"),
        ("/port/3000/x", "a=1; Path=/", f"a=1; Path={BASE}/port/3000"),
        ("/port/3000/x", "a=1;path=/app/ ;HttpOnly; Max-Age=5", f"a=1; path={BASE}/port/3000/app; HttpOnly; Max-Age=5"),
        ("/port/3000/x", f"a=1; Path={BASE}/port/3000/app", f"a=1; Path={BASE}/port/3000/app"),
        ("/x?rock_target_port=3000", "a=b=c; Path=/", f"a=b=c; Path={BASE}"),
        ("/x", "a=1; Domain=localhost; Secure", "a=1; Secure"),
        ("/port/3000/x", "a=1; Path =/", f"a=1; Path={BASE}/port/3000"),
        ("/port/3000/x", "a=1; Path= /", f"a=1; Path={BASE}/port/3000"),
        ("/port/3000/x", "a=1;\tpath\t=\t/app\t; Secure", f"a=1; path={BASE}/port/3000/app; Secure"),
        ("/x", "a=1; Domain = localhost; domain =.LOCALHOST ; Secure", "a=1; Secure"),
        ("/x", "a=1; Domain=example.com; Path=", f"a=1; Path={BASE}; Domain=example.com"),
        ("/x", "a=; Path=relative", f"a=; Path={BASE}"),
        ("/x", 'a=1; Path="/"; Path', f"a=1; Path={BASE}"),
        ("/x", "a=1; Path=/b; Path=", f"a=1; Path={BASE}; Path={BASE}/b"),
        ("/x", "", ""),
    ],
)
def test_a_cookie_comes_back_to_its_program_and_to_no_other(rest, sent, outside):
    assert answer_headers([("Set-Cookie", sent)], target(rest), HOST) == [("Set-Cookie", outside)]
