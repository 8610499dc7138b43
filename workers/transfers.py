"""Large files: streamed through Redis between an API process and a process in the sandbox, beside the keeper, with flat memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from app.blobs import CHUNK, BlobReceiver, BlobSender, BlobStore
from app.calls import Call, Route
from app.results import ResultStore
from rock.actions import UploadResponse, dump
from rock.errors import BadRequest, Cancelled, NotFound, RockError, Unavailable, success
from workers import scripts
from workers.deployments.abstract import AbstractDeployment, ExecStream

BLOB_TIMEOUT = 60.0
"""Seconds without a chunk after which a transfer counts as abandoned."""


class Transfers:
    """Carries out uploads and downloads."""

    def __init__(self, results: ResultStore, blobs: BlobStore, deployment: AbstractDeployment) -> None:
        self._results, self._blobs, self._deployment = results, blobs, deployment

    def move(self, call: Call) -> None:
        """Carry out the transfer of a call, and answer it. Errors: BadRequest, NotFound (the path), SandboxGone, Unavailable."""
        try:
            (self._download if call.route == Route.DOWNLOAD else self._upload)(call)
        except BaseException:
            self._blobs.drop(call.call_id)
            raise

    def _upload(self, call: Call) -> None:
        path = str(call.body["target_path"])
        receiver = self._blobs.receiver(call.call_id)
        with self._run(call, scripts.write_file(path, call.call_id[:10]), _chunks(receiver)) as stream:
            for _ in stream:  # the script prints nothing; reading drives it to its end
                pass
        self._blobs.drop(call.call_id)
        _check(stream, call, path)
        name = str(call.body.get("file_name", ""))
        answer = UploadResponse(success=True, message=f"uploaded to {path}", file_name=name)
        self._results.complete(call.call_id, success(dump(answer)), self._results.clock())

    def _download(self, call: Call) -> None:
        path = str(call.body["path"])
        script = scripts.send_archive(path) if call.body["archive"] else scripts.send_file(path)
        sender, size = self._blobs.sender(call.call_id), 0
        with self._run(call, script) as stream:
            for chunk in _gathered(stream):
                self._push(sender, chunk, call)
                size += len(chunk)
        _check(stream, call, path)
        self._push(sender, b"", call)
        self._results.complete(call.call_id, success({"size": size}), self._results.clock())

    def _run(self, call: Call, script: bytes, stdin: Iterable[bytes] | None = None) -> ExecStream:
        text = "f() {\n" + script.decode("utf-8", "surrogateescape") + "\n}\nf"
        argv = ["bash", "--noprofile", "--norc", "-c", text]
        return self._deployment.exec_stream(call.sandbox_id, argv, stdin=stdin)

    def _push(self, sender: BlobSender, chunk: bytes, call: Call) -> None:
        """Send a chunk (b"": the end) at the pace of who takes it, in short turns that notice when nobody does."""
        for _ in range(int(BLOB_TIMEOUT)):
            if sender.push(chunk, 1.0) if chunk else sender.finish(1.0):
                return
            if self._results.read(call.call_id) is not None:
                raise Cancelled("nobody takes the download any more")
        raise Unavailable(f"nobody took a part of the download for {BLOB_TIMEOUT:g} s")

    def give_up(self, call_id: str) -> None:
        """A transfer whose end here died half-way cannot go on; the caller begins it again under a new id."""
        error = Unavailable("the transfer was cut off when the node's process ended; try again under a new request_id")
        self._results.fail(call_id, error, self._results.clock())


def _check(stream: ExecStream, call: Call, path: str) -> None:
    """Raise what a file script that failed says about its path."""
    if stream.exit_code:
        said = stream.stderr.decode("utf-8", "backslashreplace")
        text = f"path {path!r} in sandbox {call.sandbox_id}: {scripts.reason(said) or f'exit code {stream.exit_code}'}"
        kind: type[RockError] = NotFound if stream.exit_code == scripts.NO_FILE else BadRequest
        raise kind(text, sandbox_id=call.sandbox_id, path=path)


def _chunks(receiver: BlobReceiver) -> Iterator[bytes]:
    while chunk := receiver.pull(BLOB_TIMEOUT):
        yield chunk


def _gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes in chunks of CHUNK: each one costs a round trip."""
    gathered = bytearray()
    for piece in pieces:
        gathered += piece
        if len(gathered) >= CHUNK:
            yield bytes(gathered)
            gathered.clear()
    if gathered:
        yield bytes(gathered)
