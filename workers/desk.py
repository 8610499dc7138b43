"""The calls in hand of one sandbox: from frames sent to answers given. Runs in the relay's thread only, does no I/O of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rock.actions import dump
from rock.errors import CommandTimeout, RockError, success
from workers import protocol
from workers.jobs import Job, Outcome, Stopped
from workers.output import Collected
from workers.output_job import OutputJob
from workers.protocol import Event
from workers.surroundings import Surroundings, Timer
from workers.talks import Talks
from workers.terminal_jobs import InputJob, TalkJob

KILL_GRACE = 3.0
"""Seconds that the keeper has to end a command before the caller is answered without it."""
READ_AGAIN = 0.005
"""Seconds before a stream whose mark is not there yet is asked for again."""
THANKS_AFTER = 0.1
"""Seconds after which the keeper is told that results are stored, if no next command takes the word along."""
RAW_LIMIT = 64 * 1024
"""Bytes of output that are stored beside the envelope, for readers by offset; longer output stays with the keeper for them."""
LISTEN_TURNS = 10
"""How often a command's silence is looked at within its `no_output_timeout`."""
NOWHERE = str(1 << 40)
"""An offset beyond every output: reading there tells how long that is."""
READ_TRIES = 60
"""How often, before the rest counts as lost beyond the keeper's cap."""


@dataclass
class _Running:
    job: Job
    stdout: Collected
    stderr: Collected
    started: bool = False
    stopped: Stopped | None = None
    ended: tuple[int, bool] | None = None
    oom: bool = False
    reopened: int | None = None
    tries: int = 0
    finished: bool = False
    timers: list[Timer] = field(default_factory=list)
    attended: Timer | None = None

    def stream(self, number: int) -> Collected:
        return self.stdout if number == protocol.STDOUT else self.stderr


