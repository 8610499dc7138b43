"""The session side of a node: takes calls, hands them to the relay, and takes up again what an earlier process left."""

from __future__ import annotations

import logging
from collections.abc import Callable

from app import status
from app.broker import NodeTask
from app.calls import Call, Route
from app.clock import Clock
from app.nodes import Nodes
from app.records import Event, PhaseName, PhaseStatus, SandboxRecord, State
from app.results import ResultStore
from app.starts import fail_start
from app.store import SandboxStore
from rock.errors import Internal, RockError, SandboxGone, success
from workers.deployments.abstract import AbstractDeployment
from workers.file_jobs import make_job
from workers.relay import Relay

log = logging.getLogger(__name__)

READ_LIMIT = 64 * 1024 * 1024
"""Bytes of a file that `read_file` answers with."""

SESSION_ROUTES = frozenset(
    {
        Route.RUN_IN_SESSION,
        Route.CREATE_SESSION,
        Route.CLOSE_SESSION,
        Route.EXECUTE,
        Route.READ_FILE,
        Route.WRITE_FILE,
        Route.OUTPUT,
        Route.TERMINAL,
        Route.TERMINAL_INPUT,
    }
)

LEFT_BEHIND = 3.0
"""Seconds after which a call in flight that is not in hand counts as lost on its way here."""


class Coroner:
    """Decides what became of a sandbox whose stream broke (the relay's `Mortician`)."""

    def __init__(self, deployment: AbstractDeployment, sandboxes: SandboxStore, clock: Clock) -> None:
        """Only looks and writes the record; containers are removed by the lifecycle side."""
        self._deployment, self._sandboxes, self._clock = deployment, sandboxes, clock

    def life(self, sandbox_id: str) -> str:
        """Return what tells the sandbox's present life from others: its start call; "" when it is unknown."""
        record = self._sandboxes.get(sandbox_id)
        return record.start_call if record is not None else ""

    def examine(self, sandbox_id: str) -> RockError | None:
        """Return None if the sandbox runs, else the error for its callers; a death nobody asked for is written down."""
        record = self._sandboxes.get(sandbox_id)
        if record is not None and record.state is State.STOPPED:
            why = ": ".join(filter(None, [record.stop_event, record.reason]))
            return SandboxGone(f"Sandbox {sandbox_id} was stopped ({why})", sandbox_id=sandbox_id)
        # An engine that takes the container down just now answers late.
        state = self._deployment.inspect(sandbox_id)
        if state.running:
            return None
        event = Event.OUT_OF_MEMORY if state.oom_killed else Event.GONE
        reason = (
            f"its container ended with exit code {state.exit_code}" if state.exists else "its container was removed"
        )
        if state.oom_killed:
            reason = f"it ran out of memory, and {reason}; give the next one more"
        if record is not None and record.state is State.RUNNING:
            self._sandboxes.transition(sandbox_id, [State.RUNNING], State.STOPPED, event, self._clock(), reason=reason)
            log.warning("sandbox gone", extra={"sandbox_id": sandbox_id, "event": event.value, "reason": reason})
        return SandboxGone(f"Sandbox {sandbox_id} is gone: {reason}; start a new one", sandbox_id=sandbox_id)


