"""A terminal of a session for a person: an interactive bash as a call that runs, keys as calls of their own, the screen as output by offset.

Nothing of it lives in this process: the shell runs in the sandbox, and is ended when nobody asks for its output any more.
"""

import json
import logging
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from app.broker import NodeTask
from app.calls import Call, Route
from app.commands import Ask, new_call
from app.dispatch import Dispatch
from app.output import Output
from app.results import ResultStore
from rock.actions import TerminalRequest, dump
from rock.errors import RockError, from_envelope

log = logging.getLogger(__name__)

# Seconds for which the node holds a question for output that is not there yet.
LONGEST_LOOK = 20.0
# Seconds that a program has to take what is typed.
TAKE_KEYS = 30.0
# Bytes that are typed with one call.
MOST_KEYS = 16 * 1024
# Seconds to wait for the end of a shell whose screen has ended.
END_WAIT = 10.0


@dataclass(frozen=True)
class Desk:
    """What terminals of this process are made with, and which of them are open."""

    dispatch: Dispatch
    output: Output
    results: ResultStore
    closers: set[Callable[[], None]]

    def close_all(self) -> None:
        """Close every open terminal: this process ends."""
        for close in list(self.closers):
            close()


class Terminal:
    """One terminal, from its start to its end."""

    def __init__(self, desk: Desk, sandbox_id: str, request: TerminalRequest, ask: Ask) -> None:
        """Start the shell. Raises RockError when the sandbox cannot take it; that the session cannot is told by `outcome`."""
        self._desk, self._ask = desk, replace(ask, request_id=f"terminal-{uuid.uuid4().hex}", wait=0)
        call = new_call(Route.TERMINAL, sandbox_id, dump(request), self._ask, desk.dispatch.clock(), None)
        desk.dispatch.ask(call, NodeTask.CALL, wait=0, admin=ask.identity.admin)
        self._call = call

    def screen(self) -> Iterator[bytes]:
        """Yield what the shell shows, as it comes, until it has ended. Raises RockError."""
        offset = 0
        while True:
            part = self._desk.output.watch(self._call.call_id, self._call.request_id, offset, self._ask, LONGEST_LOOK)
            if part.data:
                yield part.data
            if part.done:
                return
            offset = part.next_offset

    def type(self, keys: bytes) -> None:
        """Type; returns when the terminal has taken it. Raises RockError, as when the shell has ended."""
        for start in range(0, len(keys), MOST_KEYS):
            self._tell(keys=keys[start : start + MOST_KEYS].decode("latin-1"))

    def resize(self, rows: int, cols: int) -> None:
        """Give the terminal another size. Raises RockError."""
        self._tell(rows=rows, cols=cols)

    def _tell(self, **what: Any) -> None:
        ask = replace(self._ask, request_id=f"keys-{uuid.uuid4().hex}")
        body = {"call_id": self._call.call_id, **what}
        dispatch = self._desk.dispatch
        call = new_call(Route.TERMINAL_INPUT, self._call.sandbox_id, body, ask, dispatch.clock(), TAKE_KEYS)
        answer = json.loads(dispatch.ask(call, NodeTask.CALL, wait=TAKE_KEYS, admin=ask.identity.admin))
        self._desk.results.drop(call.call_id)
        if answer["status"] != "Success":
            raise from_envelope(answer)

    def outcome(self) -> dict[str, Any]:
        """Return the envelope that tells how the shell ended."""
        answer: dict[str, Any] = json.loads(
            self._desk.dispatch.result(self._call.call_id, self._call.request_id, END_WAIT)
        )
        return answer

    def close(self) -> None:
        """End the shell and what it started, if it has not ended; the session is then as it was before."""
        try:
            call: Call = self._desk.dispatch.find(self._call.call_id, self._call.request_id)
            if not call.done:
                self._desk.dispatch.nudge(NodeTask.CANCEL, call.call_id, call.node)
        except RockError as error:
            # Nobody asks for its output from now on, so the node ends it.
            log.warning("terminal could not be closed: %s", error, extra=self._call.about)
