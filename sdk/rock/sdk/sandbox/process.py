"""`Sandbox.process`: whole scripts."""

from __future__ import annotations

import shlex
import uuid

from rock.actions import BashObservation, Command
from rock.sdk.sandbox.files import FileVerbs
from rock.sdk.sandbox.sessions import RunMode


class Process:
    """Scripts in a sandbox.

    Params:
        sandbox: where they run.
    """

    def __init__(self, sandbox: FileVerbs) -> None:
        self._sandbox = sandbox

    async def execute_script(
        self,
        script_content: str,
        script_name: str | None = None,
        wait_timeout: float | None = 300,
        wait_interval: float = 10,
        cleanup: bool = True,
    ) -> BashObservation:
        """Write a bash script to /tmp, run it, and return its output and exit code.

        Params:
            script_content: the script.
            script_name: its file name below /tmp; None: one that no other has.
            wait_timeout: seconds after which it is ended; None: never.
            wait_interval: not needed; existing callers pass it.
            cleanup: whether the file is removed in the end.
        Raises:
            CallerFault, ServiceFault: the script did not run, or its end is unknown.
        """
        path = f"/tmp/{script_name or f'rock-{uuid.uuid4().hex}.sh'}"
        await self._sandbox.write_file_by_path(script_content, path)
        try:
            command = shlex.join(["bash", path])
            return await self._sandbox.arun(command, mode=RunMode.NOHUP, wait_timeout=wait_timeout)
        finally:
            if cleanup:
                await self._sandbox.execute(Command(command=["rm", "-f", "--", path], timeout=60))
