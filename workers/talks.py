"""The talks with programs at terminals: from a line that is typed to an answer, which comes long before the program's end. Relay's thread only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rock.actions import dump
from rock.errors import Internal, RockError, success
from workers import protocol
from workers.expect import shown
from workers.jobs import Job, Stopped
from workers.output import cut_mark
from workers.protocol import Event
from workers.surroundings import Surroundings, Timer
from workers.terminal_jobs import Heard, TalkJob

QUIET = 0.5
"""Seconds without output after which a program that has shown something counts as waiting for the next line, where nothing is expected."""
MUTE = 2.0
"""The same for a program that shows nothing."""
WINDOW = 64 * 1024
"""Bytes before new output in which what is expected may begin."""
END_GRACE = 1.0
"""Seconds that the rest of the output may take to come after the end of a program."""
KILL_GRACE = 3.0
"""Seconds that the keeper has to end a program before the caller is answered without it."""


@dataclass
class _Talk:
    job: TalkJob
    program: str = ""
    start: int = 0
    """Where in the program's output `data` begins, and where what answers this talk does."""
    fresh: int = 0
    data: bytearray = field(default_factory=bytearray)
    started: bool = False
    stopped: Stopped | None = None
    ended: tuple[int, bool] | None = None
    oom: bool = False
    whole: bool = False
    """The mark was seen: no more output comes."""
    pattern: str = ""
    heard: int | None = None
    """How many bytes had been heard when we ended the program: what it, or its terminal, says to that is nobody's wish."""
    finished: bool = False
    timers: list[Timer] = field(default_factory=list)
    quiet: Timer | None = None
    silence: Timer | None = None

    @property
    def next(self) -> int:
        return self.start + len(self.data)


