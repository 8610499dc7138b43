"""The jobs that move files, and the choice of a job for a call. Pure, as workers/jobs.py."""

from __future__ import annotations

import base64
from functools import cached_property

from app.calls import Call, Route
from rock.actions import ReadFileRequest, ReadFileResponse, UploadResponse, WriteFileResponse, load
from rock.errors import BadRequest, NotFound, RockError
from workers import scripts
from workers.jobs import ExecuteJob, Job, Outcome, RunJob, stopped
from workers.output_job import OutputJob
from workers.session_jobs import CloseJob, OpenJob
from workers.terminal_jobs import InputJob, TalkJob, TerminalJob


class FileJob(Job):
    """What the file calls share: a script of ours that names its reason on stderr."""

    is_file = True

    def __init__(self, call: Call, path: str) -> None:
        super().__init__(call)
        self.path = path
        self.timeout = 120.0

    def failure(self, outcome: Outcome) -> RockError | None:
        """Return the error of a file script, None if it went well."""
        if outcome.stopped:
            return stopped(outcome, self.timeout)
        if outcome.exit_code == 0:
            return None
        reason = scripts.reason(outcome.stderr.text()) or f"exit code {outcome.exit_code}"
        text = f"path {self.path!r} in sandbox {self.call.sandbox_id}: {reason}"
        kind = NotFound if outcome.exit_code == scripts.NO_FILE else BadRequest
        return kind(text, sandbox_id=self.call.sandbox_id, path=self.path)


class ReadFileJob(FileJob):
    """read_file."""

    def __init__(self, call: Call, limit: int) -> None:
        """`limit`: bytes that an answer may carry."""
        self.request = load(ReadFileRequest, call.body)
        super().__init__(call, self.request.path)
        self.limit = limit

    def script(self) -> bytes:
        """Return the script that prints the file."""
        return scripts.read_file(self.request, self.limit)

    def answer(self, outcome: Outcome) -> object:
        """Return the text. Raises NotFound, or BadRequest (a folder, too large, not in that encoding)."""
        error = self.failure(outcome)
        if error:
            raise error
        data = outcome.stdout.raw()
        if len(data) > self.limit or outcome.stdout.omitted:
            raise BadRequest(
                f"path {self.path!r}: the file is larger than {self.limit} bytes; read it in parts with execute",
                path=self.path,
            )
        encoding = self.request.encoding or "utf-8"
        try:
            return ReadFileResponse(content=data.decode(encoding, self.request.errors or "strict"))
        except LookupError as error:
            raise BadRequest(f"encoding or errors: {error}", field="encoding") from error
        except UnicodeDecodeError as error:
            hint = 'pass errors="replace", or encoding="latin-1" for bytes'
            raise BadRequest(
                f"path {self.path!r} is not {encoding} text (byte {error.start}); {hint}", path=self.path
            ) from error


class WriteFileJob(FileJob):
    """write_file, and an upload that is small enough for the relay."""

    def __init__(self, call: Call) -> None:
        super().__init__(call, call.body["path"] if call.route == Route.WRITE_FILE else call.body["target_path"])

    @cached_property
    def _data(self) -> bytes:
        if self.call.route == Route.UPLOAD:
            return base64.b64decode(self.call.body["content_base64"])
        return str(self.call.body["content"]).encode("utf-8")

    @cached_property
    def _small(self) -> bool:
        return len(self._data) <= scripts.SMALL and b"\0" not in self._data

    def script(self) -> bytes:
        """Return the script that stores its stdin."""
        if self._small:
            return scripts.write_small(self.path, self._data)
        return scripts.write_file(self.path, self.id)

    def stdin(self) -> bytes | None:
        """Return the content, unless the script holds it."""
        return None if self._small else self._data

    def answer(self, outcome: Outcome) -> object:
        """Return the response of the route. Raises BadRequest with the reason."""
        error = self.failure(outcome)
        if error:
            raise error
        if self.call.route == Route.UPLOAD:
            name = self.call.body.get("file_name", "")
            return UploadResponse(success=True, message=f"uploaded to {self.path}", file_name=name)
        return WriteFileResponse(success=True, message=f"wrote {self.path}")


def make_job(call: Call, read_limit: int) -> Job:
    """Return the job of a call that goes over the relay. Raises BadRequest for any other route or a bad body."""
    match call.route:
        case Route.RUN_IN_SESSION:
            talks = call.body.get("is_interactive_command") or call.body.get("is_interactive_quit")
            return TalkJob(call) if talks else RunJob(call)
        case Route.TERMINAL:
            return TerminalJob(call)
        case Route.TERMINAL_INPUT:
            return InputJob(call)
        case Route.CREATE_SESSION:
            return OpenJob(call)
        case Route.CLOSE_SESSION:
            return CloseJob(call)
        case Route.EXECUTE:
            return ExecuteJob(call)
        case Route.READ_FILE:
            return ReadFileJob(call, read_limit)
        case Route.WRITE_FILE | Route.UPLOAD:
            return WriteFileJob(call)
        case Route.OUTPUT:
            return OutputJob(call)
    raise BadRequest(f"route {call.route!r} is not a command")
