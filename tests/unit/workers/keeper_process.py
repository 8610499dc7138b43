"""The real keeper as a process of this test: frames go in by one pipe, events come out by another."""

import os
import secrets
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from workers import keeper, protocol, scripts
from workers.output import Collected
from workers.protocol import Event

PATIENCE = 10.0
"""Seconds after which what a test waits for counts as never coming."""

LOST = 1.0
"""Seconds without a byte after which a stream without a mark will not get one."""


@dataclass
class Answer:
    """All that the keeper has said about one call."""

    stdout: Collected
    stderr: Collected
    words: list[str] = field(default_factory=list)
    """The kinds of its events, in order."""
    exit_code: int | None = None
    shell_ended: bool = False
    reopened: int | None = None
    """Exit code of the former shell, when this call ran in a new one."""
    reason: str = ""
    """Of a `reject`."""

    @property
    def output(self) -> bytes:
        """What came on stdout."""
        return self.stdout.raw()


class Keeper:
    """A keeper and the host's side of its stream. A new `attach()` is what a new host process does."""

    def __init__(self, folder: Path, variables: dict[str, str] | None = None, files: int | None = None) -> None:
        """
        Params:
            folder: gets its run folder, and the working folder of its sessions with a pipe `fifo` to wait at.
            variables: the image's environment.
            files: how many it may have open, None: as many as we.
        """
        self.folder, self._mark = folder / "run", f"KEEPER_TEST={secrets.token_hex(8)}"
        self.home = folder / "home"
        self.home.mkdir()
        os.mkfifo(self.home / "fifo")
        name, value = self._mark.split("=")
        env = {"PATH": os.environ["PATH"], "ROCK_RUN_DIR": str(self.folder), "HOME": str(self.home), name: value}
        self.process = subprocess.Popen(
            [*(["bash", "-c", 'ulimit -n "$0"; exec "$@"', str(files)] if files else []), *keeper.BOOT_ARGV],
            cwd=self.home,
            env={**env, **(variables or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        assert self.process.stdin and self.process.stdout
        self._in, self._out = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self._in, False)
        self._unsent = bytearray()
        self.answers: dict[str, Answer] = {}
        self.events: list[Event] = []
        self.attach(fresh=True)

    def attach(self, *, fresh: bool = False) -> None:
        """Begin as a host process that knows nothing of its predecessor, and wait for the keeper's sign."""
        token = secrets.token_hex(8)
        self._parser = protocol.Parser(token)
        self.send([protocol.boot(keeper.script(), token, fresh=fresh)])
        seen = len(self.events)
        self.until(lambda: any(event.kind == "sync" for event in self.events[seen:]), "the keeper's sync")

    def send(self, frames: Iterable[bytes]) -> None:
        """Put frames on their way; they are written while events are read."""
        for one in frames:
            self._unsent += one
        self._pump(0)

    def cut_short(self, data: bytes) -> None:
        """Send the beginning of a frame, as a host that dies does."""
        self.send([data])
        self.until(lambda: not self._unsent, "the keeper taking the bytes")

    def start(self, script: str | bytes, session: str = "s", verb: str = "RUN", stdin: bytes | None = None) -> str:
        """Submit a script under a new id, and return the id."""
        call = secrets.token_hex(5)
        self.submit(call, script, session, verb, stdin)
        return call

    def submit(
        self, call: str, script: str | bytes, target: str = "s", verb: str = "RUN", stdin: bytes | None = None
    ) -> None:
        """Submit a script under the id `call`: a text as the service would, bytes as they are."""
        text = script if isinstance(script, bytes) else script.encode() if verb == "EXEC" else scripts.run(script)
        flag = scripts.run_flag(script) if verb == "RUN" and isinstance(script, str) else "-"
        self.send(protocol.submit(verb, call, target, text, stdin, flag))

    def run(self, script: str | bytes, session: str = "s", verb: str = "RUN", stdin: bytes | None = None) -> Answer:
        """Submit a script, and return its answer once it is whole and acknowledged."""
        call = self.start(script, session, verb, stdin)
        answer = self.end_of(call)
        self.send([protocol.frame("ACK", call)])
        return answer

    def open(self, session: str = "s", script: str = "", user: str = "-") -> Answer:
        """Open a session, perhaps as another user."""
        call = secrets.token_hex(5)
        self.send(protocol.submit("OPEN", call, session, scripts.run(script or ":"), flag=user))
        return self.end_of(call)

    def end_of(self, call: str) -> Answer:
        """Wait for the end of a call and for all of its output."""
        answer = self.answer(call)
        self.until(
            lambda: answer.exit_code is not None or answer.reason or "closed" in answer.words, f"the end of {call}"
        )
        if answer.exit_code is None:
            return answer
        streams = {1: answer.stdout}
        if any(event.id == call and event.kind == "data" and event.args[0] == "2" for event in self.events):
            streams[2] = answer.stderr
        for number, stream in streams.items():
            self._read(call, number, stream)
        return answer

    def _read(self, call: str, number: int, stream: Collected) -> None:
        """Ask for a stream until its mark is there, or for so long that whoever had to write it must be dead."""
        deadline = time.monotonic() + LOST
        while stream.exit_code is None and time.monotonic() < deadline:
            before, offset = len(self.events), stream.next_offset
            self.send([protocol.frame("READ", call, str(number), str(offset))])
            self.until(lambda seen=before: any(one.id == call for one in self.events[seen:]), f"output of {call}")
            if stream.next_offset > offset:
                deadline = time.monotonic() + LOST

    def answer(self, call: str) -> Answer:
        """Return what is known of a call so far."""
        if call not in self.answers:
            limit = 1 << 40
            self.answers[call] = Answer(Collected(call, limit), Collected(call, limit))
        return self.answers[call]

    def says(self, call: str, word: str) -> None:
        """Wait until the keeper has said `word` about a call."""
        self.until(lambda: word in self.answer(call).words, f"{word!r} about {call}")

    def release(self) -> None:
        """Let the command go on that waits with `read _ < fifo`."""
        (self.home / "fifo").write_text("go\n")

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Talk with the keeper until the condition holds."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain for {what}; the last events: {self.events[-5:]}"
            self._pump(0.05)

    def processes(self) -> dict[int, str]:
        """Return the living processes of this keeper, itself left out: id → command line."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                mine = self._mark.encode() in (folder / "environ").read_bytes().split(b"\0")
                if mine and (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(folder.name)] = command.decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # Ended meanwhile, or not ours to look at.
        found.pop(self.process.pid, None)
        return found

    def close(self) -> None:
        """End the keeper and all it started."""
        self.process.kill()
        deadline = time.monotonic() + PATIENCE
        while left := self.processes():
            assert time.monotonic() < deadline, f"cannot be killed: {left}"
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def _pump(self, seconds: float) -> None:
        writing = [self._in] if self._unsent else []
        readable, writable, _ = select.select([self._out], writing, [], seconds)
        if writable:
            del self._unsent[: os.write(self._in, self._unsent[:65536])]
        if readable:
            data = os.read(self._out, 1 << 20)
            assert data, "the keeper ended"
            for event in self._parser.feed(data):
                self._take(event)

    def _take(self, event: Event) -> None:
        self.events.append(event)
        if not event.id:
            return
        answer = self.answer(event.id)
        answer.words.append(event.kind)
        if event.kind == "data":
            stream, offset, _, total = map(int, event.args)
            (answer.stdout if stream == protocol.STDOUT else answer.stderr).add(offset, event.data, total)
        elif event.kind == "done":
            answer.exit_code, answer.shell_ended = int(event.args[0]), event.args[1] == "ended"
        elif event.kind == "reopened":
            answer.reopened = int(event.args[0])
        elif event.kind == "reject":
            answer.reason = event.args[0]
