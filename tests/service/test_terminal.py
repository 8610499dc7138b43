"""The terminal of a session, over the WebSocket and from the command line."""

import json
import os
import pty
import select
import subprocess
import sys
import time

import pytest
from simple_websocket import Client, ConnectionClosed

from tests.wire import PREFIX, Api, send, until


class Screen:
    """A client of a terminal, and what it has seen."""

    def __init__(self, box, headers=None, **query):
        words = "&".join(f"{name}={value}" for name, value in {"session": box.session, **query}.items())
        url = f"{box.api.url.replace('http', 'ws')}{PREFIX}/sandboxes/{box.id}/terminal?{words}"
        self.socket, self.text, self.told = Client(url, headers={**box.api.headers, **(headers or {})}), b"", None

    def _look(self):
        message = self.socket.receive(timeout=0.2)
        if isinstance(message, str):
            self.told = json.loads(message)
        elif message:
            self.text += message

    def shows(self, wanted):
        deadline = time.monotonic() + 20
        while wanted not in self.text:
            assert time.monotonic() < deadline, f"{wanted!r} is not in {self.text!r}; told {self.told}"
            self._look()

    def ends(self):
        until(lambda: self._look() or self.told, 20, "the last message")
        with pytest.raises(ConnectionClosed):
            self.socket.receive(timeout=5)
        return self.told


@pytest.fixture(scope="module")
def box(server):
    box = Api(server.url).start()
    yield box
    box.stop()


@pytest.fixture
def session(box):
    session = box.open()
    yield session
    session.close()


def test_keys_go_in_the_screen_comes_out_and_the_size_follows(session):
    session.run("export OWN=x; cd /usr")
    screen = Screen(session, rows=31, cols=91)
    screen.socket.send(b"echo $OWN$PWD; stty size\r")
    screen.shows(b"x/usr\r\n31 91\r\n")
    screen.socket.send(json.dumps({"rows": 42, "cols": 142}))
    screen.socket.send(b"until [[ $(stty size) == '42 142' ]]; do sleep 0.02; done; echo re''sized\r")
    screen.shows(b"resized")
    screen.socket.send(b"echo ca''t; cat\r")
    screen.shows(b"\rcat\r\n")
    screen.socket.send(b"\x03")
    screen.shows(b"^C")
    screen.socket.send(b"echo in''terrupted\r")
    screen.shows(b"interrupted")
    screen.socket.send(b"exit 3\r")
    assert screen.ends()["result"]["exit_code"] == 3
    assert session.output("echo $OWN $PWD") == "x /usr"


def test_closing_it_ends_its_shell_and_leaves_the_session(session):
    session.run("v=kept")
    screen = Screen(session)
    screen.socket.send(b"cd /; v=lost; echo up; sleep 98765\r")
    screen.shows(b"\rup\r\n")
    session.run("echo no").failed(4000, "terminal", kind="bad_request")
    screen.socket.close()
    until(lambda: session.run("echo $v").body["result"].get("output") == "kept", 20, "the session")


def test_what_a_terminal_cannot_have_is_told(session, box):
    missing = Screen(type(box)(box.api, box.id, "nothing"))
    assert missing.ends()["result"]["kind"] == "not_found"
    unknown = Screen(type(box)(box.api, "nothing", "default"))
    assert unknown.ends()["result"]["kind"] == "not_found"
    first = Screen(session)
    first.shows(b"$ ") if os.getuid() else first.shows(b"# ")
    assert Screen(session).ends()["result"]["kind"] == "bad_request"
    first.socket.send(json.dumps({"rows": "many", "cols": 1}))
    assert first.ends()["result"]["kind"] == "bad_request"


def test_a_page_of_another_site_is_refused(session):
    path = f"{PREFIX}/sandboxes/{session.id}/terminal"
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
    version = {"Sec_WebSocket_Version": "13", "Origin": "https://evil.example"}
    send(session.api.url, "GET", path, **upgrade, **version).failed(4000, "another site", kind="forbidden")


def test_the_command_line_has_a_shell(session, server):
    main, child = pty.openpty()
    command = [sys.executable, "-m", "rock.cli", "sandbox", "shell", session.id, "--session", session.session]
    process = subprocess.Popen(
        command, stdin=child, stdout=child, stderr=child, env={**server.environment(), "ROCK_BASE_URL": server.url}
    )
    os.close(child)
    seen = b""

    def shows(wanted):
        nonlocal seen
        deadline = time.monotonic() + 30
        while wanted not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([main], [], [], 0.2)[0]:
                seen += os.read(main, 65536)

    try:
        shows(b"# " if os.getuid() == 0 else b"$ ")
        os.write(main, b"echo here''after\r")
        shows(b"hereafter")
        os.write(main, b"exit 5\r")
        assert process.wait(20) == 5
    finally:
        process.kill()
        process.wait()
        os.close(main)
    assert session.output("echo ok") == "ok"