class Talks:
    """The calls that wait for what a program shows; each is answered once."""

    def __init__(self, around: Surroundings, limit: int) -> None:
        """`limit`: bytes of output that an answer may carry; of more, the last ones."""
        self._around, self._limit = around, limit
        self._talks: dict[str, _Talk] = {}

    def __len__(self) -> int:
        return len(self._talks)

    def holds(self, call_id: str) -> bool:
        """Return whether that call is in hand here."""
        return call_id[:10] in self._talks

    def take(self, job: TalkJob) -> None:
        """Follow a job whose frames are on their way."""
        self._talks[job.id] = _Talk(job)

    def resubmit(self) -> None:
        """Ask again for all in hand: the stream to the keeper is a new one."""
        for talk in self._open():
            talk.program, talk.ended, talk.data = "", None, bytearray()
            self._around.send([protocol.frame("ASK", talk.job.id)])

    def cancel(self, call_id: str) -> bool:
        """End the program of a call that waits for it; True if the call was in hand."""
        talk = self._talks.get(call_id[:10])
        if talk is None or talk.finished:
            return False
        self._stop(talk, Stopped.CANCEL)
        return True

    def fail_all(self, error: Callable[[Job], RockError]) -> None:
        """Answer all in hand with an error: the sandbox is gone."""
        for talk in self._open():
            self._finish(talk, error(talk.job).to_envelope())

    def stored(self, job: Job) -> bytes | None:
        """Return the frame that tells the keeper that the answer of `job` is safe; None when it is no talk."""
        talk = self._talks.pop(job.id, None)
        if talk is None:
            return None
        return protocol.frame("ACK", job.id)

    def handle(self, event: Event) -> None:
        """Take one event of the keeper, about a talk or about a program."""
        mine = self._talks.get(event.id)
        if mine is not None and not mine.finished:
            self._about_talk(mine, event)
        for talk in self._open():
            # A program that is refused is one that this talk wanted to start: nobody has named it yet.
            if talk.program == event.id or (event.kind == "reject" and event.id == f"t{talk.job.id}"):
                self._about_program(talk, event)

    def _open(self) -> list[_Talk]:
        return [talk for talk in self._talks.values() if not talk.finished]

    def _about_talk(self, talk: _Talk, event: Event) -> None:
        match event.kind:
            case "talk":
                talk.program, talk.start, talk.fresh = event.args[0], int(event.args[1]), int(event.args[2])
                talk.data = bytearray()
                self._watch(talk)
            case "unknown":
                self._around.send(talk.job.frames())
            case "reject":
                self._finish(talk, talk.job.refused(event.args[0]).to_envelope())

    def _about_program(self, talk: _Talk, event: Event) -> None:
        match event.kind:
            case "start":
                self._start(talk, int(event.args[0]) / 100)
            case "data":
                self._hear(talk, int(event.args[1]), event.data, int(event.args[3]))
            case "done":
                talk.ended, talk.oom = (int(event.args[0]), event.args[1] == "ended"), event.args[2:] == ("oom",)
                if talk.whole:
                    self._conclude(talk)
                else:
                    talk.timers.append(self._around.later(END_GRACE, lambda: self._conclude(talk)))
            case "reject":
                self._finish(talk, talk.job.refused(event.args[0]).to_envelope())
            case "unknown":
                gone = Internal("the program has ended, and what it showed is not kept any more")
                self._finish(talk, gone.to_envelope())

    def _watch(self, talk: _Talk) -> None:
        self._around.send([protocol.watch(talk.program, talk.next)])

    def _start(self, talk: _Talk, spent: float) -> None:
        """The program runs, for `spent` seconds already: that is this talk's time only if it started it."""
        if talk.started:
            return
        talk.started = True
        if talk.job.timeout is not None:
            spent = spent if talk.program == f"t{talk.job.id}" else 0.0
            left = max(0.0, talk.job.timeout - spent)
            talk.timers.append(self._around.later(left, lambda: self._stop(talk, Stopped.TIMEOUT)))
        self._wait_on(talk)

    def _hear(self, talk: _Talk, offset: int, data: bytes, total: int) -> None:
        if offset != talk.next or talk.whole:
            return
        if not data and talk.ended:
            self._conclude(talk)  # its writer was killed: no mark will come
            return
        if not data:
            talk.start, talk.data = total, bytearray()  # what was printed meanwhile is lost
            talk.fresh = max(talk.fresh, total)
        before = len(talk.data)
        talk.data += data
        kept, talk.whole = cut_mark(bytes(talk.data[max(0, before - 64) :]), talk.program)
        if talk.whole:
            del talk.data[max(0, before - 64) + len(kept) :]
        self._shorten(talk)
        if not talk.stopped and not talk.finished and self._search(talk, len(data)):
            return
        if talk.whole and talk.ended:
            self._conclude(talk)
        elif not talk.whole:
            self._watch(talk)
            self._wait_on(talk)

    def _shorten(self, talk: _Talk) -> None:
        more = len(talk.data) - self._limit
        if more > 0:
            del talk.data[:more]
            talk.start += more
            talk.fresh = max(talk.fresh, talk.start)

    def _search(self, talk: _Talk, new: int) -> bool:
        """Look for what is expected in the last `new` bytes; answer and return True when it is there."""
        if not talk.job.expected or talk.pattern:
            return False
        begin = max(talk.fresh - talk.start, len(talk.data) - new - WINDOW, 0)
        text = shown(bytes(talk.data[begin:]))
        found = talk.job.expected.search(text.text, 0)
        if found is None:
            return False
        talk.pattern = found.pattern
        if talk.job.quits:
            return False  # its end is waited for
        self._answer(talk, begin + text.offset(found.start), talk.start + begin + text.offset(found.end))
        return True

    def _wait_on(self, talk: _Talk) -> None:
        """Something was shown, or the program began: what ends the wait begins anew."""
        for timer in (talk.quiet, talk.silence):
            if timer:
                timer.cancel()
        if not talk.started or talk.finished or talk.stopped:
            return
        if talk.job.silence is not None:
            talk.silence = self._around.later(talk.job.silence, lambda: self._stop(talk, Stopped.SILENCE))
        if not talk.job.expected and not talk.job.quits:
            pause = QUIET if talk.next > talk.fresh else MUTE
            talk.quiet = self._around.later(pause, lambda: self._answer(talk, len(talk.data), talk.next))

    def _stop(self, talk: _Talk, why: Stopped) -> None:
        if talk.finished or talk.stopped or talk.ended:
            return
        talk.stopped, talk.heard = why, len(talk.data)
        self._around.send([protocol.frame("KILL", talk.program or f"t{talk.job.id}")])
        talk.timers.append(self._around.later(KILL_GRACE, lambda: self._conclude(talk)))

    def _conclude(self, talk: _Talk) -> None:
        """The program has ended, or does not end although it was killed."""
        if talk.finished or (talk.ended is None and talk.stopped is None):
            return
        self._answer(talk, len(talk.data) if talk.heard is None else min(talk.heard, len(talk.data)), talk.next)

    def _answer(self, talk: _Talk, length: int, given: int) -> None:
        """Answer with the first `length` bytes of what was heard; the next caller is given what comes from offset `given` on."""
        if talk.finished:
            return
        if talk.program:
            # Before the answer is stored: whoever takes over from us then must not give it again. The same talk begins where it did.
            self._around.send([protocol.frame("GIVEN", talk.job.id, talk.program, str(given))])
        code, shell_ended = talk.ended or (None, False)
        fresh = min(max(0, talk.fresh - talk.start), length)
        output = bytes(talk.data[:length])
        heard = Heard(output, fresh, talk.pattern, code, shell_ended, talk.oom, talk.stopped)
        try:
            envelope = success(dump(talk.job.reply(heard)))
        except RockError as error:
            envelope = error.to_envelope()
        self._finish(talk, envelope)

    def _finish(self, talk: _Talk, envelope: dict[str, object]) -> None:
        talk.finished = True
        for timer in (*talk.timers, talk.quiet, talk.silence):
            if timer:
                timer.cancel()
        self._around.finish(talk.job, envelope, None)
