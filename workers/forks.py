"""Forks: more sandboxes with the files of one, all that were asked for or none.

A fork is a commit under a name that only it has, and starts from that on this node. Every id in it follows from the fork's call, so a worker that was
killed half-way does it again and finds what is there already. The image goes when nobody uses it any more.
"""

from __future__ import annotations

import logging
from typing import Any

from app.calls import Call, Route, call_id
from app.config import Config
from app.database import DatabaseAway
from app.placement import line_of
from app.records import Event, NodeRecord, SandboxRecord, State
from app.references import own_repository
from app.stores import Stores
from rock.actions import StartRequest, dump, revive
from rock.errors import BadRequest, Internal, NotRunning, RockError, SandboxGone, StartTimeout, from_envelope, success
from workers.background import Background
from workers.deployments.abstract import AbstractDeployment
from workers.reaper import Reaper
from workers.turns import Turns

log = logging.getLogger(__name__)

AT_ONCE = 2
"""Forks that work at the same time on a node."""
MOST = 64
"""Sandboxes of one fork (ForkRequest)."""
ANSWERED = 60.0
"""Seconds beyond its own limit in which a start is answered, by its node or the sweep."""
LONGEST_PAUSE = 60.0
"""Seconds, at most, between two tries to remove an image that sandboxes still use."""


