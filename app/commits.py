"""Making images of sandboxes: a commit runs on the sandbox's node for as long as it takes, and is asked after meanwhile."""

import json
import logging
from datetime import tzinfo
from typing import Any

from app import status
from app.broker import NodeTask
from app.calls import Call, Claim, ClaimWord, Route
from app.commands import Ask, new_call
from app.dispatch import Dispatch, envelope
from app.records import Commit, SandboxRecord, State
from app.references import check_free, registry_of, split_reference
from app.stores import Stores
from rock.actions import CommitPhase, CommitRequest, dump
from rock.errors import AlreadyExists, BadRequest, NotFound, NotRunning, RockError, Unavailable

log = logging.getLogger(__name__)


class Commits:
    """Begins commits, and tells how they stand."""

    def __init__(self, stores: Stores, dispatch: Dispatch, zone: tzinfo) -> None:
        self._sandboxes, self._results, self._dispatch, self._zone = stores.sandboxes, stores.results, dispatch, zone

    def commit(self, request: CommitRequest, ask: Ask) -> str:
        """Begin to make an image of a sandbox; return the envelope of its CommitStatus, after at most `ask.wait` seconds.

        It is pushed when its name begins with a registry and credentials are given. Without `wait` the answer comes at once.

        Raises:
            BadRequest: image_tag is no name for an image, or the sandbox cannot have one.
            NotFound, NotRunning: about the sandbox.
            AlreadyExists: another commit of it goes on.
        """
        record = self._committable(request, ask)
        body = {name: value for name, value in dump(request).items() if name not in ("request_id", "wait")}
        call = new_call(Route.COMMIT, request.sandbox_id, body, ask, self._dispatch.clock(), None)
        now = self._now(record)
        if now is not None and now.phase is CommitPhase.RUNNING and now.call != call.call_id:
            raise AlreadyExists(f"Sandbox {record.sandbox_id} is being committed as {now.image_tag}; wait for that")
        with self._results.expect(call.call_id) as waiter:
            claim = self._results.claim(call, call.created, admin=ask.identity.admin, need_running=False)
            if claim.word is ClaimWord.DONE:
                return claim.envelope
            if claim.word is ClaimWord.NEW:
                self._send(record, call, claim)
            if ask.wait:
                answer = self._dispatch.await_answer(call, Claim(claim.word, claim.node), waiter, ask.wait)
                if json.loads(answer)["status"] == "Failed" or "phase" in json.loads(answer)["result"]:
                    return answer
        return envelope(self.status(record.sandbox_id, ask))

    def status(self, sandbox_id: str, ask: Ask) -> dict[str, Any]:
        """Return the CommitStatus of a sandbox's last commit. Raises NotFound."""
        record = self._sandboxes.get(sandbox_id)
        if record is None or not ask.identity.sees(record.owner):
            raise NotFound(f"Sandbox {sandbox_id} not found", sandbox_id=sandbox_id)
        commit = self._now(record)
        if commit is None:
            raise NotFound(f"Sandbox {sandbox_id} was never committed", sandbox_id=sandbox_id)
        return status.to_commit(sandbox_id, commit, self._zone)

    def _committable(self, request: CommitRequest, ask: Ask) -> SandboxRecord:
        """Return the record of a sandbox that can be committed under that name, or raise why not."""
        check_free(request.image_tag, "image_tag")
        if ":" in split_reference(request.image_tag)[1]:
            raise BadRequest("image_tag: must be a name with a tag, not a digest", field="image_tag")
        if request.password and not registry_of(request.image_tag):
            log.info(
                "commit without a registry in its name: not pushed",
                extra={"sandbox_id": request.sandbox_id, "image": request.image_tag},
            )
        record = self._sandboxes.get(request.sandbox_id)
        about: dict[str, Any] = {"sandbox_id": request.sandbox_id}
        if record is None or not ask.identity.sees(record.owner):
            raise NotFound(f"Sandbox {request.sandbox_id} not found", **about)
        if record.state is not State.RUNNING and not (record.state is State.STOPPED and record.kept):
            raise NotRunning(
                f"Sandbox {request.sandbox_id} is {record.state.value}; there is nothing to commit", **about
            )
        if record.runtime == "local":
            raise BadRequest("the local deployment has no images; commit needs a node with a container engine", **about)
        return record

    def _now(self, record: SandboxRecord) -> Commit | None:
        """Return how the last commit stands, a lost one as failed; None without one."""
        commit = Commit.of(record)
        if commit is None or commit.phase is not CommitPhase.RUNNING:
            return commit
        known = self._results.heads([commit.call])
        if known and not known[0].done:
            return commit
        # Its node has not written how it ended: it may just have, or it never will.
        again = self._sandboxes.get(record.sandbox_id)
        commit = Commit.of(again or record) or commit
        if commit.phase is not CommitPhase.RUNNING:
            return commit
        answer = json.loads(self._results.read(commit.call) or "{}")
        error = RockError(str(answer.get("error") or "its node was lost before it was done"))
        code = "WORKER_UNREACHABLE" if (answer.get("result") or {}).get("kind") == "node_lost" else "PROCESS_LOST"
        return commit.failed(error, "commit", code, self._dispatch.clock())

    def _send(self, record: SandboxRecord, call: Call, claim: Claim) -> None:
        """Note that a commit runs, and send it; what cannot be is withdrawn."""
        begun = Commit(call.call_id, str(call.body["image_tag"]), started=call.created)
        if not self._sandboxes.set_commit(record, begun):
            taken = AlreadyExists(f"Sandbox {record.sandbox_id} is being committed already; wait for that")
            self._results.withdraw(call.call_id, taken, call.created)
            raise taken
        log.info("commit", extra={**call.about, "image": begun.image_tag, "call_id": call.call_id})
        try:
            self._dispatch.send(NodeTask.COMMIT, call.call_id, claim.node)
        except Unavailable as error:
            failed = begun.failed(error, "commit", "DISPATCH_FAILED", self._dispatch.clock())
            self._sandboxes.set_commit(begun.on(record), failed)
            raise
