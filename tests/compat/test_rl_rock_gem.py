"""The third-party client rl-rock, unchanged, against EnvHub and GEM: it registers an environment and plays Sokoban."""

import json
import subprocess
from pathlib import Path

import pytest

from rock import settings
from scripts import gem
from tests.wire import send, until

SESSION = Path(__file__).with_name("third_party_gem.py")
SOKOBAN = "game:Sokoban-v0-easy"


@pytest.fixture(scope="module")
def facts(server, rl_rock_python, tmp_path_factory):
    """What the session saw."""
    until(lambda: "envhub" in server.pids(), what="EnvHub's start")
    until(lambda: _answers(server.envhub_url), what="EnvHub's answer")
    found = {"ROCK_BASE_URL": server.url, "ROCK_ENVHUB_BASE_URL": server.envhub_url}
    done = subprocess.run(
        [str(rl_rock_python), str(SESSION), str(gem.ensure())],
        env={**settings.inherited(["PATH", "HOME", "LANG"]), **found},
        cwd=tmp_path_factory.mktemp("compat-gem"),
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])


def _answers(url):
    try:
        return send(url, "GET", "/health").status == 200
    except ConnectionError:
        return False


def test_envhub(facts):
    assert facts["health"] == {"status": "ok"}
    assert facts["registered"] is True
    assert facts["listed"] == [SOKOBAN]
    assert {SOKOBAN, "gone"} - set(facts["everything"]) == {"gone"}
    assert facts["deleted"] == [True, False]
    assert "404" in facts["absent"]


def test_it_plays_sokoban(facts):
    assert facts["reset"] == ["str", True]
    observation, reward, terminated, truncated = facts["step"]
    assert observation.startswith("At turn 1") and (reward, terminated, truncated) == (0.0, False, False)
    assert "404" in facts["unknown"] and "did you mean" in facts["unknown"]