class Desk:
    """Submits jobs, follows their events, answers each once."""

    def __init__(self, around: Surroundings, output_limit: int) -> None:
        """`output_limit`: bytes of one stream that an answer may carry."""
        self._around, self._output_limit = around, output_limit
        self._running: dict[str, _Running] = {}
        self._talks = Talks(around, output_limit)
        self._readers: list[OutputJob] = []
        self._thanks: list[bytes] = []

    def __len__(self) -> int:
        return len(self._running) + len(self._talks)

    def holds(self, call_id: str) -> bool:
        """Return whether that call is in hand here."""
        return call_id[:10] in self._running or self._talks.holds(call_id)

    def submit(self, job: Job, *, ask: bool) -> None:
        """Take a job; `ask` when an earlier process may have submitted it: the keeper is asked before it is sent."""
        if self.holds(job.call.call_id) or job in self._readers:
            return
        if isinstance(job, OutputJob):
            self._read_for(job)
            return
        thanks, self._thanks = self._thanks, []
        self._around.send([*thanks, *([protocol.frame("ASK", job.id)] if ask else job.frames())])
        if isinstance(job, TalkJob):
            self._talks.take(job)
            return
        if isinstance(job, InputJob):
            self._attend(job.of)
        limit = max(self._output_limit, getattr(job, "limit", 0) + 1)
        self._running[job.id] = _Running(job, Collected(job.id, limit), Collected(job.id, limit))

    def resubmit(self) -> None:
        """Ask again for all in hand: the stream to the keeper is a new one."""
        for reader in self._readers:
            self._around.send(reader.frames())
        self._talks.resubmit()
        for item in self._running.values():
            if item.finished:
                continue
            limit = max(self._output_limit, getattr(item.job, "limit", 0) + 1)
            item.stdout, item.stderr, item.ended = Collected(item.job.id, limit), Collected(item.job.id, limit), None
            self._around.send([protocol.frame("ASK", item.job.id)])

    def cancel(self, call_id: str) -> bool:
        """End a call as its timeout would; True if it was in hand."""
        item = self._running.get(call_id[:10])
        if item is None or item.finished:
            return self._talks.cancel(call_id)
        self._stop(item, Stopped.CANCEL)
        return True

    def fail_all(self, error: Callable[[Job], RockError]) -> None:
        """Answer all in hand with an error: the sandbox is gone."""
        readers, self._readers = self._readers, []
        for reader in readers:
            self._around.finish(reader, error(reader).to_envelope(), None)
        self._talks.fail_all(error)
        for item in list(self._running.values()):
            if not item.finished:
                self._finish(item, error(item.job).to_envelope())

    def stored(self, job: Job) -> None:
        """The answer of `job` is safe: the keeper may forget the call, but for output that is too long to be stored whole."""
        item = self._running.pop(job.id, None)
        if item is not None:
            long = bool(job.streams) and item.stdout.total > RAW_LIMIT and not job.is_file
            self._thank(protocol.frame("KEEP" if long or job.keeps_output else "ACK", job.id))
        elif thanks := self._talks.stored(job):
            self._thank(thanks)

    def _thank(self, frame: bytes) -> None:
        self._thanks.append(frame)
        self._around.later(THANKS_AFTER, self._say_thanks)

    def _say_thanks(self) -> None:
        if self._thanks:
            thanks, self._thanks = self._thanks, []
            self._around.send(thanks)

    def handle(self, event: Event) -> None:
        """Take one event of the keeper."""
        if event.kind == "data":
            self._answer_readers(event)
        elif event.kind == "unknown":
            self._disappoint([one for one in self._readers if one.of == event.id and one.patience])
        if self._talks:
            self._talks.handle(event)
        item = self._running.get(event.id)
        if item is None or item.finished:
            return
        match event.kind:
            case "start":
                self._start(item, int(event.args[0]) / 100)
            case "data":
                item.stream(int(event.args[0])).add(int(event.args[1]), event.data, int(event.args[3]))
                self._settle(item)
            case "done":
                item.ended = (int(event.args[0]), event.args[1] == "ended")
                item.oom = event.args[2:] == ("oom",)
                self._settle(item)
            case "reopened":
                item.reopened = int(event.args[0])
            case "closed":
                item.ended = (0, False)
                self._settle(item)
            case "unknown":
                self._around.send(item.job.frames())
            case "reject":
                self._finish(item, item.job.refused(event.args[0]).to_envelope())

    def _start(self, item: _Running, spent: float) -> None:
        """The command runs, for `spent` seconds already if an earlier process submitted it."""
        if item.started:
            return
        item.started = True
        if item.job.timeout is not None:
            left = max(0.0, item.job.timeout - spent)
            item.timers.append(self._around.later(left, lambda: self._stop(item, Stopped.TIMEOUT)))
        self._attend(item.job.id)
        if item.job.silence is not None:
            self._listen(item, item.job.silence / LISTEN_TURNS, -1, 0)

    def _listen(self, item: _Running, pause: float, known: int, quiet: int) -> None:
        """Ask in turns how long the output is; after LISTEN_TURNS without growth beyond `known` bytes the command is ended."""
        if item.finished or item.stopped or item.ended:
            return
        total = item.stdout.total
        quiet = quiet + 1 if total == known else 0
        if quiet >= LISTEN_TURNS:
            self._stop(item, Stopped.SILENCE)
            return
        self._around.send([protocol.frame("READ", item.job.id, str(protocol.STDOUT), NOWHERE)])
        item.timers.append(self._around.later(pause, lambda: self._listen(item, pause, total, quiet)))

    def _stop(self, item: _Running, why: Stopped) -> None:
        if item.finished or item.stopped or item.ended:
            return
        item.stopped = why
        self._around.send([protocol.frame("KILL", item.job.id)])
        item.timers.append(self._around.later(KILL_GRACE, lambda: self._unstoppable(item)))

    def _unstoppable(self, item: _Running) -> None:
        if not item.finished and item.ended is None:
            text = f"the command did not end within its time and could not be stopped within {KILL_GRACE:g} s"
            output = item.stdout.text()
            self._finish(item, CommandTimeout(text, exit_code=124, output=output).to_envelope())

    def _settle(self, item: _Running) -> None:
        """Answer once the end is known and every stream is whole; ask for what is missing until then."""
        if item.ended is None or item.finished:
            return
        missing = [number for number in item.job.streams if item.stream(number).exit_code is None]
        if missing:
            self._read(item, missing[0])
            return
        code, shell_ended = item.ended
        if item.stdout.exit_code is not None and not shell_ended:
            code = item.stdout.exit_code  # of the same moment as the output
        try:
            answer = item.job.answer(
                Outcome(item.stdout, item.stderr, code, shell_ended, item.stopped, item.reopened, item.oom)
            )
            envelope = success(dump(answer))
        except RockError as error:
            envelope = error.to_envelope()
        self._finish(item, envelope)

    def _read(self, item: _Running, number: int) -> None:
        stream = item.stream(number)
        offset = stream.next_offset
        ask = [protocol.frame("READ", item.job.id, str(number), str(offset))]
        if offset < stream.total:
            self._around.send(ask)
            return
        item.tries += 1
        if item.tries > READ_TRIES:
            stream.give_up(item.ended[0] if item.ended else 0)
            self._settle(item)
            return
        item.timers.append(self._around.later(READ_AGAIN, lambda: None if item.finished else self._around.send(ask)))

    def _read_for(self, job: OutputJob) -> None:
        self._readers.append(job)
        self._around.send(job.frames())
        if job.patience:
            self._attend(job.of)
            self._around.later(job.patience, lambda: self._disappoint([job] if job in self._readers else []))

    def _disappoint(self, readers: list[OutputJob]) -> None:
        """Answer those who wait for output that does not come."""
        for reader in readers:
            self._readers.remove(reader)
            self._around.finish(reader, success(reader.nothing()), None)

    def _attend(self, id: str) -> None:
        """Somebody looks at program `id`: it is ended if nobody does for its time."""
        item = self._running.get(id)
        if item is None or item.job.attended is None or not item.started:
            return
        if item.attended:
            item.attended.cancel()
        item.attended = self._around.later(item.job.attended, lambda: self._stop(item, Stopped.ABANDONED))

    def _answer_readers(self, event: Event) -> None:
        """Answer those who asked for this part of a stream; parts that the desk asked for itself serve them too."""
        for reader in [one for one in self._readers if one.wants(event)]:
            self._readers.remove(reader)
            self._around.finish(reader, success(reader.part(event)), None)

    def _finish(self, item: _Running, envelope: dict[str, object]) -> None:
        item.finished = True
        for timer in [*item.timers, *([item.attended] if item.attended else [])]:
            timer.cancel()
        whole = item.stdout.exit_code is not None and not item.stdout.omitted and item.stdout.total <= RAW_LIMIT
        keep = whole and bool(item.job.streams) and not item.job.is_file
        self._around.finish(item.job, envelope, item.stdout.raw() if keep else None)
