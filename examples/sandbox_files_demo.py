"""Files in and out of a sandbox: text, any file, a whole folder.

rock admin start --detach
python examples/sandbox_files_demo.py
"""

import asyncio
import tempfile
from pathlib import Path

from rock.actions import Command, ReadFileRequest
from rock.sdk.sandbox.client import Sandbox
from rock.sdk.sandbox.config import SandboxConfig


async def move_files(sandbox: Sandbox, local: Path) -> None:
    """Send files of a local folder to a started sandbox, and fetch what it makes of them.

    Params:
        sandbox: a started one.
        local: a folder to work in.
    """
    remote = (await sandbox.execute(Command(command=["mktemp", "-d"]))).stdout.strip()

    await sandbox.write_file_by_path("print(6 * 7)\n", f"{remote}/answer.py")
    read = await sandbox.read_file(ReadFileRequest(path=f"{remote}/answer.py"))
    print("a text file:", read.content.strip())

    (local / "data.bin").write_bytes(bytes(range(256)) * 1000)
    await sandbox.upload_by_path(local / "data.bin", f"{remote}/data.bin")
    size = await sandbox.arun(f"stat -c %s {remote}/data.bin")
    print("an uploaded file:", size.output, "bytes")

    project = local / "project"
    (project / "empty").mkdir(parents=True)
    (project / "run.sh").write_text("#!/bin/sh\necho the project runs\n")
    (project / "run.sh").chmod(0o755)
    (project / "start").symlink_to("run.sh")
    await sandbox.fs.upload_dir(project, f"{remote}/project")
    ran = await sandbox.arun(f"cd {remote}/project && ls && ./start > result.txt")
    print("an uploaded folder:", ran.output.split())

    await sandbox.fs.download_file(f"{remote}/project/result.txt", local / "result.txt")
    print("a downloaded file:", (local / "result.txt").read_text().strip())
    await sandbox.execute(Command(command=["rm", "-rf", remote]))


async def main() -> None:
    """Do it in a sandbox of python:3.11 at ROCK_BASE_URL."""
    async with Sandbox(SandboxConfig(image="python:3.11", memory="2g", cpus=1.0)) as sandbox:
        with tempfile.TemporaryDirectory() as folder:
            await move_files(sandbox, Path(folder))


if __name__ == "__main__":
    asyncio.run(main())
