"""Files in a sandbox: text by value, anything else by upload and download."""

from __future__ import annotations

import asyncio
import contextlib
import mimetypes
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import aiohttp

from rock import archive, errors
from rock.actions import (
    BashObservation,
    ChmodRequest,
    ChownRequest,
    Command,
    CommandResponse,
    FileResponse,
    ReadFileRequest,
    ReadFileResponse,
    UploadRequest,
    UploadResponse,
    WriteFileRequest,
    WriteFileResponse,
    parse,
)
from rock.sdk.progress import OnProgress, opened
from rock.sdk.sandbox.sessions import SessionVerbs
from rock.sdk.transport import new_request_id

_NAMED = 10
"""How many of the files that were left out a message names."""


class FileVerbs(SessionVerbs):
    """Verbs that move file contents."""

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        """Return a file's content as text.

        Raises:
            NotFound: there is no such file.
            BadRequest: it is a folder, or not text in that encoding.
        """
        return await self.send(ReadFileResponse, "/read_file", request)

    async def read_file_by_line_range(
        self,
        file_path: str,
        start_line: int | None = None,
        end_line: int | None = None,
        lines_per_request: int = 1000,
        session: str | None = None,
    ) -> ReadFileResponse:
        """Return lines of a text file, with their ends.

        Params:
            start_line, end_line: the first and the last, from 1; None: the file's first and last.
            lines_per_request, session: not needed, one command reads them all; existing callers pass them.
        Raises:
            BadRequest: start_line is below 1, or end_line before it.
            CommandFailed: the file is not there, or cannot be read.
        """
        first = 1 if start_line is None else start_line
        if first < 1 or (end_line is not None and end_line < first):
            raise errors.BadRequest(f"lines {first} to {end_line} are none: they begin at 1 and go up")
        # Neither adds a newline to a last line that has none, and what comes after the last line is not read.
        command = ["tail", "-n", f"+{first}", "--", file_path]
        if end_line is not None:
            script = 'head -n "$2" -- "$3" | tail -n "+$1"'
            command = ["bash", "-o", "pipefail", "-c", script, "bash", str(first), str(end_line), file_path]
        done = await self.execute(Command(command=command, timeout=300))
        if done.exit_code != 0:
            raise errors.CommandFailed(f"{file_path}: {done.stderr.strip()}", exit_code=done.exit_code)
        return ReadFileResponse(content=done.stdout)

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        """Write text to a file, making the folders above it.

        Raises:
            RockError: it could not be written; the message says why.
        """
        return await self.send(WriteFileResponse, "/write_file", request)

    async def write_file_by_path(self, content: str, path: str) -> WriteFileResponse:
        """Write content to the file at path; otherwise as `write_file`."""
        return await self.write_file(WriteFileRequest(content=content, path=path))

    async def upload(self, request: UploadRequest) -> UploadResponse:
        """Send a local file to the sandbox; as `upload_by_path`."""
        return await self.upload_by_path(request.source_path, request.target_path)

    async def upload_by_path(
        self,
        file_path: str | Path,
        target_path: str,
        upload_mode: str = "auto",
        *,
        on_progress: OnProgress | None = None,
    ) -> UploadResponse:
        """Send the local file at file_path to target_path in the sandbox; it is streamed, not held in memory.

        Params:
            upload_mode: not needed, there is one way; existing callers pass it.
            on_progress: called with the bytes that have been read so far, and how many there are.
        Raises:
            FileNotFoundError, IsADirectoryError, PermissionError: the local file cannot be read.
            RockError: it could not be written in the sandbox.
        """
        source = Path(file_path)
        fields = {"sandbox_id": self.required_id(), "target_path": target_path, "request_id": new_request_id()}
        with source.open("rb"):
            pass  # a file that cannot be read should fail here, not in the middle of a request

        def form() -> aiohttp.FormData:
            """Return a fresh body: the fields first, so that the service knows where the file goes as it arrives."""
            data = aiohttp.FormData()
            for name, value in fields.items():
                data.add_field(name, value)
            kind = mimetypes.guess_type(source.name)[0] or "application/octet-stream"
            # aiohttp closes the file when the body is sent or given up.
            data.add_field("file", opened(source, on_progress), filename=source.name, content_type=kind)
            return data

        return parse(UploadResponse, await self.transport.upload("/upload", form))