class NodeAgent:
    """What the session worker does for each task, and on its own."""

    def __init__(
        self,
        node_id: str,
        results: ResultStore,
        sandboxes: SandboxStore,
        nodes: Nodes,
        deployment: AbstractDeployment,
        relay: Relay,
    ) -> None:
        self.node_id, self.results, self.sandboxes, self.nodes = node_id, results, sandboxes, nodes
        self.deployment, self.relay = deployment, relay
        # When this process began (epoch seconds), 0 until it took up what an earlier one left.
        self._born = 0.0

    def call(self, call_id: str) -> None:
        """NodeTask.CALL: submit a command; its end is answered by the relay."""
        self._take(call_id, self._submit)

    def cancel(self, call_id: str) -> None:
        """NodeTask.CANCEL: end a call as its timeout would. A start is ended by its record, on the lifecycle side."""
        call = self.results.load(call_id)
        if call is not None and not call.done:
            self.relay.cancel(call.sandbox_id, call_id)

    def opened(self, call_id: str) -> None:
        """NodeTask.OPENED: the container of start call `call_id` runs; reach its keeper and complete the start."""
        self._take(
            call_id,
            lambda call: self.relay.open(call.sandbox_id, call.call_id, lambda error: self._started(call, error)),
        )

    def recover(self, now: float, *, all: bool = False) -> int:
        """Submit what is in flight on this node and in nobody's hand; return how many calls.

        Params:
            all: at start; otherwise only calls that are older than a message needs to get here.
        """
        taken, self._born = 0, self._born or now
        for call_id in self.results.inflight(self.node_id, now if all else now - LEFT_BEHIND):
            call = self.results.load(call_id)
            if call is None or call.done:
                continue
            if self.relay.holds(call.sandbox_id, call_id):
                continue
            if call.route in SESSION_ROUTES or (call.route == Route.UPLOAD and "content_base64" in call.body):
                self.call(call_id)
                taken += 1
            elif call.is_start and self._container_runs(call):
                self.opened(call_id)
                taken += 1
        return taken

    def _container_runs(self, call: Call) -> bool:
        record = self.sandboxes.get(call.sandbox_id)
        return record is not None and record.start_call == call.call_id and record.has_container

    def _submit(self, call: Call) -> None:
        self._born = self._born or self.results.clock()
        self.relay.submit(call.sandbox_id, make_job(call, READ_LIMIT), ask=call.created < self._born)

    def _take(self, call_id: str, work: Callable[[Call], None]) -> None:
        """Do `work` on a call that still waits for its answer; a refusal of ours is its answer."""
        call = self.results.take(call_id, self.results.clock())
        if call is None:
            return
        try:
            work(call)
        except RockError as error:
            self.results.fail(call_id, error, self.results.clock())
        except Exception as error:
            log.exception("%s failed", call.route, extra=call.about)
            fault = Internal(
                f"the node failed to take the call ({type(error).__name__}); see its log", sandbox_id=call.sandbox_id
            )
            self.results.fail(call_id, fault, self.results.clock())

    def _started(self, call: Call, error: RockError | None) -> None:
        """The keeper answers, or never will: complete the start accordingly."""
        now = self.results.clock()
        if error is not None:
            # First, while the id is still taken: a start that follows at once must not lose its container.
            try:
                self._undo(call)
            finally:
                fail_start(self.sandboxes, self.results, call, error, now)
            return
        self.sandboxes.set_phase(
            call.sandbox_id, PhaseName.DOCKER_RUN, PhaseStatus.SUCCESS, "running", now, call.call_id
        )
        moved = self.sandboxes.transition(
            call.sandbox_id, [State.PENDING], State.RUNNING, Event.STARTED, now, only_start=call.call_id
        )
        record = self.sandboxes.get(call.sandbox_id)
        if not moved and not _runs(record, call):
            # Stopped while it was starting: whoever did so has answered.
            self._undo(call)
            self.results.fail(
                call.call_id, SandboxGone(f"Sandbox {call.sandbox_id} was stopped while it was starting"), now
            )
            return
        assert record is not None
        self.results.complete(call.call_id, success(status.to_start(record)), now)
        log.info("sandbox started", extra={**call.about, "seconds": round(now - call.created, 3)})

    def _undo(self, call: Call) -> None:
        """Undo a start that failed, unless another life has begun since: the container is that one's.

        A start may come here twice, by its message and by the recovery. If it succeeded the first time, the container is the
        sandbox's, and whoever has stopped that since decides whether it is kept.
        """
        record = self.sandboxes.get(call.sandbox_id)
        if record is None or (record.start_call == call.call_id and record.started < call.created):
            undo_start(self.deployment, call)


def _runs(record: SandboxRecord | None, call: Call) -> bool:
    return record is not None and record.start_call == call.call_id and record.state is State.RUNNING


def undo_start(deployment: AbstractDeployment, call: Call) -> None:
    """Undo what a start or restart made: a new container goes, one that was started again keeps its files."""
    if call.route == Route.RESTART:
        deployment.stop(call.sandbox_id)
    else:
        deployment.remove(call.sandbox_id)


__all__ = ["Coroner", "NodeAgent", "NodeTask", "undo_start"]
