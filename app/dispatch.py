"""Carries a call to its node and waits for its answer: the one path that every command, start and stop takes."""

import json
import logging
import time
from typing import Any

from app.broker import NodeTask
from app.calls import Call, CallState, Claim, ClaimWord
from app.clock import Clock
from app.inbox import Waiter
from app.letters import Letters
from app.nodes import Nodes
from app.starts import fail_start, no_room
from app.stores import Stores
from app.sweep import overdue
from app.watch import Watch
from rock.errors import NotFound, Unavailable, success

log = logging.getLogger(__name__)


class Dispatch:
    """Claims, sends and waits. Answers are JSON text, passed on as the node wrote them."""

    def __init__(
        self, stores: Stores, nodes: Nodes, watch: Watch, clock: Clock | None = None, letters: Letters | None = None
    ) -> None:
        """`clock`: None for Redis' own. `letters`: send with the claim where that is possible; None: always through `nodes`."""
        self._stores, self._results = stores, stores.results
        self._nodes, self._watch, self._letters = nodes, watch, letters
        self.clock = clock or stores.results.clock

    def ask(
        self, call: Call, task: NodeTask, *, wait: float | None, admin: bool = False, need_running: bool = True
    ) -> str:
        """Have a node do `task` for the call, and return the answer's envelope as JSON text.

        Params:
            wait: seconds to wait for it (None: until done); after them, an envelope that says it goes on.
            admin, need_running: as for ResultStore.claim.
        Raises:
            RockError: what the claim refuses, or Unavailable.
        """
        letter = self._letters.write(task, call.call_id) if self._letters else None
        with self._results.expect(call.call_id) as waiter:
            claim = self._results.claim(call, self.clock(), admin=admin, need_running=need_running, letter=letter)
            if claim.word is ClaimWord.DONE:
                return claim.envelope
            if claim.word is ClaimWord.NEW and letter is None:
                self.send(task, call.call_id, claim.node)
            return self.await_answer(call, claim, waiter, wait)

    def send(self, task: NodeTask, call_id: str, node: str) -> None:
        """Send a claimed call to its node; when that fails the claim is undone. Raises Unavailable."""
        try:
            self._nodes.send(task, call_id, node)
        except Unavailable as error:
            self._results.withdraw(call_id, error, self.clock())
            raise

    def nudge(self, task: NodeTask, call_id: str, node: str) -> None:
        """Tell a node something about a call that is not claimed here (cancel). Raises Unavailable."""
        self._nodes.send(task, call_id, node)

    def await_answer(self, call: Call, claim: Claim, waiter: Waiter, wait: float | None) -> str:
        """Wait for a claimed call; the answer, or an envelope that says it goes on. The waiter must be registered."""
        end = None if wait is None else time.monotonic() + wait
        with self._watch.over(call, claim.node):
            while True:
                pause = self._until(end, call)
                answer = waiter.wait(pause)
                if answer:
                    return answer
                if self._results.inbox.released:
                    raise ending(call.request_id)
                if end is not None and time.monotonic() >= end:
                    return self._unfinished(call.call_id, call.request_id)
                call = self._past_deadline(call)

    def result(self, call_id: str, request_id: str, wait: float) -> str:
        """Return the answer of a call made earlier, waiting up to `wait` seconds for it.

        Raises:
            NotFound: no such call for this caller, or its answer has been dropped.
        """
        with self._results.expect(call_id) as waiter:
            call = self.find(call_id, request_id)
            answer = self._results.read(call_id) if call.done else None
            return answer or self.await_answer(call, Claim(ClaimWord.ATTACHED, call.node), waiter, wait)

    def find(self, call_id: str, request_id: str) -> Call:
        """Return a call without body and envelope. Raises NotFound."""
        found = self._results.heads([call_id])
        if not found:
            raise NotFound(
                f"request {request_id!r} not found: never made with this key, or its answer has been dropped"
            )
        return found[0]

    def _until(self, end: float | None, call: Call) -> float | None:
        """Return for how long to wait next: to the caller's end or the call's deadline, whichever is first."""
        limits = [] if end is None else [end - time.monotonic()]
        if call.deadline is not None:
            limits.append(call.deadline - self.clock())
        return max(0.0, min(limits)) if limits else None

    def _past_deadline(self, call: Call) -> Call:
        """Look at a call whose wait ended before its caller's: answer it if it is overdue, else wait without that limit."""
        now = self.clock()
        if call.deadline is None or now < call.deadline:
            return call
        known = self.find(call.call_id, call.request_id)
        if known.deadline is not None and now < known.deadline:
            return known  # a start that has found room meanwhile
        if known.is_start:
            self._give_up_start(known, now)
        else:
            error = overdue(known, now)
            if error is not None:
                self._results.fail(call.call_id, error, now, only_pending=known.state is CallState.PENDING)
        # The node has it, and ends it itself: no limit of ours applies any more.
        return Call(**{**vars(known), "deadline": None})

    def standing(self, call_id: str, request_id: str) -> str:
        """Return the envelope that says how a call stands. Raises NotFound.

        A command that waits for others of its session is pending, and `position` says for how many.
        """
        state = self.find(call_id, request_id).state
        position = None if state is CallState.DONE else self._results.position(call_id)
        if position:
            state = CallState.PENDING  # its node has it, but its session has not come to it
        waits = {"position": position} if state is CallState.PENDING and position is not None else {}
        return envelope({"request_id": request_id, "state": state.value, **waits})

    def _give_up_start(self, call: Call, now: float) -> None:
        """End a start whose time is over: it found no room, or its node says nothing."""
        stores = self._stores
        record, error = stores.sandboxes.get(call.sandbox_id), overdue(call, now)
        if record is not None and record.start_call == call.call_id and record.waits:
            waited = no_room(record, stores.nodes.alive(now), now - call.created)
            fail_start(stores.sandboxes, stores.results, call, waited, now, only_waiting=True)
        elif error is not None:
            fail_start(stores.sandboxes, stores.results, call, error, now)

    def _unfinished(self, call_id: str, request_id: str) -> str:
        """Return the envelope of a call that goes on, or its answer if that has just come."""
        answer = self._results.read(call_id) if self.find(call_id, request_id).done else None
        return answer or self.standing(call_id, request_id)


def ending(request_id: str) -> Unavailable:
    """Return the error for a caller whose API process ends while the call goes on."""
    text = f"this API process ends, the call goes on: send it again with request_id {request_id!r} to get its answer"
    return Unavailable(text, request_id=request_id)


def envelope(result: Any, message: str | None = None) -> str:
    """Return a Success envelope as JSON text."""
    return json.dumps(success(result, message))
