"""The life of a sandbox as the API sees it: start, status, stop."""

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

from app import status
from app.broker import NodeTask
from app.calls import Call, Claim, ClaimWord, Route
from app.commands import Ask, new_call
from app.config import Runtime
from app.dispatch import Dispatch, envelope
from app.image_store import ImageStore
from app.placement import Want, choose_node
from app.records import Event, NodeRecord, SandboxRecord, State
from app.results import ResultStore, refusal
from app.store import NodeStore, SandboxStore
from rock.actions import StartRequest, dump
from rock.errors import AlreadyExists, Cancelled, NoCapacity, NodeLost, NotFound, SandboxGone, Unavailable

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

# Attempts to place while other processes take the room that was just seen.
_RACES = 5
# Seconds after which a start that waits for room looks again, should the notice of freed room be lost.
_LOOK_AGAIN = 2.0


@dataclass(frozen=True)
class Stores:
    """What the lifecycle reads and writes."""

    sandboxes: SandboxStore
    nodes: NodeStore
    results: ResultStore
    images: ImageStore


class Lifecycle:
    """Starts, shows and stops sandboxes."""

    def __init__(self, stores: Stores, dispatch: Dispatch, runtime: Runtime, zone: tzinfo) -> None:
        self._sandboxes, self._nodes, self._results = stores.sandboxes, stores.nodes, stores.results
        self._images = stores.images
        self._dispatch, self._runtime, self._zone = dispatch, runtime, zone

    def start(self, request: StartRequest, headers: Mapping[str, str], ask: Ask, *, at_once: bool = False) -> str:
        """Start a sandbox; return the envelope of its StartResponse as JSON text.

        Params:
            headers: user_id, experiment_id, namespace, cluster: kept with the sandbox.
            at_once: answer as soon as it is placed (start_async), and do not wait for room.
        Raises:
            RockError: it cannot be placed, its id is taken, or Unavailable.
        """
        now, limit = self._dispatch.clock(), request.startup_timeout or self._runtime.start_timeout_seconds
        call = self._start_call(request, ask, now, limit)
        patience = 0.0 if at_once else min(limit, limit if ask.wait is None else ask.wait)
        began = time.monotonic()
        with self._results.expect(call.call_id) as waiter:
            record, claim = self._place(request, headers, call, patience)
            if claim.word is ClaimWord.DONE:
                return claim.envelope
            if claim.word is ClaimWord.NEW:
                self._send_start(record)
            if at_once:
                return envelope(status.to_start(record))
            left = None if ask.wait is None else max(0.0, ask.wait - (time.monotonic() - began))
            return self._dispatch.await_answer(call, Claim(claim.word, record.node), waiter, left)

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
        log.info("sandbox %s: stop (%s)", sandbox_id, record.state.value)
        if record.state is State.PENDING:
            # First, so that the start that is under way finds it and discards what it made.
            self._end(record, "stopped while it was starting")
            gone = SandboxGone(f"Sandbox {sandbox_id} was stopped while it was starting", sandbox_id=sandbox_id)
            self._results.fail(record.start_call, gone, self._dispatch.clock())
        elif record.state is not State.RUNNING:
            return envelope(f"Sandbox {sandbox_id} is stopped")
        if not alive:
            return self._stop_without_node(record)
        return self._stop_on_node(record, ask)

    def cancel_start(self, call: Call) -> None:
        """End a start that is under way: its caller is answered, and what it made is removed."""
        record, now = self._sandboxes.get(call.sandbox_id), self._dispatch.clock()
        if record is not None and record.start_call == call.call_id:
            self._end(record, "the start was cancelled")
            self._results.fail(call.call_id, Cancelled("the start was cancelled", sandbox_id=call.sandbox_id), now)
            self._dispatch.nudge(NodeTask.CANCEL, call.call_id, record.node)

    def _start_call(self, request: StartRequest, ask: Ask, now: float, limit: float) -> Call:
        """Return the start's call. Its id names the sandbox when the caller does not, so a retry finds the same one."""
        body = {
            name: value for name, value in dump(request).items() if name not in ("request_id", "wait", "sandbox_id")
        }
        # The node ends the start at its limit and says how far it came; this deadline is for when it does not.
        call = new_call(Route.START, request.sandbox_id or "", body, ask, now, limit)
        return call if request.sandbox_id else Call(**{**vars(call), "sandbox_id": call.call_id})

    def _place(
        self, request: StartRequest, headers: Mapping[str, str], call: Call, patience: float
    ) -> tuple[SandboxRecord, Claim]:
        """Reserve room and make the record, waiting up to `patience` seconds for room. Raises what placing refuses."""
        end = time.monotonic() + patience
        with self._results.freed() as freed:
            while True:
                try:
                    return self._reserve(request, headers, call)
                except NoCapacity:
                    left = end - time.monotonic()
                    if left <= 0 or self._results.inbox.released:
                        raise
                    freed.pause(min(left, _LOOK_AGAIN))

    def _reserve(self, request: StartRequest, headers: Mapping[str, str], call: Call) -> tuple[SandboxRecord, Claim]:
        """Place once, choosing again when someone else was quicker."""
        want = Want(request.cpus, request.memory_bytes(), request.route_key or "", headers.get("cluster", ""))
        for _ in range(_RACES):
            node = self._choose(call, want)
            record = self._record(request, headers, call, node)
            claim = self._sandboxes.create(record, call, self._dispatch.clock())
            if claim.word is ClaimWord.EXISTS:
                raise AlreadyExists(f"Sandbox {call.sandbox_id} already exists", sandbox_id=call.sandbox_id)
            if claim.word is ClaimWord.CONFLICT:
                raise refusal(call, claim)
            if claim.word is not ClaimWord.FULL:
                return record if claim.word is ClaimWord.NEW else self._known(call, record), claim
        raise NoCapacity("others took the free room first; try again")

    def _choose(self, call: Call, want: Want) -> NodeRecord:
        """Return a node with room. A repeated start needs none: its own node, if it was placed before."""
        known = self._sandboxes.get(call.sandbox_id)
        alive = self._nodes.alive(self._dispatch.clock())
        nodes = self._images.narrow(alive, str(call.body["image"]), call.owner)
        if known is not None and (known.start_call == call.call_id or known.state in (State.PENDING, State.RUNNING)):
            # The script answers (attached, done, exists) before it looks at the node.
            return self._nodes.get(known.node) or choose_node(nodes, want)
        return choose_node(nodes, want)

    def _known(self, call: Call, record: SandboxRecord) -> SandboxRecord:
        """Return the record that the first of several equal starts made."""
        return self._sandboxes.get(call.sandbox_id) or record

    def _record(self, request: StartRequest, headers: Mapping[str, str], call: Call, node: NodeRecord) -> SandboxRecord:
        """Return the record of a sandbox that starts on `node`."""
        spec = dump(request)
        lease = request.lease_seconds(self._runtime.auto_clear_minutes * 60) if self._runtime.enable_auto_clear else 0.0
        asked = request.auto_delete_seconds
        return SandboxRecord(
            sandbox_id=call.sandbox_id, owner=call.owner, node=node.node_id, cpus=request.cpus,
            memory=request.memory_bytes(), lease=lease, created=call.created,
            retention=self._runtime.keep_stopped_seconds if asked is None else float(asked), start_call=call.call_id,
            spec={name: spec[name] for name in _KEPT}, identity=dict(headers), route_key=request.route_key or "",
            host_name=node.host_name, host_ip=node.host_ip, runtime=node.deployment,
        )  # fmt: skip

    def _send_start(self, record: SandboxRecord) -> None:
        """Send a new sandbox to its node; when the queue refuses, the record and the reservation are undone."""
        log.info("sandbox %s: start on node %s, call %s", record.sandbox_id, record.node, record.start_call)
        try:
            self._dispatch.send(NodeTask.START, record.start_call, record.node)
        except Unavailable as error:
            self._end(record, error.message, Event.START_FAILED)
            raise

    def _touch(self, sandbox_id: str, ask: Ask) -> tuple[SandboxRecord, bool] | None:
        """Return the record with its lease prolonged, and whether its node is alive."""
        now = self._dispatch.clock()
        found = self._sandboxes.touch(sandbox_id, now, ask.identity.owner, ask.identity.admin)
        return (found[0], found[1] >= now - self._nodes.lost_after) if found else None

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
        call = new_call(Route.STOP, record.sandbox_id, {}, ask, self._dispatch.clock(), None)
        try:
            answer = self._dispatch.ask(
                call, NodeTask.STOP, wait=ask.wait, admin=ask.identity.admin, need_running=False
            )
        except NodeLost:
            return self._stop_without_node(record)
        return self._stop_without_node(record) if _kind(answer) == NodeLost.kind else answer


def _kind(answer: str) -> str:
    """Return the fault class in an envelope's JSON text, "" for a Success."""
    result = json.loads(answer).get("result")
    return str(result.get("kind", "")) if isinstance(result, dict) else ""
