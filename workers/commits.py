"""Commits: an image of a sandbox, pushed if that is wanted. Each runs in a thread of its own, for as long as it takes."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from zoneinfo import ZoneInfo

from app import status
from app.calls import Call
from app.config import Config
from app.database import DatabaseAway
from app.image_store import Home, ImageStore
from app.records import Commit, SandboxRecord
from app.references import commit_name, own_repository, registry_of
from app.results import ResultStore
from app.store import SandboxStore
from rock.actions import StartRequest
from rock.errors import AlreadyExists, ImageAccess, ImageNotFound, Internal, RockError, SandboxGone, success
from workers.background import Background
from workers.deployments.abstract import AbstractDeployment, Credentials
from workers.turns import Turns

log = logging.getLogger(__name__)

AT_ONCE = 2
"""Commits that work at the same time on a node; they write and read gigabytes."""

_CODES = {
    ("commit", SandboxGone): "SANDBOX_CONTAINER_NOT_FOUND", ("commit", AlreadyExists): "COMMIT_CONFLICT",
    ("push", ImageAccess): "LOGIN_FAILED",
}  # fmt: skip


@dataclass
class _Stage:
    """Where a commit is, for the message should it fail."""

    name: str = "commit"


class Commits:
    """Carries out the commits of one node."""

    def __init__(
        self, config: Config, results: ResultStore, sandboxes: SandboxStore, images: ImageStore,
        deployment: AbstractDeployment, turns: Turns,
    ) -> None:  # fmt: skip
        self._node, self._zone = config.node.id, ZoneInfo(config.log.time_zone)
        self._results, self._sandboxes, self._images = results, sandboxes, images
        self._deployment, self._turns = deployment, turns
        self._settling, self._settled = threading.Lock(), False
        self._background = Background(results, AT_ONCE, self._answer)

    def begin(self, call_id: str) -> None:
        """NodeTask.COMMIT: take the call and carry it out in the background."""
        self._background.begin(call_id)

    def settle(self, now: float) -> None:
        """Put right what pushes have left that were cut off: those of a killed process, and this one's. Errors: Unavailable; then again."""
        self._settle_once()
        self._deployment.images.reclaim()

    def _settle_once(self) -> None:
        """Have no name with what a killed process has lent it to, before anybody starts or pushes anything."""
        with self._settling:
            if not self._settled:
                self._deployment.images.take_back(own_repository("commit", self._deployment.mark, self._node))
                self._settled = True

    def resolved(self, request: StartRequest, owner: str) -> StartRequest:
        """Return a start's request with the name that the engine has its image under: a private one if it is a commit of the owner's.

        Errors: ImageNotFound when that commit is not there; Unavailable while names are still with private images of others.
        """
        self._settle_once()
        here = [home for home in self._images.own(request.image, owner) if home.node == self._node and home.name]
        if not here or request.pull == "always":
            return request
        if not self._deployment.images.has(here[-1].name):
            raise ImageNotFound(
                f"image {request.image}: your commit of that name is not on node {self._node}: it is not done yet, or the engine "
                "has lost it. Commit it again, or use remove_image if you want the registry's"
            )
        return replace(request, image=here[-1].name, pull="never")

    def _answer(self, call: Call) -> None:
        record = self._sandboxes.get(call.sandbox_id)
        if record is not None:
            self._carry_out(call, record)
        else:
            gone = SandboxGone(f"Sandbox {call.sandbox_id} is gone: nothing was committed")
            self._results.fail(call.call_id, gone, self._results.clock())

    def _carry_out(self, call: Call, record: SandboxRecord) -> None:
        commit = Commit(call.call_id, str(call.body["image_tag"]), started=call.created)
        stage = _Stage()
        try:
            self._work(call, commit.image_tag, stage)
            ended = commit.succeeded(self._results.clock())
        except DatabaseAway:
            raise  # no failure of this commit's: it is done again
        except RockError as error:
            code = _CODES.get((stage.name, type(error)), f"{stage.name}_failed".upper())
            ended = commit.failed(_without(call, error), stage.name, code, self._results.clock())
        except Exception as error:
            log.exception("commit failed", extra={**call.about, "image": commit.image_tag})
            fault = Internal(f"the node failed ({type(error).__name__}); see its log")
            ended = commit.failed(fault, stage.name, f"{stage.name}_failed".upper(), self._results.clock())
        self._sandboxes.set_commit(commit.on(record), ended)
        answer = success(status.to_commit(call.sandbox_id, ended, self._zone))
        self._results.complete(call.call_id, answer, self._results.clock())
        about = {"image": commit.image_tag, "phase": ended.phase.value, "stage": ended.stage, "code": ended.code}
        seconds = round(ended.completed - ended.started, 1)
        log.info("commit done", extra={**call.about, **about, "seconds": seconds})

    def _work(self, call: Call, image: str, stage: _Stage) -> None:
        self._settle_once()
        images, name = self._deployment.images, commit_name(self._deployment.mark, self._node, call.owner, image)
        if not name and images.has(image) and not self._may_replace(image, call.owner):
            raise AlreadyExists(f"image_tag: {image} is an image on node {self._node} that is no commit of yours")
        home = self._make(call, image, name)
        user, password = call.body.get("username"), call.body.get("password")
        if not (registry_of(image) and user and password):
            return
        stage.name = "push"

        def pushed() -> None:
            """Note that the registry has it, before its private name goes: the owner's next start asks for the given one."""
            self._images.note(image, replace(home, pushed=True, name=""))
            self._images.note_use(self._node, image, self._results.clock())
            if name:
                self._images.forget(image, home)

        try:
            images.push(image, Credentials(str(user), str(password)), private=name, pushed=pushed)
        except DatabaseAway:
            raise  # pushed, and done again
        except RockError:
            self._drop(image, home)
            raise

    def _drop(self, image: str, home: Home) -> None:
        """Have nobody start a commit by mistake: it is under a registry's name, and not what the registry has. A failure to remove it is logged."""
        try:
            self._deployment.images.remove(home.name or image)
        except RockError as error:
            log.warning("a commit that was not pushed stays on the disk: %s", error, extra={"image": image})
            if not home.name:
                return  # it can be started all the same, so it stays known whose it is: then another commit may replace it
        self._images.forget(image, home)

    def _make(self, call: Call, image: str, name: str) -> Home:
        """Make an image of the call's sandbox for the call's owner, and return what was noted of it."""
        # Noted first: what a killed worker leaves behind has its owner, who alone can start it, and its redo may replace it.
        begun = Home(self._node, call.owner, self._results.clock(), name=name)
        self._images.note(image, begun)
        try:
            with self._turns.of(call.sandbox_id):
                self._deployment.commit(call.sandbox_id, name or image)
        except DatabaseAway:
            raise
        except Exception:
            if not self._deployment.images.has(name or image):
                self._images.forget(image, begun)
            raise
        # Noted anew, should a removal of what had this name before have forgotten it meanwhile.
        home = replace(begun, made=self._results.clock())
        self._images.note(image, home)
        return home

    def _may_replace(self, image: str, owner: str) -> bool:
        """Return whether the image of that name on this node is a commit of the owner's, made here or had from a registry."""
        here = self._images.home(image, self._node)
        if here is not None:
            return here.owner == owner
        return any(home.owner == owner and home.pushed for home in self._images.homes(image))


def _without(call: Call, error: RockError) -> RockError:
    """Return the error without the password, should a registry have quoted it."""
    password = str(call.body.get("password") or "")
    return RockError(error.message.replace(password, "***")) if password and password in error.message else error
