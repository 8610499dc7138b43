"""The life of a sandbox as the API sees it: start, status, stop."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import tzinfo
from typing import Any

from app import status
from app.broker import NodeTask
from app.calls import Call, ClaimWord, Route
from app.commands import Ask, new_call
from app.config import Runtime
from app.dispatch import Dispatch, envelope
from app.placement import BOUND, line_of
from app.records import Event, SandboxRecord, State
from app.references import check_free
from app.results import refusal
from app.starts import fail_start
from app.stock import NO_OFFER, Offer, offer
from app.stores import Stores
from rock.actions import StartRequest, dump
from rock.errors import AlreadyExists, BadRequest, Cancelled, NodeLost, NotFound, SandboxGone

log = logging.getLogger(__name__)

# What of a StartRequest is kept with the sandbox and shown. Not credentials, variables or docker_args: they hold secrets.
_KEPT = (
    "image",
    "image_os",
    "memory",
    "cpus",
    "limit_cpus",
    "disk",
    "num_gpus",
    "accelerator_type",
    "metadata",
    "runtime",
    "auto_delete_seconds",
)


class Lifecycle:
    """Starts, shows and stops sandboxes."""

    def __init__(self, stores: Stores, dispatch: Dispatch, runtime: Runtime, zone: tzinfo) -> None:
        self._sandboxes, self._nodes, self._results = stores.sandboxes, stores.nodes, stores.results
        self._line, self._images, self._stock = stores.line, stores.images, stores.stock
        self._dispatch, self._runtime, self._zone = dispatch, runtime, zone

    def start(self, request: StartRequest, headers: Mapping[str, str], ask: Ask, *, at_once: bool = False) -> str:
        """Start a sandbox; return the envelope of its StartResponse as JSON text.

        Params:
            headers: user_id, experiment_id, namespace, cluster: kept with the sandbox.
            at_once: answer now (start_async), whether it has a node already or waits for room.
        Raises:
            RockError: no node could ever take it (there are no GPUs, and no archive), its id is taken, or Unavailable.
        """
        _refuse_what_is_not_here(request)
        check_free(request.image)
        now, limit = self._dispatch.clock(), request.startup_timeout or self._runtime.start_timeout_seconds
        call = self._start_call(request, ask, now, limit)
        with self._results.expect(call.call_id) as waiter:
            record = self._record(request, headers, call)
            claim = self._line.enter(record, call, now, self._offer(request, record, now))
            if claim.word is ClaimWord.EXISTS:
                raise AlreadyExists(f"Sandbox {call.sandbox_id} already exists", sandbox_id=call.sandbox_id)
            if claim.word is ClaimWord.CONFLICT:
                raise refusal(call, claim)
            if claim.word is ClaimWord.NEW:
                where = f"on node {claim.node}" if claim.node else "waits for room"
                log.info("start %s", where, extra={**call.about, "call_id": call.call_id})
            if claim.word is ClaimWord.DONE:
                if claim.node:
                    self._stock.taken()
                    log.info("start taken from the pool of node %s", claim.node, extra=call.about)
                return claim.envelope
            if at_once:
                return self._begun(call)
            return self._dispatch.await_answer(call, claim, waiter, ask.wait)

    def is_alive(self, sandbox_id: str, ask: Ask) -> dict[str, Any]:
        """Return `{is_alive, message}`; an unknown id is just not alive. Prolongs the lease."""
        found = self._touch(sandbox_id, ask)
        if found is None:
            return {"is_alive": False, "message": f"Sandbox {sandbox_id} not found"}
        record, alive = found
        return {"is_alive": record.state is State.RUNNING and alive, "message": status.message(record, alive)}

    def get_status(self, sandbox_id: str, include_all_states: bool, ask: Ask) -> dict[str, Any]:
        """Return the StatusResponse as an object. Prolongs the lease. Raises NotFound."""
        found = self._touch(sandbox_id, ask)
        if found is None or not status.is_visible(found[0], include_all_states, self._dispatch.clock()):
            raise NotFound(f"Sandbox {sandbox_id} not found", sandbox_id=sandbox_id)
        return status.to_status(*found, self._zone)

    def last_command(self, sandbox_id: str, session: str | None, ask: Ask) -> str | None:
        """Return the id of the last command's call in a session, or in any (None); None if none is known. Raises NotFound."""
        if self._touch(sandbox_id, ask) is None:
            raise NotFound(f"Sandbox {sandbox_id} not found", sandbox_id=sandbox_id)
        return self._sandboxes.last_command(sandbox_id, session)

    def stop(self, sandbox_id: str, ask: Ask) -> str:
        """Stop a sandbox, whatever it is doing; return the envelope as JSON text. Stopping again succeeds.

        Raises:
            NotFound: no such sandbox for this caller.
            Unavailable: Redis or the queue is down.
        """
        found = self._touch(sandbox_id, ask)
        if found is None:
            raise NotFound(f"Sandbox {sandbox_id} not found", sandbox_id=sandbox_id)
        record, alive = found
        log.info(
            "stop of a %s sandbox", record.state.value, extra={"request_id": ask.request_id, "sandbox_id": sandbox_id}
        )
        if record.state is State.PENDING:
            # First, so that the start that is under way finds it and discards what it made.
            self._end(record, "stopped while it was starting")
            gone = SandboxGone(f"Sandbox {sandbox_id} was stopped while it was starting", sandbox_id=sandbox_id)
            self._results.fail(record.start_call, gone, self._dispatch.clock())
            record = self._sandboxes.get(sandbox_id) or record
            if not record.node:
                return envelope(f"Sandbox {sandbox_id} is stopped")
        elif record.state is not State.RUNNING:
            return envelope(f"Sandbox {sandbox_id} is stopped")
        if not alive:
            return self._stop_without_node(record)
        return self._stop_on_node(record, ask)

    def cancel_start(self, call: Call) -> None:
        """End a start that is under way: its caller is answered, and what it made is removed."""
        record, now = self._sandboxes.get(call.sandbox_id), self._dispatch.clock()
        if record is not None and record.start_call == call.call_id:
            cancelled = Cancelled("the start was cancelled", sandbox_id=call.sandbox_id)
            fail_start(self._sandboxes, self._results, call, cancelled, now, Event.STOP)
            record = self._sandboxes.get(call.sandbox_id) or record
            if record.node:
                self._dispatch.nudge(NodeTask.CANCEL, call.call_id, record.node)

    def _start_call(self, request: StartRequest, ask: Ask, now: float, limit: float) -> Call:
        """Return the start's call. Its id names the sandbox when the caller does not, so a retry finds the same one."""
        body = {
            name: value for name, value in dump(request).items() if name not in ("request_id", "wait", "sandbox_id")
        }
        call = new_call(Route.START, request.sandbox_id or "", body, ask, now, limit)
        # When it gives up waiting for room. A node that takes it gets a little longer, to say itself how far it came.
        return replace(call, deadline=now + limit, sandbox_id=request.sandbox_id or call.call_id)

    def _begun(self, call: Call) -> str:
        """Return the StartResponse of a start that goes on, as an envelope's JSON text."""
        record = self._sandboxes.get(call.sandbox_id)
        if record is None or record.start_call != call.call_id:
            return self._results.read(call.call_id) or envelope({"sandbox_id": call.sandbox_id})
        return envelope(status.to_start(record))

    def _record(self, request: StartRequest, headers: Mapping[str, str], call: Call) -> SandboxRecord:
        """Return the record of a sandbox that is to start."""
        spec = dump(request)
        lease = request.lease_seconds(self._runtime.auto_clear_minutes * 60) if self._runtime.enable_auto_clear else 0.0
        asked = request.auto_delete_seconds
        return SandboxRecord(
            sandbox_id=call.sandbox_id, owner=call.owner, node="", cpus=request.cpus,
            memory=request.memory_bytes(), lease=lease, created=call.created,
            retention=self._runtime.keep_stopped_seconds if asked is None else float(asked), start_call=call.call_id,
            spec={name: spec[name] for name in _KEPT}, identity=dict(headers), route_key=request.route_key or "",
            line=line_of(headers.get("cluster", ""), self._only_node(request, call.owner)),
        )  # fmt: skip

    def _only_node(self, request: StartRequest, owner: str) -> str:
        """Return the only node that has what a start asks for, "" when any will do. `pull=always` asks for the registry's image."""
        node = self._images.only_node(request.image, owner)
        return node if not owner or request.pull != "always" else ""

    def _offer(self, request: StartRequest, record: SandboxRecord, now: float) -> Offer:
        """Return what of the pools would do. Not for an image of the caller's own, which is on one node only."""
        if record.line.startswith(BOUND):
            return NO_OFFER
        return offer(request, record, now, self._runtime.result_ttl_seconds)

    def _touch(self, sandbox_id: str, ask: Ask) -> tuple[SandboxRecord, bool] | None:
        """Return the record with its lease prolonged, and whether its node is alive (true while it has none)."""
        now = self._dispatch.clock()
        found = self._sandboxes.touch(sandbox_id, now, ask.identity.owner, ask.identity.admin)
        if found is None:
            return None
        return found[0], not found[0].node or found[1] >= now - self._nodes.lost_after

    def _end(self, record: SandboxRecord, reason: str, event: Event = Event.STOP) -> bool:
        """Move a living sandbox to stopped from here: its node has not started it, is lost, or never heard of it."""
        living = [State.PENDING, State.RUNNING]
        return self._sandboxes.transition(
            record.sandbox_id, living, State.STOPPED, event, self._dispatch.clock(),
            only_start=record.start_call, reason=reason,
        )  # fmt: skip

    def _stop_without_node(self, record: SandboxRecord) -> str:
        """Stop a sandbox of a silent node: on paper now, in fact when the node is back and finds it stopped."""
        self._end(record, f"stopped while node {record.node} was lost")
        text = f"Sandbox {record.sandbox_id} is stopped; node {record.node} is lost and removes it when it is back"
        return envelope(text, text)

    def _stop_on_node(self, record: SandboxRecord, ask: Ask) -> str:
        """Have the node remove the sandbox, and wait for it."""
        # A node that does it late must not stop the life after this one.
        call = new_call(Route.STOP, record.sandbox_id, {}, ask, self._dispatch.clock(), None)
        call = replace(call, life=record.start_call)
        try:
            answer = self._dispatch.ask(
                call, NodeTask.STOP, wait=ask.wait, admin=ask.identity.admin, need_running=False
            )
        except NodeLost:
            return self._stop_without_node(record)
        return self._stop_without_node(record) if _kind(answer) == NodeLost.kind else answer


def _refuse_what_is_not_here(request: StartRequest) -> None:
    """Refuse a start that could only run without what it asks for. Raises BadRequest."""
    if request.auto_archive_seconds is not None:
        raise BadRequest(
            "auto_archive_seconds: this service has no archive to move a stopped sandbox to; auto_delete_seconds says for "
            "how long its files stay on its node for a restart, and /commit keeps them as an image",
            field="auto_archive_seconds",
        )
    if request.num_gpus:
        raise BadRequest(
            f"num_gpus={request.num_gpus:g}: no node of this service has GPUs to hand out; start it with num_gpus=0",
            field="num_gpus",
        )
    if request.accelerator_type:
        raise BadRequest(
            f"accelerator_type={request.accelerator_type!r}: no node of this service has accelerators; leave it out",
            field="accelerator_type",
        )


def _kind(answer: str) -> str:
    """Return the fault class in an envelope's JSON text, "" for a Success."""
    result = json.loads(answer).get("result")
    return str(result.get("kind", "")) if isinstance(result, dict) else ""
