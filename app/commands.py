"""Work inside a running sandbox: sessions, commands, files, statistics."""

import base64
import hashlib
import uuid
from dataclasses import dataclass
from typing import IO, Any

from app.auth import Identity
from app.blobs import CHUNK, BlobSender, BlobStore
from app.broker import NodeTask
from app.calls import Call, Claim, ClaimWord, Route, call_id
from app.dispatch import Dispatch
from app.inbox import Waiter
from app.results import ResultStore
from rock.actions import UploadForm, dump
from rock.errors import Unavailable

# Seconds a node has to take a call, on top of the call's own timeout. A call that it has taken has no limit here.
TAKE_MARGIN = 30.0
# For calls without a timeout of their own.
TAKE_LIMIT = 600.0

# Uploads up to this many bytes travel in the call itself; larger ones as a blob, on the queue for slow work.
INLINE_UPLOAD = 1024 * 1024
# NUL bytes of what travels in the call: a keeper without exact tools (busybox) takes 25 µs for each, and does nothing else meanwhile.
MANY_NULS = 2000
# Seconds without any progress of the receiving node after which an upload is given up.
UPLOAD_STALL = 120.0

# What says how to answer rather than what to do: it must not make a repeated request look like another one.
_NOT_WORK = ("request_id", "wait")


@dataclass(frozen=True)
class Ask:
    """Who asks, under which request id (None: make one), and how long they wait (None: until done)."""

    identity: Identity
    request_id: str | None = None
    wait: float | None = None


class Commands:
    """Turns requests on a running sandbox into calls."""

    def __init__(self, dispatch: Dispatch, results: ResultStore, blobs: BlobStore) -> None:
        self._dispatch, self._results, self._blobs = dispatch, results, blobs

    def run(self, route: Route, request: Any, ask: Ask, timeout: float | None = None) -> str:
        """Do `route` in the sandbox that the request names; return the answer's envelope as JSON text.

        Params:
            request: a loaded request of rock.actions with a `sandbox_id`.
            timeout: the command's own limit in seconds, None for none.
        Raises:
            RockError: the sandbox cannot take it, or Unavailable.
        """
        body = {name: value for name, value in dump(request).items() if name not in _NOT_WORK}
        call = new_call(route, request.sandbox_id, body, ask, self._dispatch.clock(), timeout)
        task = NodeTask.STATISTICS if route is Route.STATISTICS else NodeTask.CALL
        return self._dispatch.ask(call, task, wait=ask.wait, admin=ask.identity.admin)

    def upload(self, form: UploadForm, file: IO[bytes], file_name: str, size: int, ask: Ask) -> str:
        """Send a file of `size` bytes into the sandbox; as `run`. The file is read from its start.

        The digest makes a repeated request id with another file a conflict, as for any other body.
        """
        body = {"target_path": form.target_path, "file_name": file_name, "size": size, "sha256": _digest(file)}
        data = file.read() if size <= INLINE_UPLOAD else b""
        small = size <= INLINE_UPLOAD and data.count(0) <= MANY_NULS
        file.seek(0)
        if small:
            body["content_base64"] = base64.b64encode(data).decode("ascii")
        call = new_call(Route.UPLOAD, form.sandbox_id, body, ask, self._dispatch.clock(), None)
        if small:
            return self._dispatch.ask(call, NodeTask.CALL, wait=ask.wait, admin=ask.identity.admin)
        return self._transfer(call, file, ask)

    def _transfer(self, call: Call, file: IO[bytes], ask: Ask) -> str:
        """Send a large file as a blob, at the pace of the node."""
        with self._results.expect(call.call_id) as waiter:
            claim = self._results.claim(call, self._dispatch.clock(), admin=ask.identity.admin)
            if claim.word is ClaimWord.DONE:
                return claim.envelope
            if claim.word is ClaimWord.NEW:
                self._dispatch.send(NodeTask.TRANSFER, call.call_id, claim.node)
                answer = self._feed(call, claim, file, waiter)
                if answer:
                    return answer
            return self._dispatch.await_answer(call, claim, waiter, ask.wait)

    def _feed(self, call: Call, claim: Claim, file: IO[bytes], waiter: Waiter) -> str | None:
        """Push the file; the answer if it came before the end (the node refused), None once all is sent."""
        sender = self._blobs.sender(call.call_id)
        chunk = file.read(CHUNK)
        try:
            while True:
                answer = self._push(sender, chunk, call, claim, waiter)
                if answer or not chunk:
                    return answer
                chunk = file.read(CHUNK)
        except Unavailable as error:
            self._results.fail(call.call_id, error, self._dispatch.clock())
            self._blobs.drop(call.call_id)
            raise

    def _push(self, sender: BlobSender, chunk: bytes, call: Call, claim: Claim, waiter: Waiter) -> str | None:
        """Push one chunk (b"": the end), waiting for the node in short turns that also notice an early answer."""
        for _ in range(int(UPLOAD_STALL)):
            if sender.push(chunk, 1.0) if chunk else sender.finish(1.0):
                return None
            answer = waiter.wait(0)
            if answer:
                self._blobs.drop(call.call_id)
                return answer
        raise Unavailable(f"node {claim.node} took nothing of the file for {UPLOAD_STALL:g} s; send it again")


def new_call(route: Route, sandbox_id: str, body: dict[str, Any], ask: Ask, now: float, timeout: float | None) -> Call:
    """Return the call of a request, with the deadline by which a node must have taken it."""
    owner, request_id = ask.identity.owner, ask.request_id or uuid.uuid4().hex
    deadline = now + (TAKE_LIMIT if timeout is None else timeout) + TAKE_MARGIN
    return Call(
        call_id=call_id(owner, request_id), request_id=request_id, owner=owner, route=route.value,
        sandbox_id=sandbox_id, body=body, created=now, deadline=deadline,
    )  # fmt: skip


def _digest(file: IO[bytes]) -> str:
    """Return the SHA-256 of a file as hex, and go back to its start."""
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # any binary reader will do
    file.seek(0)
    return digest
