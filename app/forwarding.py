"""What of a request and of its answer passes between a caller and a program in a sandbox. Pure: no socket, no Flask."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import unquote_plus, urlsplit

from rock.errors import BadRequest

PORT_FIELD, PORT_HEADER = "rock_target_port", "X-ROCK-Target-Port"
DEFAULT_PORT = 8080
"""When the request names none, as in ROCK."""

Fields = list[tuple[str, str]]

# RFC 9110 7.6.1, and what of old proxies is still met. Framing is made anew on each side.
_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade"}
)  # fmt: skip
# Ours, or made anew. The service has answered Expect already.
_NOT_FORWARDED = _HOP_BY_HOP | {"host", "content-length", "expect", "x-api-key", "x-key", PORT_HEADER.lower(),
                                "x-forwarded-host", "x-forwarded-proto", "x-forwarded-prefix"}  # fmt: skip
# Our server writes its own.
_NOT_RETURNED = _HOP_BY_HOP | {"date", "server"}
_PATH_PORT = re.compile(r"/port/(\d{1,9})(?=/|$)", re.ASCII)
_ABSOLUTE = re.compile(r"https?://[^/?#]*", re.IGNORECASE)


@dataclass(frozen=True)
class Target:
    """Which program is meant, and what it is asked for."""

    port: int
    # Path and query, as the program gets them.
    path: str
    # Path of the service under which the program's own paths are found, and a query that must be added then.
    prefix: str
    suffix: str = ""

    @property
    def authority(self) -> str:
        """The Host that the program sees: many serve no other than this one."""
        return f"localhost:{self.port}"

    def outside(self, location: str, host: str) -> str:
        """Return where the caller finds what the program calls `location`; of other places, `location` as it is.

        Params:
            host: that of the caller's request.
        """
        try:
            parts = urlsplit(location)
        except ValueError:
            return location  # no address at all: that is the program's business
        here = parts.netloc in (self.authority, f"127.0.0.1:{self.port}", host) and parts.scheme in (
            "http",
            "https",
            "",
        )
        if (parts.netloc and not here) or (not parts.netloc and not location.startswith("/")):
            return location
        inner = location if not parts.netloc else location.partition("//")[2][len(parts.netloc) :] or "/"
        if self._is_outside(inner):
            return location
        inner, mark, fragment = inner.partition("#")
        if self.suffix:
            inner += ("&" if "?" in inner else "?") + self.suffix
        return self.prefix + inner + mark + fragment

    def cookie(self, text: str) -> str:
        """Return a Set-Cookie header whose cookie comes back to the program, and to no other behind the same address.

        Params:
            text: as the program sent it; its `Path` is one of the program's own, its `Domain` where it believes to be.
        """
        first, *attributes = [part.strip() for part in text.split(";")]
        kept, without_path = [first], False
        for part in attributes:
            # As browsers read it (RFC 6265 5.2): white space around a name or a value is no part of it.
            name, value = (side.strip() for side in part.partition("=")[::2])
            if name.lower() == "domain" and value.lower().lstrip(".") in ("localhost", "127.0.0.1"):
                continue
            if name.lower() == "path":
                if not value.startswith("/"):
                    without_path = True  # for browsers, the folder of the request, which may be above the program's
                    continue
                # Without a slash at its end it holds for the prefix itself, too.
                part = f"{name}={value if self._is_outside(value) else self.prefix + value.rstrip('/')}"
            kept.append(part)
        # The first, as the last one counts.
        return "; ".join([first, *([f"Path={self.prefix}"] if without_path else []), *kept[1:]])

    def _is_outside(self, path: str) -> bool:
        """Return whether a program that heeds X-Forwarded-Prefix has put it before its path already."""
        return path == self.prefix or path.startswith((f"{self.prefix}/", f"{self.prefix}?", f"{self.prefix}#"))


def find_target(uri: str, base: str, header: str | None) -> Target:
    """Return the target of a request.

    Params:
        uri: the request's target, exactly as it was sent.
        base: path of the service up to and with `/proxy`.
        header: value of X-ROCK-Target-Port, if sent.
    Raises:
        BadRequest: a port that is none, or named twice; a path that is not what it seems.
    """
    path, _, query = _ABSOLUTE.sub("", uri, count=1).partition("?")
    if not path.startswith(base):
        raise BadRequest(f"write the path up to {base} as it is, without escapes")
    rest, own = path[len(base) :], [part for part in query.split("&") if _names_port(part)]
    in_path = _PATH_PORT.match(rest)
    named = [(f"query parameter {PORT_FIELD}", unquote_plus(part.partition("=")[2])) for part in own]
    named += [("path", in_path[1])] if in_path else []
    named += [(f"header {PORT_HEADER}", header)] if header else []
    if len(named) > 1:
        raise BadRequest(f"the target port is named more than once: {', '.join(where for where, _ in named)}")
    port = check_port(named[0][1], named[0][0]) if named else DEFAULT_PORT
    if in_path:
        base, rest = base + in_path[0], rest[in_path.end() :]
    query = "&".join(part for part in query.split("&") if not _names_port(part))
    inner = _ascii((rest or "/") + (f"?{query}" if query else ""))
    return Target(port, inner, base, f"{PORT_FIELD}={port}" if own else "")


def check_port(text: str, where: str) -> int:
    """Return a port number. Raises BadRequest naming `where` it stood."""
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535):
        raise BadRequest(f"{where}: a port is a whole number from 1 to 65535, got {text[:40]!r}")
    return int(text)


def request_headers(
    sent: Iterable[tuple[str, str]], target: Target, host: str, scheme: str, is_key: Callable[[str], bool]
) -> Fields:
    """Return the headers that a program gets of those that were sent, without those that frame the body.

    Keys of the service stay outside: X-API-Key and X-Key always, Authorization where it holds one.

    Params:
        host, scheme: of the request, for X-Forwarded-Host and -Proto, and to know pages of the program itself.
        is_key: whether the value of an Authorization header is a key of the service.
    """
    fields = list(sent)
    dropped = _NOT_FORWARDED | _named_by_connection(fields)
    passed: Fields = [("Host", target.authority)]
    for name, value in fields:
        lower = name.lower()
        if lower in dropped or (lower == "authorization" and is_key(value)):
            continue
        if lower == "origin" and value in (f"http://{host}", f"https://{host}"):
            value = f"http://{target.authority}"  # to the program, its own pages are of the same origin
        passed.append((name, value))
    forwarded = {"X-Forwarded-Host": host, "X-Forwarded-Proto": scheme, "X-Forwarded-Prefix": target.prefix}
    return [*passed, *forwarded.items()]


def answer_headers(sent: Iterable[tuple[str, str]], target: Target, host: str) -> Fields:
    """Return the headers that a caller gets of those of a program's answer."""
    fields = list(sent)
    dropped = _NOT_RETURNED | _named_by_connection(fields)
    changed: dict[str, Callable[[str], str]] = {
        "location": lambda value: target.outside(value, host),
        "content-location": lambda value: target.outside(value, host),
        "set-cookie": target.cookie,
    }
    return [
        (name, changed[name.lower()](value) if name.lower() in changed else value)
        for name, value in fields
        if name.lower() not in dropped
    ]


def _named_by_connection(fields: Fields) -> frozenset[str]:
    """Return the names that Connection says are for the next hop only."""
    values = [value for name, value in fields if name.lower() == "connection"]
    return frozenset(word.strip().lower() for value in values for word in value.split(","))


def _names_port(part: str) -> bool:
    return unquote_plus(part.partition("=")[0]) == PORT_FIELD


def _ascii(text: str) -> str:
    """Return a request target as it may be sent on: what is no printable ASCII is escaped."""
    return "".join(char if "!" <= char <= "~" else f"%{ord(char) & 0xFF:02X}" for char in text)
