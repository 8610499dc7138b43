"""Files out of a sandbox: its node sends them as a blob, this process hands them on as they come, and neither holds more than a few chunks."""

import json
from collections.abc import Iterator

from app.blobs import BlobReceiver, BlobStore
from app.broker import NodeTask
from app.calls import Call, ClaimWord, Route
from app.commands import Ask, new_call
from app.dispatch import Dispatch
from app.inbox import Waiter
from app.results import ResultStore
from app.watch import Watch
from rock.errors import BadRequest, Cancelled, Internal, from_envelope

# Seconds between looks whether the node has given up, while nothing comes.
LOOK_EVERY = 0.1


class Downloads:
    """Reads files of sandboxes. Each download is one call, which is not repeated: what was sent of it is gone."""

    def __init__(self, dispatch: Dispatch, results: ResultStore, blobs: BlobStore, watch: Watch) -> None:
        self._dispatch, self._results, self._blobs, self._watch = dispatch, results, blobs, watch

    def read(self, sandbox_id: str, path: str, archive: bool, ask: Ask) -> Iterator[bytes]:
        """Yield a file's bytes, or a file or folder as a tar, as they come. Whoever stops before the end must close the iterator.

        Params:
            path: as in `read_file`.
            archive: as a tar whose members begin with the last part of the path; with `.` for the root.
        Raises:
            NotFound: no such sandbox or file. BadRequest: it is a folder and no archive was asked for, cannot be read, or the
            request id was used before. NodeLost, SandboxGone, Unavailable.
        """
        body = {"path": path, "archive": archive}
        call = new_call(Route.DOWNLOAD, sandbox_id, body, ask, self._dispatch.clock(), None)
        with self._results.expect(call.call_id) as waiter:
            claim = self._results.claim(call, self._dispatch.clock(), admin=ask.identity.admin)
            if claim.word is not ClaimWord.NEW:
                raise BadRequest(
                    "a download cannot be repeated: ask under a new request_id", request_id=call.request_id
                )
            self._dispatch.send(NodeTask.TRANSFER, call.call_id, claim.node)
            with self._watch.over(call, claim.node):
                yield from self._chunks(call, waiter)

    def _chunks(self, call: Call, waiter: Waiter) -> Iterator[bytes]:
        """Yield the chunks of a call that was sent; the node learns when nobody wants the rest."""
        receiver, complete = self._blobs.receiver(call.call_id), False
        try:
            while chunk := self._next(receiver, waiter):
                yield chunk
            complete = True
        finally:
            if not complete:
                self._results.fail(
                    call.call_id, Cancelled("nobody takes the download any more"), self._dispatch.clock()
                )
                self._blobs.drop(call.call_id)

    def _next(self, receiver: BlobReceiver, waiter: Waiter) -> bytes:
        """Return the next chunk, b"" after the last. Raises the call's error if it failed instead."""
        while True:
            chunk = receiver.poll(LOOK_EVERY)
            if chunk is not None:
                return chunk
            answer = waiter.wait(0)
            if not answer:
                continue
            envelope = json.loads(answer)
            if envelope["status"] != "Success":
                raise from_envelope(envelope)
            # The node answers once all is sent, which may have been since we looked.
            chunk = receiver.poll(LOOK_EVERY)
            if chunk is None:
                raise Internal("the download ended before its last part; ask again")
            return chunk
