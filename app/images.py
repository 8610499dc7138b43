"""Images on the nodes: fetched ahead of time, and removed again."""

import json
import logging
import uuid
from dataclasses import dataclass, replace
from typing import Any

from app.broker import NodeTask
from app.calls import Call, Claim, ClaimWord, Route, call_id
from app.commands import Ask, new_call
from app.dispatch import Dispatch
from app.records import NodeRecord
from app.references import check_free
from app.results import refusal
from app.stores import Stores
from rock.actions import RemoveImageRequest, WarmupRequest
from rock.errors import BadRequest, Forbidden, NotFound, RockError, Unavailable, from_envelope

log = logging.getLogger(__name__)

# Seconds within which a node has removed an image of any size.
REMOVE_SECONDS = 120.0


@dataclass(frozen=True)
class _Errand:
    """What one node is to do with one image."""

    call: Call
    claim: Claim


class Images:
    """Asks nodes to fetch and to remove images."""

    def __init__(self, stores: Stores, dispatch: Dispatch) -> None:
        self._nodes, self._results, self._images = stores.nodes, stores.results, stores.images
        self._dispatch = dispatch

    def remove(self, request: RemoveImageRequest, ask: Ask) -> dict[str, Any]:
        """Remove an image from every node, or from one; return `{removed, failed, lost}`: nodes, `{node, error}`, nodes.

        With it go the caller's commits of that name, or everybody's if an admin asks.

        A node that does not have it is in none of them. A silent one is `lost`: nobody knows what it has.

        Raises:
            BadRequest: no image reference, or no such node.
            Forbidden: one of these nodes has another's commit under that very name, made when there were no API keys.
        """
        check_free(request.image)
        for home in self._images.homes(request.image):
            public = not home.name and not home.pushed
            if public and request.node in (None, home.node) and not ask.identity.sees(home.owner):
                raise Forbidden(f"image {request.image} on node {home.node} was committed by another owner")
        alive, lost = self._divided(request.node)
        found: dict[str, Any] = {"removed": [], "failed": [], "lost": lost}
        errands = [self._send(Route.REMOVE_IMAGE, NodeTask.REMOVE_IMAGE, request.image, node, ask) for node in alive]
        for errand in errands:
            answer = self._answer(errand)
            if answer["status"] == "Failed":
                found["failed"].append({"node": errand.call.node, "error": answer["error"]})
            elif answer["result"].get("removed"):
                found["removed"].append(errand.call.node)
        return found

    def warm(self, request: WarmupRequest, ask: Ask) -> dict[str, Any]:
        """Begin to fetch images on every living node; return the task as `progress` does.

        Raises:
            BadRequest: no image reference.
            Unavailable: no node is alive, or the queue is down.
        """
        images = list(dict.fromkeys(request.images or [request.image]))
        for image in images:
            check_free(image)
        alive, _ = self._divided(None)
        if not alive:
            raise Unavailable("no node is alive to fetch images")
        ask = ask if ask.request_id else replace(ask, request_id=f"warmup-{uuid.uuid4().hex}")
        errands = [self._send(Route.WARM, NodeTask.WARM, image, node, ask) for image in images for node in alive]
        task_id = call_id(ask.identity.owner, str(ask.request_id))
        self._images.note_task(task_id, ask.identity.owner, [errand.call.call_id for errand in errands])
        log.info("warmup %s: %d images on %d nodes", task_id, len(images), len(alive))
        return self.progress(task_id, ask)

    def progress(self, task_id: str, ask: Ask) -> dict[str, Any]:
        """Return `{task_id, state, pulls}` of a warmup; each pull is `{image, node, state, message}`.

        States are `pending`, `running`, `success` and `failed`; of the task, `success` means that every pull has succeeded.
        A pull is left out once its result is dropped, as those of all calls are after a while.
        Raises NotFound: no such task, or its end cannot be told any more.
        """
        task = self._images.task(task_id)
        if task is None or not ask.identity.sees(task[0]):
            raise NotFound(f"warmup task {task_id!r} not found: never made with this key, or forgotten after a day")
        pulls = [self._pull(call) for call in self._images.progress(task[1])]
        states = {pull["state"] for pull in pulls}
        state = next((one for one in ("running", "pending", "failed") if one in states), "success")
        if state == "success" and len(pulls) < len(task[1]):
            raise NotFound(
                f"warmup task {task_id!r}: results of its pulls have been dropped; nobody knows whether all succeeded"
            )
        return {"task_id": task_id, "state": state, "pulls": pulls}

    def _divided(self, node_id: str | None) -> tuple[list[NodeRecord], list[str]]:
        """Return the living nodes, and the ids of the silent ones; of all nodes or of one. Raises BadRequest."""
        now, nodes = self._dispatch.clock(), self._nodes.list()
        if node_id is not None:
            nodes = [node for node in nodes if node.node_id == node_id]
            if not nodes:
                raise BadRequest(f"node: there is no node {node_id!r}", field="node")
        alive = [node for node in nodes if self._nodes.is_alive(node, now)]
        return alive, [node.node_id for node in nodes if node not in alive]

    def _send(self, route: Route, task: NodeTask, image: str, node: NodeRecord, ask: Ask) -> _Errand:
        """Have a node do something with an image; under the same request id it is the same errand."""
        # One request, several calls: each has an id made of the request's.
        own = f"{ask.request_id}\0{node.node_id}\0{image}" if ask.request_id else None
        body: dict[str, Any] = {"image": image}
        if route is Route.REMOVE_IMAGE:
            body["all_owners"] = ask.identity.admin
        call = new_call(route, "", body, replace(ask, request_id=own), self._dispatch.clock(), None)
        call = replace(call, node=node.node_id)
        claim = self._images.post(call, call.created)
        if claim.word is ClaimWord.CONFLICT:
            raise refusal(call, claim)
        if claim.word is ClaimWord.NEW:
            self._dispatch.send(task, call.call_id, node.node_id)
        return _Errand(call, claim)

    def _answer(self, errand: _Errand) -> dict[str, Any]:
        """Return the envelope of an errand, waiting for it."""
        call, node = errand.call, errand.call.node
        with self._results.expect(call.call_id) as waiter:
            text = self._results.read(call.call_id) or self._dispatch.await_answer(
                call, Claim(ClaimWord.ATTACHED, node), waiter, REMOVE_SECONDS
            )
        answer: dict[str, Any] = json.loads(text)
        if "request_id" in (answer["result"] or {}):
            return Unavailable(f"node {node} has not done it within {REMOVE_SECONDS:g} s").to_envelope()
        return answer

    def _pull(self, known: tuple[Call, str]) -> dict[str, Any]:
        """Return how one pull of a warmup stands."""
        call, message = known
        state = call.state.value
        if call.done and call.envelope is not None:
            failed = call.envelope["status"] == "Failed"
            error: RockError | None = from_envelope(call.envelope) if failed else None
            state, message = (
                ("failed", error.message) if error else ("success", str(call.envelope["result"]["message"]))
            )
        return {"image": call.request_id.rpartition("\0")[2], "node": call.node, "state": state, "message": message}
