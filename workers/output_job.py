"""Reading what another call has printed so far. Pure, like workers/jobs.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from app.calls import Call
from workers import protocol
from workers.jobs import Job
from workers.output import cut_mark


class OutputJob(Job):
    """Part of what another call has printed so far; ends with the first answer of the keeper, whatever that call does."""

    streams = ()

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.of = str(call.body["call_id"])[:10]
        self.stream = protocol.STDERR if call.body.get("stream") == "stderr" else protocol.STDOUT
        self.offset = int(call.body["offset"])
        self.patience = float(call.body.get("wait", 0))
        """Seconds for which a program's output that is not there yet is waited for."""

    def frames(self) -> Iterator[bytes]:
        """Yield the one frame of a reader."""
        if self.patience:
            yield protocol.watch(self.of, self.offset)
            return
        yield protocol.frame("READ", self.of, str(self.stream), str(self.offset))

    def wants(self, event: protocol.Event) -> bool:
        """Return whether `event`, a `data`, is the part asked for."""
        return event.id == self.of and event.args[:2] == (str(self.stream), str(self.offset))

    def part(self, event: protocol.Event) -> dict[str, Any]:
        """Return `{data, next_offset, complete}`: bytes as latin-1 text, the mark and what is behind it left out."""
        data, complete = cut_mark(event.data, self.of)
        return {"data": data.decode("latin-1"), "next_offset": self.offset + len(data), "complete": complete}

    def nothing(self) -> dict[str, Any]:
        """Return the part that says that nothing came."""
        return {"data": "", "next_offset": self.offset, "complete": False}
