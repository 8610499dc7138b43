"""Large uploads: streamed from Redis into a process in the sandbox, beside the keeper, with flat memory."""

from __future__ import annotations

from collections.abc import Iterator

from app.blobs import BlobReceiver, BlobStore
from app.calls import Call
from app.results import ResultStore
from rock.actions import UploadResponse, dump
from rock.errors import BadRequest, Internal, NotFound, success
from workers import scripts
from workers.deployments.abstract import AbstractDeployment

BLOB_TIMEOUT = 60.0
"""Seconds without a chunk after which an upload counts as abandoned."""


class Transfers:
    """Carries out uploads."""

    def __init__(self, results: ResultStore, blobs: BlobStore, deployment: AbstractDeployment) -> None:
        self._results, self._blobs, self._deployment = results, blobs, deployment

    def upload(self, call: Call) -> None:
        """Stream the file of a call into its sandbox, and answer the call. Errors: BadRequest, NotFound (the path), SandboxGone."""
        path = str(call.body["target_path"])
        script = "f() {\n" + scripts.write_file(path, call.call_id[:10]).decode() + "\n}\nf"
        receiver = self._blobs.receiver(call.call_id)
        argv = ["bash", "--noprofile", "--norc", "-c", script]
        try:
            with self._deployment.exec_stream(call.sandbox_id, argv, stdin=_chunks(receiver)) as stream:
                for _ in stream:  # the script prints nothing; reading drives it to its end
                    pass
        finally:
            self._blobs.drop(call.call_id)
        if stream.exit_code:
            reason = (
                scripts.reason(stream.stderr.decode("utf-8", "backslashreplace")) or f"exit code {stream.exit_code}"
            )
            text = f"path {path!r} in sandbox {call.sandbox_id}: {reason}"
            raise NotFound(text) if stream.exit_code == scripts.NO_FILE else BadRequest(text, path=path)
        name = str(call.body.get("file_name", ""))
        answer = UploadResponse(success=True, message=f"uploaded to {path}", file_name=name)
        self._results.complete(call.call_id, success(dump(answer)), self._results.clock())

    def give_up(self, call_id: str) -> None:
        """An upload whose receiver died half-way cannot go on; the caller sends it again under a new id."""
        error = Internal("the upload was cut off when the node's process ended; send it again under a new request_id")
        self._results.fail(call_id, error, self._results.clock())


def _chunks(receiver: BlobReceiver) -> Iterator[bytes]:
    while chunk := receiver.pull(BLOB_TIMEOUT):
        yield chunk
