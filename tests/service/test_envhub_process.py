"""`rock envhub` on the real service: the commands, and what a kill of the server costs (nothing)."""

import json
import os
import signal
import subprocess
import sys

from click.testing import CliRunner

from rock.cli.main import cli
from rock.sdk import loop
from rock.sdk.envhub import EnvHubClient, EnvHubClientConfig
from tests.service_stack import ROOT, free_port
from tests.wire import until


def hub_of(stack):
    return EnvHubClient(EnvHubClientConfig(stack.envhub_url))


def test_the_commands(server):
    def rock(*arguments):
        return CliRunner().invoke(cli, ["envhub", *arguments], env=server.environment())

    made = rock("register", "cli:env", "image:1", "--tag", "a", "--extra-spec", '{"cpus": 1}', "--json")
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["extra_spec"] == {"cpus": 1}
    assert [entry["env_name"] for entry in json.loads(rock("ls", "--tag", "a", "--json").stdout)] == ["cli:env"]
    assert "cli:env\timage:1" in rock("ls").stdout
    assert "image: image:1" in rock("get", "cli:env").stdout
    assert rock("rm", "cli:env").exit_code == 0
    for verb in ("get", "rm"):
        absent = rock(verb, "cli:env")
        assert (absent.exit_code, absent.stdout) == (1, "") and "not registered" in absent.stderr
    assert rock("register", "e", "i", "--extra-spec", "{").exit_code == 2
    doubtful = rock("register", "e", "i", "--extra-spec", '{"limit_cpus": "two"}')
    assert doubtful.exit_code == 0 and "GEM will not run" in doubtful.stderr and "limit_cpus" in doubtful.stderr
    assert rock("rm", "e").exit_code == 0


def test_a_kill_loses_nothing_and_the_client_does_not_notice(server):
    hub = hub_of(server)
    until(lambda: "envhub" in server.pids(), what="its start")
    for number in range(3):
        assert loop.run(hub.register(f"kill:{number}", "image:1")).image == "image:1"
        os.kill(server.pids()["envhub"].pid, signal.SIGKILL)
    assert {f"kill:{number}" for number in range(3)} <= {entry.env_name for entry in loop.run(hub.list_envs())}


def test_alone_beside_the_other_on_one_file(server, tmp_path):
    """`rock envhub start`, with the file of an EnvHub that runs: both write."""
    port, variables = free_port(), server.environment()
    argv = [sys.executable, "-m", "rock.cli", "envhub", "start", "--port", str(port)]
    with (tmp_path / "log").open("wb") as log:
        alone = subprocess.Popen(argv, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        other = EnvHubClient(EnvHubClientConfig(f"http://127.0.0.1:{port}"))
        assert loop.run(other.register("both:1", "image:1")).image == "image:1"
        assert loop.run(hub_of(server).register("both:1", "image:2")).image == "image:2"
        assert loop.run(other.get_env("both:1")).image == "image:2"
    finally:
        alone.terminate()
        assert alone.wait(20) == 0, (tmp_path / "log").read_text()


def test_a_second_service_on_the_same_port_uses_the_first_ones(server, make_stack):
    second = make_stack(envhub_port=server.envhub_port).start()
    assert set(second.pids()) == {"supervisor", "redis", "api", "worker", "lifecycle", "beat"}
    assert "no EnvHub is started" in second.log()
    second.stop()
