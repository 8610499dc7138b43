"""A node without containers: real tasks on a real Redis, which do what a command's text says."""

import base64
import hashlib
import threading
import time
from dataclasses import dataclass, field

from celery import Celery

from app.blobs import BlobStore
from app.broker import NodeTask
from app.calls import Call
from app.image_store import Home
from app.records import Commit, Event, NodeRecord, PhaseName, PhaseStatus, State
from app.references import commit_name
from app.status import to_commit
from app.stores import Stores
from rock.errors import Cancelled, CommandFailed, ImageNotFound, RockError, SandboxGone, success

GB = 1024**3


def _function(verb):
    """Return a plain function for a method: Celery counts the arguments of methods wrongly."""

    def run(call_id):
        verb(call_id)

    return run


@dataclass
class FakeNode:
    """Answers calls at once, but for commands: `sleep N` answers N seconds later, `hang` never, `exit N` fails.

    Images: `missing` fails its start; `slow` starts when `release()` is called.
    """

    stores: Stores
    blobs: BlobStore
    node_id: str = "n1"
    # Of the service's keys.
    prefix: str = ""
    # Call ids in the order in which they were run.
    ran: list[str] = field(default_factory=list)
    # Those whose file came as a blob.
    moved: list[str] = field(default_factory=list)
    uploads: dict[str, bytes] = field(default_factory=dict)
    held: list[Call] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def register(self, celery: Celery) -> None:
        """Register every task of a node."""
        verbs = {
            NodeTask.CALL: self.call, NodeTask.CANCEL: self.cancel, NodeTask.START: self.start, NodeTask.STOP: self.stop,
            NodeTask.DELETE: self.delete, NodeTask.COMMIT: self.commit, NodeTask.FORK: self.fork, NodeTask.WARM: self.image,
            NodeTask.REMOVE_IMAGE: self.image, NodeTask.TRANSFER: self.transfer, NodeTask.STATISTICS: self.call,
        }  # fmt: skip
        for task, verb in verbs.items():
            celery.task(name=task.value, shared=False)(_function(verb))

    def join(self, cpus=4.0, memory=16 * GB, **options) -> None:
        """Register the node, alive from now on."""
        record = NodeRecord(
            self.node_id, cpus, memory, deployment="local", host_name="host", host_ip="127.0.0.1", **options
        )
        self.stores.nodes.register(self.node_id, "token", record, time.time())

    def vanish(self) -> None:
        """Fall silent."""
        self.stores.nodes.heartbeat(self.node_id, "token", time.time() - 1000)

    def start(self, call_id: str) -> None:
        call = self.stores.results.take(call_id, time.time())
        if call is None:
            return
        self.ran.append(call_id)
        image = call.body.get("image")  # a restart names none
        if image == "slow":
            self.held.append(call)
        elif image == "missing":
            self._fail_start(call)
        else:
            self._started(call)

    def release(self) -> None:
        """Let slow starts come up."""
        for call in self.held:
            self._started(call)
        self.held.clear()

    def _fail_start(self, call: Call) -> None:
        now, text = time.time(), "no such image: missing"
        self.stores.sandboxes.set_phase(
            call.sandbox_id, PhaseName.IMAGE_PULL, PhaseStatus.FAILED, text, now, call.call_id
        )
        self.stores.sandboxes.transition(
            call.sandbox_id,
            [State.PENDING],
            State.STOPPED,
            Event.START_FAILED,
            now,
            only_start=call.call_id,
            reason=text,
        )
        self.stores.results.fail(call.call_id, ImageNotFound(text), now)

    def _started(self, call: Call) -> None:
        moved = self.stores.sandboxes.transition(
            call.sandbox_id, [State.PENDING], State.RUNNING, Event.STARTED, time.time(), only_start=call.call_id
        )
        answer = (
            success({"sandbox_id": call.sandbox_id}) if moved else SandboxGone("stopped while starting").to_envelope()
        )
        self.stores.results.complete(call.call_id, answer, time.time())

    def stop(self, call_id: str) -> None:
        call = self.stores.results.take(call_id, time.time())
        if call is None:
            return
        self.ran.append(call_id)
        self.stores.sandboxes.transition(
            call.sandbox_id, [State.RUNNING], State.STOPPED, Event.STOP, time.time(), only_start=call.life
        )
        self.stores.results.complete(call_id, success(f"Sandbox {call.sandbox_id} is stopped"), time.time())

    def delete(self, call_id: str) -> None:
        call = self.stores.results.take(call_id, time.time())
        if call is None:
            return
        self.ran.append(call_id)
        self.stores.sandboxes.transition(call.sandbox_id, [State.STOPPED], State.DELETED, Event.DELETE, time.time())
        self.stores.results.complete(call_id, success(f"Sandbox {call.sandbox_id} is deleted"), time.time())

    def commit(self, call_id: str) -> None:
        call = self.stores.results.take(call_id, time.time())
        if call is not None:
            self.ran.append(call_id)
            self.held.append(call)

    def fork(self, call_id: str) -> None:
        call = self.stores.results.take(call_id, time.time())
        if call is not None:
            self.ran.append(call_id)
            made = [{"sandbox_id": f"{call_id}{number}"} for number in range(call.body["count"])]
            self.stores.results.complete(call_id, success({"sandboxes": made}), time.time())

    def finish_commit(self, error: RockError | None = None) -> None:
        """End the commit that is held, as a node's thread would."""
        call, now = self.held.pop(), time.time()
        record = self.stores.sandboxes.get(call.sandbox_id)
        begun = Commit.of(record)
        ended = begun.failed(error, "push", "LOGIN_FAILED", now) if error else begun.succeeded(now)
        self.stores.sandboxes.set_commit(record, ended)
        if not error:
            name = commit_name(self.prefix, self.node_id, call.owner, begun.image_tag)
            self.stores.images.note(begun.image_tag, Home(self.node_id, call.owner, now, name=name))
        self.stores.results.complete(call.call_id, success(to_commit(call.sandbox_id, ended)), now)

    def image(self, call_id: str) -> None:
        """Fetch an image, unless it is `missing` (fails) or `slow` (is held); or remove it, if it is `here`."""
        call = self.stores.results.take(call_id, time.time())
        if call is None:
            return
        self.ran.append(call_id)
        name = call.body["image"]
        if call.route == "remove_image":
            if home := self.stores.images.home(name, self.node_id):
                self.stores.images.forget(name, home)
            self.stores.results.complete(call_id, success({"removed": name == "here"}), time.time())
        elif name == "slow":
            self.stores.images.tell(call_id, "pulling slow: 1 of 2 layers")
        elif name == "missing":
            self.stores.results.fail(call_id, ImageNotFound("no such image: missing"), time.time())
        else:
            self.stores.results.complete(call_id, success({"message": f"image {name} is on the node"}), time.time())

    def call(self, call_id: str) -> None:
        call = self.stores.results.take(call_id, time.time())
        if call is None:
            return
        self.ran.append(call_id)
        word, _, rest = str(call.body.get("command", "")).partition(" ")
        if word == "hang":
            return
        delay = float(rest) if word == "sleep" else 0
        thread = threading.Thread(target=self._finish, args=(call, word, rest, delay))
        thread.start()
        self.threads.append(thread)
        if not delay:
            thread.join()

    def _finish(self, call: Call, word: str, rest: str, delay: float) -> None:
        time.sleep(delay)
        if word == "exit":
            envelope = CommandFailed(f"exit code {rest}", exit_code=int(rest), output="out").to_envelope()
        elif call.route == "upload":
            envelope = self._kept(call, base64.b64decode(call.body["content_base64"]))
        elif call.route == "read_file":
            envelope = success({"content": "ü\ud800\x00" + "x" * int(call.body["path"].rsplit("/", 1)[1])})
        else:
            envelope = success({"output": rest, "exit_code": 0})
        self.stores.results.complete(call.call_id, envelope, time.time())

    def transfer(self, call_id: str) -> None:
        call = self.stores.results.take(call_id, time.time())
        if call is not None:
            self.moved.append(call_id)
            thread = threading.Thread(target=self._receive, args=(call,))
            thread.start()
            self.threads.append(thread)

    def _receive(self, call: Call) -> None:
        if call.body["target_path"] == "/refused":
            self.stores.results.fail(call.call_id, CommandFailed("/refused: Read-only file system"), time.time())
            return
        receiver, data = self.blobs.receiver(call.call_id), bytearray()
        while chunk := receiver.pull(10):
            data += chunk
        self.stores.results.complete(call.call_id, self._kept(call, bytes(data)), time.time())

    def _kept(self, call: Call, data: bytes) -> dict:
        assert hashlib.sha256(data).hexdigest() == call.body["sha256"]
        self.uploads[call.body["target_path"]] = data
        return success({"success": True, "message": "", "file_name": call.body["file_name"]})

    def cancel(self, call_id: str) -> None:
        self.stores.results.fail(call_id, Cancelled("cancelled"), time.time())
