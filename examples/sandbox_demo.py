"""A sandbox, a bash session in it, and two commands that share it.

rock admin start --detach
python examples/sandbox_demo.py
"""

import asyncio

from rock.actions import CreateBashSessionRequest
from rock.sdk.sandbox.client import Sandbox
from rock.sdk.sandbox.config import SandboxConfig


async def run_sandbox() -> None:
    """Start a sandbox of python:3.11 at ROCK_BASE_URL, talk to it, stop it."""
    config = SandboxConfig(image="python:3.11", memory="2g", cpus=1.0)
    sandbox = Sandbox(config)
    await sandbox.start()
    try:
        print(f"sandbox {sandbox.sandbox_id} on {sandbox.host_name}")
        await sandbox.create_session(CreateBashSessionRequest(session="bash-1"))
        observation = await sandbox.arun(cmd="echo Hello Rock", session="bash-1")
        print(observation.output)
        # A session keeps its folder and variables from one command to the next; a failing command is no exception.
        await sandbox.arun(cmd="cd /tmp && greeting='still here'", session="bash-1")
        observation = await sandbox.arun(
            cmd='echo "$greeting in $PWD"; exit_with() { return "$1"; }; exit_with 3', session="bash-1"
        )
        print(observation.output, f"(exit code {observation.exit_code})")
    finally:
        await sandbox.stop()


if __name__ == "__main__":
    asyncio.run(run_sandbox())
