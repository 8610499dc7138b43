"""An environment's process and the bash that drives it, as in a sandbox but without one: real bash, real pipes, a gem that misbehaves."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from app.gem import shell
from app.gem.environments import ACTION_LIMIT

FAKE = Path(__file__).with_name("fake_gem")
PLAN = {"env_id": "odd", "modules": [], "step_seconds": 30.0, "make_seconds": 30.0, "answer_limit": 100_000}


class Session:
    """A bash that runs commands one after the other, as a session does."""

    def __init__(self, folder: Path, path: Path) -> None:
        env = {"PATH": os.defpath, "HOME": str(folder), "ROCK_SANDBOX_DIR": str(folder), "PYTHONPATH": str(path)}
        self.folder, self._count = folder, 0
        self._bash = subprocess.Popen(["bash", "--norc"], stdin=subprocess.PIPE, env=env, cwd=folder, text=True)

    def run(self, command: str) -> tuple[str, int]:
        """Return output and exit code."""
        self._count += 1
        script, output, code = (self.folder / f"{self._count}.{kind}" for kind in ("sh", "out", "code"))
        script.write_text(command)
        self._bash.stdin.write(f". {script} >{output} 2>&1; echo $? >{code}.new; mv {code}.new {code}\n")
        self._bash.stdin.flush()
        end = time.monotonic() + 60
        while not code.exists():
            assert time.monotonic() < end, f"no end of {command[-200:]}"
            time.sleep(0.002)
        return output.read_text(), int(code.read_text())

    def pid(self) -> int:
        """Return the process of the environment."""
        return int(self.run("printf %s $ROCK_GEM_PID")[0])

    def end(self) -> None:
        """End it all."""
        self.run("kill -9 $ROCK_GEM_PID 2>/dev/null")
        self._bash.stdin.close()
        self._bash.wait(10)


class Environment:
    """The one environment of a session."""

    def __init__(self, session: Session) -> None:
        self.session, self._calls = session, 0

    def start(self, python: str = sys.executable, **plan) -> dict:
        return self._answer(shell.start({**PLAN, **plan}, ["no-such-python", python], self._token()))

    def ask(self, verb: str, **fields) -> dict:
        return self._answer(shell.call({"verb": verb, **fields}, self._token()))

    def _token(self) -> str:
        self._calls += 1
        return f"{self._calls:032x}"

    def _answer(self, command: str) -> dict:
        output, code = self.session.run(command)
        return json.loads(output) if code == 0 else {"code": code, "output": output}


@pytest.fixture
def make(tmp_path):
    made = []

    def new(path: Path = FAKE) -> Environment:
        (tmp_path / str(len(made))).mkdir()
        made.append(Session(tmp_path / str(len(made)), path))
        return Environment(made[-1])

    yield new
    for session in made:
        session.end()


@pytest.fixture
def odd(make):
    environment = make()
    assert environment.start() == {"result": {}}
    return environment


def test_an_episode(odd):
    early = odd.ask("step", action="up")["error"]
    assert early["kind"] == "bad_request" and "reset" in early["message"]
    assert odd.ask("reset", seed=7) == {"result": {"observation": "seed 7", "info": {"suffix": "x"}}}
    for number in (1.0, 2.0):
        result = odd.ask("step", action="up")["result"]
        assert result == {"observation": "up", "reward": number, "terminated": False, "truncated": False, "info": {}}
    left = {path.suffix for path in odd.session.folder.glob("rock-gem-*/*")}
    assert len(list(odd.session.folder.glob("rock-gem-*/*.answer"))) == 1 and ".request" not in left


@pytest.mark.parametrize(
    "action",
    ["", "'", "\"';`$(exit 1)\\ !", "a\nb\r\n", "\0\x1e\x7f", "ü\ud800\u2028", "-n", "%s", "'" * 20_000, {"a": [None]}, [1]],
)  # fmt: skip
def test_an_action_is_data(odd, action):
    odd.ask("reset", seed=None)
    assert odd.ask("step", action=action)["result"]["observation"] == action


def test_a_megabyte(odd):
    odd.ask("reset", seed=None)
    assert "too many" in odd.ask("step", action="y" * 1_000_000)["error"]["message"]
    assert odd.ask("step", action=90_000)["result"]["observation"] == "x" * 90_000
    assert ACTION_LIMIT > 1_000_000


def test_what_an_environment_raises_is_its_answer(odd):
    odd.ask("reset", seed=None)
    failed = odd.ask("step", action="raise")["error"]
    assert failed == {"kind": "command_failed", "message": "the environment raised ValueError: no 'such' move\n\0"}
    assert odd.ask("step", action="up")["result"]["reward"] == 2


def test_values_that_json_does_not_have(odd):
    odd.ask("reset", seed=None)
    result = odd.ask("step", action="odd")["result"]
    assert result == {
        "observation": {"('a', 1)": None, "b": [1, 2], "c": "b'x'", "d": [1.5, None]},
        "reward": 1.5, "terminated": True, "truncated": False, "info": {},
    }  # fmt: skip


def test_one_that_hangs_is_interrupted_and_can_be_reset(make):
    environment = make()
    environment.start(step_seconds=0.3)
    environment.ask("reset", seed=None)
    late = environment.ask("step", action="hang")["error"]
    assert late["kind"] == "command_timeout" and "0.3 s" in late["message"]
    assert environment.ask("step", action="up")["error"]["kind"] == "bad_request", "what it did is unknown"
    assert "result" in environment.ask("reset", seed=None) and "result" in environment.ask("step", action="up")


def test_one_that_ends_says_so_now_and_later(odd):
    odd.ask("reset", seed=None)
    for _ in range(2):
        gone = odd.ask("step", action="die")
        assert gone["code"] == shell.GONE and "these are my last words" in gone["output"]


def test_one_that_is_killed_says_so(odd):
    os.kill(odd.session.pid(), signal.SIGKILL)
    assert odd.ask("reset", seed=None)["code"] == shell.GONE


def test_an_answer_that_arrives_in_two_pieces(odd):
    """The shell looks up once a second whether the process lives; that must not cost it what it has read of a line."""
    os.kill(odd.session.pid(), signal.SIGKILL)
    odd.session.run("export ROCK_GEM_PID=$$")  # one that lives, while we are the environment's process
    folder = next(odd.session.folder.glob("rock-gem-*"))
    pipes = [os.open(folder / name, os.O_RDWR) for name in ("requests", "answers")]

    def answer():
        token = os.read(pipes[0], 100)
        (folder / f"{token.decode().strip()}.answer").write_text("{}")
        os.write(pipes[1], token[:10])
        time.sleep(1.5)
        os.write(pipes[1], token[10:])

    thread = threading.Thread(target=answer)
    thread.start()
    assert odd.ask("reset", seed=None) == {}
    thread.join()
    odd.session.run("unset ROCK_GEM_PID")
    for pipe in pipes:
        os.close(pipe)


def test_names(make):
    unknown = make().start(env_id="oddd")["error"]
    assert unknown == {"kind": "not_found", "message": "no environment 'oddd'; did you mean 'odd'?"}
    mine = make()
    assert mine.start(env_id="mine", modules=["more_envs"]) == {"result": {}}
    output, code = mine.session.run(shell.LIST)
    assert (json.loads(output), code) == (["mine", "needs-more", "odd"], 0)
    lacking = make().start(env_id="needs-more", modules=["more_envs"])["error"]
    assert lacking["kind"] == "command_failed" and "nltk" in lacking["message"]
    absent = make().start(modules=["no_such_module"])["error"]
    assert "no_such_module" in absent["message"]


def test_an_image_without_python_or_without_pip(make, tmp_path):
    assert make().start(python="nor-this-one")["code"] == shell.NO_PYTHON
    # An interpreter that sees neither gem nor pip.
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    lacking = make().start(python=str(bare))["error"]
    assert lacking["kind"] == "start_failed" and "neither gem-llm nor pip" in lacking["message"]


def test_an_install_that_fails_says_why(make, tmp_path):
    (tmp_path / "empty").mkdir()
    environment = make(tmp_path / "empty")
    environment.session.run(f"export PIP_NO_INDEX=1 PIP_FIND_LINKS={tmp_path}/empty PIP_CONFIG_FILE=/dev/null")
    lacking = environment.start()["error"]
    assert lacking["kind"] == "start_failed"
    assert (
        "cannot be installed" in lacking["message"]
        and "gem-llm" in lacking["message"]
        and "EnvHub" in lacking["message"]
    )
