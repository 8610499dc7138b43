"""`make demo`: the whole path once. Starts the service on free ports, runs the smoke test, stops it, leaves nothing."""

import asyncio
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rock import settings
from rock.actions import CreateBashSessionRequest
from rock.errors import RockError, ServiceFault
from rock.sdk.sandbox.client import Sandbox
from rock.sdk.sandbox.config import SandboxConfig
from scripts.steps import StepFailed, step

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Run the demo in a container if an engine and the image are to be had, else without; return the exit code."""
    with tempfile.TemporaryDirectory(prefix="rock-demo-") as folder:
        try:
            try:
                _run_with(folder, "auto")
            except ServiceFault as error:
                print(f"    no container here: {error}\n    the same without one (runtime local, no isolation):")
                _run_with(folder, "local")
        except (RockError, StepFailed) as error:
            print(f"the demo failed: {error}", file=sys.stderr)
            return 1
    print("Nothing is left running.")
    return 0


def _run_with(folder: str, runtime: str) -> None:
    """Start the service, use one sandbox, stop the service."""
    with _service(folder, runtime) as url:
        asyncio.run(_smoke_test(url))


async def _smoke_test(url: str) -> None:
    """Start a sandbox, say hello in it, stop it."""
    sandbox = Sandbox(SandboxConfig(image="python:3.11", memory="8g", cpus=2.0, base_url=url))
    with step("starting a sandbox of python:3.11"):
        await sandbox.start()
    try:
        status = await sandbox.get_status()
        print(f"    sandbox {sandbox.sandbox_id} runs on node {status.host_name}")
        with step("opening a bash session"):
            await sandbox.create_session(CreateBashSessionRequest(session="bash-1"))
        with step("running `echo Hello Rock` in it"):
            observation = await sandbox.arun(cmd="echo Hello Rock", session="bash-1")
        print(f"    {observation.output}")
    finally:
        with step("stopping the sandbox"):
            await sandbox.stop()
            await sandbox.close()


@contextmanager
def _service(folder: str, runtime: str) -> Iterator[str]:
    """The service on free ports, with its data in `folder`; yields its URL."""
    port, redis_port = _free_port(), _free_port()
    kept = {name: value for name, value in settings.with_prefix("").items() if not name.startswith("ROCK_")}
    ours = {"ROCK_DATA_DIR": folder, "ROCK_PORT": str(port), "ROCK_REDIS__PORT": str(redis_port)}
    ours["ROCK_ENVHUB__ENABLE"] = "false"  # no GEM in the demo
    # A node name of its own: a service that already runs here keeps its node, and its containers.
    variables = {**kept, **ours, "ROCK_RUNTIME": runtime, "ROCK_NODE_ID": f"demo-{port}"}
    variables["ROCK_RUNTIME__KEEP_STOPPED_SECONDS"] = "0"  # nothing is left on the engine
    with step("starting the service (Redis, API, workers, beat)"):
        print(_rock(["admin", "start", "--detach"], variables))
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        with step("stopping the service"):
            _rock(["admin", "stop"], variables)


def _rock(arguments: list[str], variables: dict[str, str]) -> str:
    """Run a `rock` command; return what it printed, indented.

    Raises:
        StepFailed: it failed; carries what it said.
    """
    done = subprocess.run(
        [sys.executable, "-m", "rock.cli", *arguments],
        cwd=ROOT,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise StepFailed(f"rock {' '.join(arguments)}: {done.stderr.strip()}")
    return "\n".join(f"    {line}" for line in done.stdout.splitlines())


def _free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
