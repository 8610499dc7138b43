"""A program at a terminal of a session: what is typed reaches it, what it shows is told at once, and the session is as before."""

import os
import secrets
import shutil
import sys

import pytest

from workers import protocol, scripts
from workers.protocol import frame


class Program:
    """A program at the terminal of session `s`, and its output as somebody who watches gets it."""

    def __init__(self, keeper, command):
        self.keeper, self.text, self.call = keeper, b"", secrets.token_hex(5)
        self.name = f"t{self.call}"
        keeper.send(protocol.talk(self.call, "s", command.encode() + b"\n", scripts.program(command)))
        keeper.says(self.call, "talk")
        self._seen = len(keeper.events)
        self.watch()

    def watch(self):
        """Ask for what comes next; to be done again after an attach."""
        self.keeper.send([protocol.watch(self.name, len(self.text))])

    def _shows(self, wanted):
        for event in self.keeper.events[self._seen :]:
            if event.kind == "data" and event.id == self.name and int(event.args[1]) == len(self.text):
                self.text += event.data
                self.watch()
        self._seen = len(self.keeper.events)
        return wanted in self.text

    def shows(self, wanted):
        self.keeper.until(lambda: self._shows(wanted), f"{wanted!r} on the screen, which is {self.text[-300:]!r}")

    def types(self, keys):
        call = secrets.token_hex(5)
        self.keeper.send(protocol.keys(call, self.name, keys))
        self.keeper.end_of(call)
        self.keeper.send([frame("ACK", call)])

    def ends(self):
        self.keeper.says(self.name, "done")
        return self.keeper.answer(self.name).exit_code


def test_it_has_a_terminal_in_the_folder_and_with_the_variables_of_the_session(shell):
    shell.run("cd /usr; export OWN=x; v=kept")
    program = Program(
        shell, 'test -t 0 -a -t 1 && exec 3</dev/tty && echo "$PWD $OWN $TERM ${SHELL-none} $(stty size)"; exit 3'
    )
    program.shows(b"/usr x dumb")
    program.shows(b"50 200")
    assert program.ends() == 3
    assert shell.run('echo "$v $PWD"').output == b"kept /usr\n"


def test_every_byte_can_be_typed(shell):
    program = Program(shell, "stty raw -echo; echo ready; head -c 256 | od -An -v -tu1 -w256; stty sane")
    program.shows(b"ready")
    program.types(bytes(range(256)))
    program.shows(" ".join(f"{byte:3d}" for byte in range(256)).encode())


def test_its_terminal_takes_a_new_size(shell):
    program = Program(shell, "echo ready; until [[ $(stty size) == '33 101' ]]; do sleep 0.02; done; echo resized")
    program.shows(b"ready")
    shell.send([frame("SIZE", secrets.token_hex(5), program.name, "33x101")])
    program.shows(b"resized")


def test_a_line_goes_to_the_program_once_however_often_it_is_submitted(shell):
    program = Program(shell, "cat")
    line = secrets.token_hex(5)
    frames = list(protocol.talk(line, "s", b"hello\n", scripts.program("hello")))
    for _ in range(3):
        shell.send(frames)
    shell.attach()
    program.watch()
    shell.send([frame("ASK", line)])
    program.types(b"\x04")
    assert program.ends() == 0
    program.shows(b"\x1e")
    assert program.text.count(b"hello\r\n") == 2  # the echo, and what cat says


def test_the_next_talk_is_told_what_was_given_already(shell):
    program = Program(shell, "cat")
    program.types(b"abc\n")
    program.shows(b"abc\r\nabc\r\n")
    shell.send([frame("GIVEN", program.call, program.name, "5"), frame("ACK", program.call)])
    line = secrets.token_hex(5)
    shell.send(protocol.talk(line, "s", b"\x04", None))
    shell.says(line, "talk")
    assert next(event.args for event in shell.events if event.id == line) == (program.name, "5", "10")


def test_a_session_runs_nothing_else_meanwhile_and_has_only_one_program(shell):
    program = Program(shell, "cat")
    assert shell.run("echo no").reason == "tty"
    program.types(b"\x04")
    program.ends()
    quit = secrets.token_hex(5)
    shell.send(protocol.talk(quit, "s", b"x\n", None))
    assert shell.end_of(quit).reason == "noprogram"
    assert shell.run("echo yes").output == b"yes\n"


def test_a_program_that_is_ended_gives_the_terminal_back(shell):
    program = Program(shell, "trap '' INT TERM; echo up; while :; do sleep 1000; done")
    program.shows(b"up")
    shell.send([frame("KILL", program.name)])
    later = shell.start("echo back")
    program.ends()
    assert shell.end_of(later).output == b"back\n"


def test_output_that_nobody_reads_waits_and_is_then_whole(shell):
    program = Program(shell, "seq 300000; echo the end")
    program.shows(b"the end")
    program.shows(b"\x1e")
    lines = program.text.split(b"\r\n")
    assert lines[:300000] == [b"%d" % number for number in range(1, 300001)]


def test_closing_the_session_ends_its_program(shell):
    program = Program(shell, "sleep 98765")
    close = secrets.token_hex(5)
    shell.send([frame("CLOSE", close, "s")])
    assert "closed" in shell.end_of(close).words
    program.ends()
    shell.until(lambda: not any("98765" in line for line in shell.processes().values()), "the end of the program")


@pytest.fixture
def tools(tmp_path):
    """A folder of tools to choose from."""
    folder = tmp_path / "tools"
    folder.mkdir()

    def link(*names):
        for name in names:
            # Not what PATH says: that may be a shim, which needs other tools.
            os.symlink(os.path.realpath(sys.executable) if name == "python3" else shutil.which(name), folder / name)
        return folder

    return link


def test_python_makes_the_terminal_where_there_is_no_script(shell, tools):
    shell.run(f"PATH={tools('bash', 'python3', 'cat', 'stty')}")
    program = Program(shell, "test -t 0 && cat; exit 7")
    program.types(b"hi\n\x04")
    assert program.ends() == 7
    program.shows(b"\x1e")
    assert b"hi\r\nhi\r\n" in program.text


def test_an_image_with_neither_says_so(shell, tools):
    shell.run(f"PATH={tools('bash', 'cat')}")
    program = Program(shell, "cat")
    assert program.ends() == 127
    program.shows(b"\x1etty\x1e")
    assert shell.run("echo on").output == b"on\n"


def test_nothing_is_left_of_a_program(shell):
    def drive():
        program = Program(shell, "cat")
        program.types(b"\x04")
        program.ends()
        shell.send([frame("ACK", program.call)])
        assert shell.run(":").exit_code == 0

    def left():
        return len(os.listdir(f"/proc/{shell.process.pid}/fd")), len(shell.processes())

    drive()
    fds, processes = left()
    for _ in range(5):
        drive()
    # One writer may have been made ready for the next command meanwhile.
    shell.until(
        lambda: all(now <= then + 1 for now, then in zip(left(), (fds, processes), strict=True)),
        "the end of all that was used",
    )
