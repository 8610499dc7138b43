"""GEM and the service's processes: no process holds an environment, so any may answer, and any may be killed."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import rock
from scripts import gem
from tests.service_stack import ROOT

ENV, STEPS, MOVES = "game:Sokoban-v0-easy", 12, ("up", "left", "down", "right", "down")
PLAY = f"""
import json, sys
import gem
episodes = {{}}
for seed in range(int(sys.argv[1])):
    environment = gem.make({ENV!r})
    seen = [environment.reset(seed=seed)[1]["suffix"]]
    for number in range({STEPS}):
        seen.append([*environment.step("\\\\boxed{{%s}}" % {MOVES}[(seed + number) % 5])])
    episodes[seed] = seen
print(json.dumps(episodes))
"""
STAND_IN = "factory = type('F', (), {'DATASETS': {}})\n"


@pytest.fixture(scope="module")
def stack(make_stack):
    """A service with three API processes, whose EnvHub knows where gem-llm is."""
    # A busy machine needs longer than the tests allow otherwise to start a killed worker again.
    made = make_stack(variables={"ROCK_SERVER__WORKERS": "3", "ROCK_NODE__LOST_AFTER_SECONDS": "60"}).start()
    spec = json.dumps({"python": str(gem.ensure())})
    done = made.rock("envhub", "register", ENV, "any", "--extra-spec", spec)
    assert done.returncode == 0, done.stderr
    return made


def expected(episodes: int, folder: Path) -> dict[int, list]:
    """Return what gem-llm itself says to the same moves, played in a process of ours."""
    (folder / "reasoning_gym.py").write_text(STAND_IN)
    done = subprocess.run(
        [str(gem.PYTHON), "-c", PLAY, str(episodes)], env={"PYTHONPATH": str(folder)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {int(seed): seen for seed, seen in json.loads(done.stdout).items()}


def play(stack, seed: int, at_half=lambda: None) -> list:
    """Play an episode and return what was seen."""
    with rock.make(ENV, base_url=stack.url) as environment:
        seen = [environment.reset(seed=seed)[1]["suffix"]]
        for number in range(STEPS):
            if number == STEPS // 2:
                at_half()
            seen.append([*environment.step(f"\\boxed{{{MOVES[(seed + number) % 5]}}}")])
    return seen


def test_n03_twenty_at_once_over_several_processes_which_are_killed(stack, tmp_path):
    """N03: no answer is lost, none comes twice, none comes from another environment."""
    wanted = expected(20, tmp_path)

    def kill():
        for name in ("api", "worker"):
            pid = stack.pids()[name].pid
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            # An API process below gunicorn's master, which starts another; the node's session worker itself.
            os.kill(int(children[0]) if name == "api" else pid, signal.SIGKILL)

    with ThreadPoolExecutor(20) as pool:
        running = {seed: pool.submit(play, stack, seed, kill if seed == 7 else lambda: None) for seed in wanted}
    assert {seed: one.result() for seed, one in running.items()} == wanted


def test_the_example_plays_an_episode(stack):
    done = subprocess.run(
        [sys.executable, "examples/sokoban_demo.py"], cwd=ROOT, env=stack.environment(),
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "the episode ended after" in done.stdout and "total reward" in done.stdout