class Forks:
    """Carries out the forks of one node, and clears away what they leave."""

    def __init__(
        self, config: Config, stores: Stores, deployment: AbstractDeployment, turns: Turns, reaper: Reaper
    ) -> None:
        self._node, self._limit, self._stores = config.node.id, config.runtime.start_timeout_seconds, stores
        self._deployment, self._turns, self._reaper = deployment, turns, reaper
        # Not by the prefix: several services may share an engine, and have the same.
        self._repository = own_repository("fork", deployment.mark, config.node.id)
        # Image -> when its removal is tried next (epoch seconds), and how long the pause before that was.
        self._images: dict[str, tuple[float, float]] = {}
        self._looked = False
        self._background = Background(stores.results, AT_ONCE, self._answer)

    def begin(self, call_id: str) -> None:
        """NodeTask.FORK: take the call and carry it out in the background."""
        self._background.begin(call_id)

    def clean(self, now: float) -> None:
        """Remove the images of forks that nobody uses any more, and what a fork left that has failed meanwhile."""
        if not self._looked:
            found = [name for name in self._deployment.images.names() if name.startswith(f"{self._repository}:")]
            self._images.update(dict.fromkeys(found, (0.0, 0.0)))
            self._looked = True
        for image, (due, pause) in list(self._images.items()):
            if now >= due and not self._clean_one(image):
                pause = min(LONGEST_PAUSE, 2 * pause or 1.0)
                self._images[image] = (now + pause, pause)

    def close(self, now: float) -> None:
        """Remove what can be removed at the end of this process, without waiting for its time."""
        if self._looked:
            for image in list(self._images):
                self._clean_one(image)

    def _clean_one(self, image: str) -> bool:
        """Remove an image unless it is in use; True if it is gone."""
        call = self._stores.results.load(image.partition(":")[2])
        if call is not None and not call.done:
            return False
        if call is not None and (call.envelope or {}).get("status") != "Success":
            # Answered in this node's place, while it was away.
            self._undo(call, "its fork failed")
        return self._discard(image)

    def _answer(self, call: Call) -> None:
        try:
            sandboxes = self._fork(call)
        except DatabaseAway:
            raise  # no failure of this fork's: it is done again
        except RockError as error:
            self._fail(call, error)
        except Exception as error:
            log.exception("fork failed", extra=call.about)
            self._fail(call, Internal(f"the node failed to fork ({type(error).__name__}); see its log"))
        else:
            if self._stores.results.complete(
                call.call_id, success({"sandboxes": sandboxes}), self._stores.results.clock()
            ):
                log.info("sandbox forked", extra={**call.about, "count": len(sandboxes)})

    def _fork(self, call: Call) -> list[dict[str, Any]]:
        """Make the sandboxes; return a StartResponse of each. Errors: why there will not be all of them."""
        image, now = self._image(call), self._stores.results.clock()
        self._images[image] = (now, 0.0)
        source, node = self._stores.sandboxes.get(call.sandbox_id), self._stores.nodes.get(self._node)
        if source is None or node is None:
            raise SandboxGone(f"Sandbox {call.sandbox_id} is gone: nothing was forked", sandbox_id=call.sandbox_id)
        _check_room(source, node, int(call.body["count"]))
        if not self._deployment.images.has(image):
            if source.state is not State.RUNNING and not (source.state is State.STOPPED and source.kept):
                raise NotRunning(f"Sandbox {call.sandbox_id} is {source.state.value}; there is nothing to fork")
            with self._turns.of(call.sandbox_id):
                self._deployment.commit(call.sandbox_id, image)
        limit = float(call.body.get("startup_timeout") or self._limit)
        starts = [self._start(call, source, image, number, limit) for number in range(int(call.body["count"]))]
        for start in starts:
            record = self._record(start, source)
            self._stores.line.enter(record, start, self._stores.results.clock())
        return [self._started(start, limit) for start in starts]

    def _start(self, call: Call, source: SandboxRecord, image: str, number: int, limit: float) -> Call:
        """Return one of the fork's starts."""
        now, request_id = self._stores.results.clock(), f"fork-{call.call_id}-{number}"
        id_ = call_id(call.owner, request_id)
        request = revive(StartRequest, {
            **{name: source.spec.get(name) for name in ("memory", "limit_cpus", "disk", "runtime")},
            "image": image, "pull": "never", "cpus": source.cpus, "startup_timeout": limit,
            "env": call.body.get("env") or {}, "docker_args": call.body.get("docker_args") or [],
        })  # fmt: skip
        body = {
            name: value for name, value in dump(request).items() if name not in ("request_id", "wait", "sandbox_id")
        }
        return Call(id_, request_id, call.owner, Route.START.value, id_, body, created=now, deadline=now + limit)

    def _record(self, start: Call, source: SandboxRecord) -> SandboxRecord:
        """Return the record of a fork: like its source, for whoever asked."""
        return SandboxRecord(
            start.sandbox_id, start.owner, "", source.cpus, source.memory, source.lease, start.created, source.retention,
            spec=dict(source.spec), identity=dict(source.identity), start_call=start.call_id, line=line_of("", self._node),
        )  # fmt: skip

    def _started(self, start: Call, limit: float) -> dict[str, Any]:
        """Wait for a start; return its StartResponse. Errors: why it failed."""
        answer = self._stores.results.wait(start.call_id, limit + ANSWERED)
        if answer is None:
            raise StartTimeout(f"a fork did not start within {limit:g} s", sandbox_id=start.sandbox_id)
        if answer["status"] != "Success":
            raise from_envelope(answer)
        result: dict[str, Any] = answer["result"]
        return result

    def _fail(self, call: Call, error: RockError) -> None:
        """Undo what was made, and then answer."""
        self._undo(call, error.message)
        self._discard(self._image(call))
        self._stores.results.fail(call.call_id, error, self._stores.results.clock())
        log.warning("fork failed: %s", error.message, extra=call.about)

    def _undo(self, call: Call, why: str) -> None:
        """End every sandbox that a fork has made, with its files."""
        now = self._stores.results.clock()
        ids = [call_id(call.owner, f"fork-{call.call_id}-{number}") for number in range(MOST)]
        for record in self._stores.sandboxes.many(ids):
            ended = self._stores.sandboxes.transition(
                record.sandbox_id, [State.PENDING, State.RUNNING], State.STOPPED, Event.STOP, now,
                only_start=record.sandbox_id, reason=f"not all of a fork could be made: {why}"[:500], retention="0",
            )  # fmt: skip
            gone = SandboxGone(f"Sandbox {record.sandbox_id} was stopped: not all of its fork could be made")
            self._stores.results.fail(record.start_call, gone, now)
            if ended and record.node:
                self._reaper.put_down(record.sandbox_id, record.sandbox_id, now)

    def _discard(self, image: str) -> bool:
        """Remove an image unless sandboxes use it; True if it is gone."""
        images = self._deployment.images
        if not images.evict(image, asked_for=True) and images.has(image):
            return False
        self._images.pop(image, None)
        return True

    def _image(self, call: Call) -> str:
        return f"{self._repository}:{call.call_id}"


def _check_room(source: SandboxRecord, node: NodeRecord, count: int) -> None:
    """Refuse at once what the node could never hold: the files are there, and the forks can go nowhere else. Errors: BadRequest."""
    if count * source.cpus > node.cpus or count * source.memory > node.memory:
        raise BadRequest(
            f"count: {count} sandboxes of {source.cpus:g} CPUs and {source.memory} bytes are more than node {node.node_id} "
            f"has ({node.cpus:g} CPUs, {node.memory} bytes), where the files are",
            field="count",
        )