class FileSystem:
    """`Sandbox.fs`: helpers over `execute`, `upload` and downloads.

    Params:
        sandbox: whose files.
    """

    def __init__(self, sandbox: FileVerbs) -> None:
        self._sandbox = sandbox

    async def upload_dir(
        self,
        source_dir: str | Path,
        target_dir: str,
        extract_timeout: float = 600,
        *,
        merge: bool = False,
        on_progress: OnProgress | None = None,
    ) -> BashObservation:
        """Replace the contents of target_dir in the sandbox by those of a local folder, sent as one archive.

        Dotfiles, empty folders, modes and links come along; a target_dir that is there keeps its own mode and owner.

        Params:
            source_dir: the local folder.
            target_dir: absolute; what was in it is removed.
            extract_timeout: seconds to unpack.
            merge: keep what is in target_dir, and replace only files of the same name.
            on_progress: as for `upload_by_path`, of the archive.
        Raises:
            NotADirectoryError, OSError: source_dir is no folder, or cannot be read.
            CommandFailed: it could not be unpacked (the image has no `tar`, the disk is full).
        """
        packed = f"/tmp/rock-{uuid.uuid4().hex}.tar"
        command = archive.unpack_command(packed, target_dir, merge=merge)
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder) / "upload.tar"
            await asyncio.to_thread(archive.pack, Path(source_dir), local)
            await self._sandbox.upload_by_path(local, packed, on_progress=on_progress)
        done = await self._run(command, extract_timeout, f"{target_dir} was not unpacked")
        return BashObservation(output=done.stdout + done.stderr, exit_code=0)

    async def download_file(
        self, remote_path: str, local_path: str | Path, *, on_progress: OnProgress | None = None
    ) -> FileResponse:
        """Copy a file of the sandbox to a local path, byte for byte; the folders above it are made. It is streamed.

        Params:
            on_progress: called with the bytes that have come so far, and None.
        Raises:
            NotFound: there is no such file.
            BadRequest: it is a folder, or cannot be read.
            Unavailable: the connection broke; local_path is as it was.
        """
        target = Path(local_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
        try:
            size = await self._fetch(remote_path, part, on_progress, archive=False)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        return FileResponse(success=True, message=f"{remote_path} was copied to {target} ({size} bytes)")

    async def download_dir(
        self, remote_dir: str, local_dir: str | Path, *, on_progress: OnProgress | None = None
    ) -> FileResponse:
        """Copy the contents of a folder of the sandbox into a local folder, which is made; files of the same name are replaced.

        Links and the modes of files come along, owners do not. What leads out of the folder (a link to an absolute path) is left out.

        Params:
            on_progress: as for `download_file`, of the archive.
        Returns:
            Its message names what was left out, the first ten.
        Raises:
            NotFound: there is no such folder.
            BadRequest: it is a file, cannot be read, or the image has no `tar`.
        """
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder) / "download.tar"
            size = await self._fetch(f"{remote_dir.rstrip('/')}/.", local, on_progress, archive=True)
            left_out = await asyncio.to_thread(archive.unpack, local, Path(local_dir))
        more = f"; and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else ""
        without = f"; left out: {'; '.join(left_out[:_NAMED])}{more}" if left_out else ""
        return FileResponse(success=True, message=f"{remote_dir} was copied to {local_dir} ({size} bytes){without}")

    async def _fetch(self, path: str, target: Path, on_progress: OnProgress | None, *, archive: bool) -> int:
        """Write what the service sends of a path into a local file; return how many bytes."""
        where = f"/sandboxes/{quote(self._sandbox.required_id(), safe='')}/download"
        parts = self._sandbox.transport.download(where, {"path": path, "archive": str(archive).lower()})
        size = 0
        async with contextlib.aclosing(parts):
            with target.open("wb") as file:
                async for part in parts:
                    file.write(part)
                    size += len(part)
                    if on_progress:
                        on_progress(size, None)
        return size

    async def chown(self, request: ChownRequest) -> FileResponse:
        """Give paths to a user and the group of that name.

        Raises:
            CommandFailed: no such user or path.
            BadRequest: no path is named.
        """
        user = request.remote_user
        return await self._change("chown", f"{user}:{user}", request.paths, request.recursive)

    async def chmod(self, request: ChmodRequest) -> FileResponse:
        """Set the mode of paths.

        Raises:
            CommandFailed: a bad mode or path.
            BadRequest: no path is named.
        """
        return await self._change("chmod", request.mode, request.paths, request.recursive)

    async def _change(self, program: str, value: str, paths: Sequence[str], recursive: bool) -> FileResponse:
        """Run chown or chmod on paths."""
        if not paths:
            raise errors.BadRequest("paths must name at least one path")
        command = [program, *(["-R"] if recursive else []), "--", value, *paths]
        await self._run(command, 300, f"{program} failed")
        return FileResponse(success=True, message=f"{program} {value}: {', '.join(paths)}")

    async def _run(self, command: list[str], timeout: float, what: str) -> CommandResponse:
        """Run a command that must succeed; raises CommandFailed that begins with what and ends with its complaint."""
        done = await self._sandbox.execute(Command(command=command, timeout=timeout))
        if done.exit_code != 0:
            said = done.stderr.strip() or f"exit code {done.exit_code}"
            raise errors.CommandFailed(f"{what}: {said}", exit_code=done.exit_code, output=done.stdout)
        return done
