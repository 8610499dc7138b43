"""What a command has printed so far, by offset: from its stored output once it is done, else from its node."""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.broker import NodeTask
from app.calls import Call, CallState, Route
from app.commands import Ask, new_call
from app.dispatch import Dispatch
from app.results import ResultStore
from rock.errors import BadRequest, NotFound, RockError, from_envelope

# Routes whose calls print something.
PRINTING = frozenset(
    {Route.RUN_IN_SESSION.value, Route.EXECUTE.value, Route.CREATE_SESSION.value, Route.TERMINAL.value}
)
# Seconds a node has to answer with a part of an output.
NODE_TIMEOUT = 10.0
# Seconds between looks at a running command, while someone streams it.
LOOK_EVERY = 0.1
# Bytes of one part.
PART = 1024 * 1024


@dataclass(frozen=True)
class Part:
    """Bytes `offset` to `next_offset` of an output; `done`: the command has ended and nothing follows."""

    data: bytes
    offset: int
    done: bool
    # True when what is missing between the offset asked for and the end is not kept any more.
    truncated: bool = False

    @property
    def next_offset(self) -> int:
        """Where to go on."""
        return self.offset + len(self.data)

    def to_result(self) -> dict[str, Any]:
        """Return the object of the wire. A character that is cut at the end waits for the next part."""
        whole = self if self.done else Part(_whole_characters(self.data), self.offset, False, self.truncated)
        return {
            "output": whole.data.decode("utf-8", "backslashreplace"), "offset": whole.offset,
            "next_offset": whole.next_offset, "done": whole.done, "truncated": whole.truncated,
        }  # fmt: skip


class Output:
    """Reads outputs. Readers change nothing: any number of them see the same bytes."""

    def __init__(self, dispatch: Dispatch, results: ResultStore) -> None:
        self._dispatch, self._results = dispatch, results

    def read(self, call_id: str, request_id: str, offset: int, stream: str, ask: Ask) -> Part:
        """Return what the call printed from byte `offset` on, at most 1 MiB of it.

        Params:
            stream: `stdout` or `stderr` (execute only; a session has one stream).
        Raises:
            NotFound: no such call. BadRequest: it prints nothing. NodeLost, Unavailable.
        """
        call = self._dispatch.find(call_id, request_id)
        if call.route not in PRINTING:
            raise BadRequest(f"request {request_id!r} is a {call.route} and has no output")
        if call.done and stream == "stdout":
            stored = self._results.read_output(call_id)
            if stored is not None:
                data = stored[offset : offset + PART]
                return Part(data, offset, done=offset + len(data) >= len(stored))
        if call.state is CallState.PENDING:
            return Part(b"", offset, done=False)
        return self._from_node(call, offset, stream, ask)

    def watch(self, call_id: str, request_id: str, offset: int, ask: Ask, seconds: float) -> Part:
        """Return what a program at a terminal shows from byte `offset` on, as soon as there is any; after `seconds` nothing. Raises as `read`."""
        call = self._dispatch.find(call_id, request_id)
        if call.state is CallState.PENDING:
            self._results.wait(call_id, LOOK_EVERY)
            return Part(b"", offset, done=False)
        return self._from_node(call, offset, "stdout", ask, seconds)

    def follow(self, call_id: str, request_id: str, offset: int, stream: str, ask: Ask) -> Iterator[dict[str, Any]]:
        """Yield the parts of a running command's output as they come, each as an object of the wire; ends when it is done."""
        while True:
            part = self.read(call_id, request_id, offset, stream, ask).to_result()
            offset = part["next_offset"]
            if part["output"] or part["done"]:
                yield part
            if part["done"]:
                return
            if not part["output"]:
                self._results.wait(call_id, LOOK_EVERY)

    def _from_node(self, call: Call, offset: int, stream: str, ask: Ask, seconds: float = 0.0) -> Part:
        body = {"call_id": call.call_id, "offset": offset, "stream": stream, "wait": 0.0 if call.done else seconds}
        reader = Ask(ask.identity, f"output-{uuid.uuid4().hex}")
        question = new_call(Route.OUTPUT, call.sandbox_id, body, reader, self._dispatch.clock(), NODE_TIMEOUT + seconds)
        try:
            answer = json.loads(
                self._dispatch.ask(question, NodeTask.CALL, wait=NODE_TIMEOUT + seconds, admin=ask.identity.admin)
            )
            if answer["status"] != "Success":
                raise from_envelope(answer)
            found = answer["result"]
        except RockError as error:
            if not call.done:
                raise
            # The sandbox is gone, and what it kept with it; the answer of the call still has what fits into it.
            raise NotFound(f"the output of request {call.request_id!r} is not kept any more ({error})") from error
        finally:
            self._results.drop(question.call_id)
        data = str(found.get("data", "")).encode("latin-1")
        gone = call.done and not data and not found.get("complete")
        return Part(data, offset, done=bool(found.get("complete")) or gone, truncated=gone)


def _whole_characters(data: bytes) -> bytes:
    """Return `data` without a UTF-8 character that is cut at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = (
            1
            if byte < 0x80
            else 2
            if byte >> 5 == 0b110
            else 3
            if byte >> 4 == 0b1110
            else 4
            if byte >> 3 == 0b11110
            else 1
        )
        return data[:-back] if length > back else data
    return data
