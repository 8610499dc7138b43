"""The client works with what `pip install .` brings: the server's packages, ours and others', are not there for it."""

import importlib.metadata
import json
import subprocess
import sys

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.service_stack import ROOT

SMOKE = """
import asyncio
from rock.actions import CreateBashSessionRequest
from rock.sdk.sandbox.client import Sandbox, SandboxGroup
from rock.sdk.sandbox.config import SandboxConfig
from rock.sdk.envhub import EnvHubClient
from rock.rollout import RockSandbox
import rock


async def main():
    async with Sandbox(SandboxConfig(image="python:3.11", memory="64m", cpus=0.05)) as sandbox:
        await sandbox.create_session(CreateBashSessionRequest(session="bash-1"))
        print((await sandbox.arun(cmd="echo Hello Rock", session="bash-1")).output)


asyncio.run(main())
"""
CLI = """
import sys
sys.argv[0] = "rock"
from rock.cli.main import cli
cli(prog_name="rock")
"""


@pytest.fixture(scope="module")
def client(server, tmp_path_factory):
    """A function that runs a script where nothing is installed but the client: what it needs without extras, and what that needs."""
    site = tmp_path_factory.mktemp("site")
    wanted, seen = ["rock-on-celery"], {"rock-on-celery"}
    while wanted:
        found = importlib.metadata.distribution(wanted.pop())
        for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
            if not (site / top).exists() and "__editable__" not in top:
                (site / top).symlink_to(found.locate_file(top))
        for text in found.requires or ():
            requirement = Requirement(text)
            name = canonicalize_name(requirement.name)
            if name not in seen and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
                seen.add(name)
                wanted.append(name)
    (site / "rock").symlink_to(ROOT / "sdk" / "rock")

    def run(script, *arguments):
        return subprocess.run(
            [sys.executable, "-S", "-c", script, *arguments], cwd=site, text=True, capture_output=True, timeout=90,
            env={**server.environment(), "PYTHONPATH": str(site)},
        )  # fmt: skip

    return run


def test_the_smoke_test_runs(client):
    seen = client(SMOKE)
    assert (seen.stdout, seen.stderr, seen.returncode) == ("Hello Rock\n", "", 0)


def test_the_command_line_works_and_says_what_the_rest_needs(client):
    seen = client(CLI, "sandbox", "run", "--cpus", "0.1", "x", "echo", "hi")
    assert (seen.stdout, seen.returncode) == ("hi\n", 0), seen.stderr
    assert json.loads(client(CLI, "node", "ls", "--json").stdout)["nodes"]
    admin = client(CLI, "admin", "status")
    assert admin.returncode == 1 and "rock-on-celery[server]" in admin.stderr and "Traceback" not in admin.stderr


def test_importing_rock_loads_nothing_else():
    probe = "import sys; before = set(sys.modules); import rock; print(sorted(set(sys.modules) - before))"
    seen = subprocess.run([sys.executable, "-c", f"import typing, __future__\n{probe}"], capture_output=True, text=True)
    assert seen.stdout == "['rock']\n", seen.stderr
