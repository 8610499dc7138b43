"""What can be done with the files of a sandbox: bring it back with them, make more of it, or delete it for good."""

import logging
from dataclasses import replace
from typing import Any

from app.broker import NodeTask
from app.calls import Claim, ClaimWord, Route
from app.commands import Ask, new_call
from app.config import Runtime
from app.dispatch import Dispatch, envelope
from app.records import Event, PhaseName, SandboxRecord, State
from app.results import refusal
from app.stores import Stores
from rock.actions import ForkRequest, dump
from rock.errors import BadRequest, NoCapacity, NodeLost, NotFound, RockError

log = logging.getLogger(__name__)

# Moves that a record remembers: a sandbox that is restarted for ever must not grow for ever.
_REMEMBERED = 60


class Afterlife:
    """Restarts and deletes stopped sandboxes, and forks any."""

    def __init__(self, stores: Stores, dispatch: Dispatch, runtime: Runtime) -> None:
        self._sandboxes, self._nodes, self._results = stores.sandboxes, stores.nodes, stores.results
        self._line = stores.line
        self._dispatch, self._limit = dispatch, runtime.start_timeout_seconds

    def restart(self, sandbox_id: str, ask: Ask) -> str:
        """Start a stopped sandbox again, on its node and with its files; return the envelope of its StartResponse.

        It is a new life: capacity is reserved again, the lease begins anew, sessions and processes are gone.

        Raises:
            NotFound: no such sandbox for this caller, or its files were not kept.
            BadRequest: it is not stopped.
            NodeLost, NoCapacity: its node is silent, or has no room now.
            Unavailable: Redis or the queue is down.
        """
        old, now = self._find(sandbox_id, ask), self._dispatch.clock()
        call = new_call(Route.RESTART, sandbox_id, {}, ask, now, self._limit)
        with self._results.expect(call.call_id) as waiter:
            claim = self._line.restart(_next_life(old, call.call_id, now), call, now, old.start_call)
            if claim.word is ClaimWord.DONE:
                return claim.envelope
            if claim.word is ClaimWord.CONFLICT:
                raise refusal(call, claim)
            if claim.word not in (ClaimWord.NEW, ClaimWord.ATTACHED):
                raise self._refused(old, claim)
            if claim.word is ClaimWord.NEW:
                log.info("restart", extra={**call.about, "node": old.node, "call_id": call.call_id})
            return self._dispatch.await_answer(call, Claim(claim.word, old.node), waiter, None)

    def delete(self, sandbox_id: str, ask: Ask) -> str:
        """Delete a stopped sandbox with its files; return the envelope as JSON text. An unknown one counts as deleted.

        Raises:
            BadRequest: it is running or starting.
            Unavailable: Redis or the queue is down.
        """
        record = self._sandboxes.get(sandbox_id)
        if record is None or not ask.identity.sees(record.owner) or record.state is State.DELETED:
            return envelope(f"Sandbox {sandbox_id} is deleted")
        if record.state is not State.STOPPED:
            raise BadRequest(f"Sandbox {sandbox_id} is {record.state.value}; stop it first", sandbox_id=sandbox_id)
        call = new_call(Route.DELETE, sandbox_id, {}, ask, self._dispatch.clock(), None)
        try:
            return self._dispatch.ask(
                call, NodeTask.DELETE, wait=ask.wait, admin=ask.identity.admin, need_running=False
            )
        except NodeLost:
            # On paper now, in fact when the node is back and finds a container that nobody wants.
            self._sandboxes.transition(
                sandbox_id, [State.STOPPED], State.DELETED, Event.DELETE, self._dispatch.clock(),
                only_start=record.start_call,
            )  # fmt: skip
            text = f"Sandbox {sandbox_id} is deleted; node {record.node} is lost and removes its files when it is back"
            return envelope(text, text)

    def fork(self, sandbox_id: str, request: ForkRequest, ask: Ask) -> str:
        """Make sandboxes with the files of this one on its node; return the envelope of a ForkResponse.

        Like it in all else that its record tells; they are the caller's, and none has sessions or processes of it.

        Raises:
            NotFound: no such sandbox for this caller.
            NodeLost: its node is silent.
            Unavailable: Redis or the queue is down.
        """
        body = {name: value for name, value in dump(request).items() if name not in ("request_id", "wait")}
        call = new_call(Route.FORK, sandbox_id, body, ask, self._dispatch.clock(), None)
        return self._dispatch.ask(call, NodeTask.FORK, wait=ask.wait, admin=ask.identity.admin, need_running=False)

    def mounts(self, sandbox_id: str, ask: Ask) -> list[dict[str, object]]:
        """Return the mounts that a sandbox was started with: type, source, target, read_only. Raises NotFound."""
        mounts: list[dict[str, object]] = self._find(sandbox_id, ask).container.get("mounts", [])
        return mounts

    def _find(self, sandbox_id: str, ask: Ask) -> SandboxRecord:
        """Return the record if this caller may see it. Raises NotFound."""
        record = self._sandboxes.get(sandbox_id)
        if record is None or not ask.identity.sees(record.owner):
            raise NotFound(f"Sandbox {sandbox_id} not found", sandbox_id=sandbox_id)
        return record

    def _refused(self, old: SandboxRecord, claim: Claim) -> RockError:
        """Return why a sandbox cannot be restarted."""
        name = f"Sandbox {old.sandbox_id}"
        about: dict[str, Any] = {"sandbox_id": old.sandbox_id}
        if claim.word is ClaimWord.EXISTS:
            if claim.state == State.DELETED.value:
                return NotFound(f"{name} was deleted, and its files with it; start a new one", **about)
            return BadRequest(f"{name} is {claim.state}; only a stopped one can be restarted", **about)
        node = self._nodes.get(old.node)
        if node is None or not self._nodes.is_alive(node, self._dispatch.clock()):
            return NodeLost(f"{name} is on node {old.node}, which does not answer (node lost)", **about)
        return NoCapacity(
            f"{name}: node {old.node}, which has its files, is {node.state.value} and has no room for "
            f"{old.cpus:g} CPUs and {old.memory} bytes now; try again when a sandbox there has stopped", **about,
        )  # fmt: skip


def _next_life(old: SandboxRecord, start_call: str, now: float) -> SandboxRecord:
    """Return the record of a stopped sandbox's next life. Raises NotFound when there is nothing to go on from."""
    if old.state is State.STOPPED and not old.kept:
        why = (
            "it never ran"
            if not old.started
            else "its files went with its stop (auto_delete_seconds, keep_stopped_seconds)"
        )
        raise NotFound(f"Sandbox {old.sandbox_id} cannot be restarted: {why}", sandbox_id=old.sandbox_id)
    move = {
        "from_state": State.STOPPED.value, "to_state": State.PENDING.value, "event": Event.RESTART.value, "timestamp": now,
    }  # fmt: skip
    phases = {name: phase for name, phase in old.phases.items() if name != PhaseName.DOCKER_RUN.value}
    return replace(
        old, state=State.PENDING, start_call=start_call, expires=0.0, inflight=0, stopped=0.0, stop_event="", reason="",
        port_mapping={}, phases=phases, history=[*old.history[-_REMEMBERED:], move],
    )  # fmt: skip
