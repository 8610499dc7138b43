"""The environment's own process. This file is sent into the sandbox and run there by the sandbox's Python (3.10 or newer).

    python inside.py <folder>        serve: reset and step, one after the other, until the sandbox ends
    python inside.py <folder> list   print the names of all environments that can be made here

The folder holds `plan.json` (env_id, modules, step_seconds, make_seconds, answer_limit) and two pipes. A line on `requests`
is a token; the request is the JSON in `<token>.request`, the answer is written to `<token>.answer` and the token to
`answers`. Files, since a shell reads a pipe byte by byte; JSON in ASCII, since what passes through a shell should hold
no NUL and no newline. An answer is `{"result": …}` or `{"error": {"kind", "message"}}`, with the kinds of rock.errors.

Standard library only, and nothing of this project: none of it is in the sandbox.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

GEM = "gem-llm>=0.1,<0.2"
OLDEST = (3, 10)
LIGHT = ("--no-deps", GEM, "numpy")
"""What gem's own games need of its requirements, which are 400 MB in all."""


class Refused(Exception):
    """An answer that is an error; `kind` is one of rock.errors."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Overdue(BaseException):
    """Time is up. Not an Exception, so that an environment's own handlers let it pass."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise Overdue in the block when `seconds` are over, and again each second, should it be caught."""

    def ring(signum: int, frame: Any) -> None:
        raise Overdue

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class Host:
    """Makes the one environment of this process and carries out what is asked of it."""

    def __init__(self, folder: str, plan: dict[str, Any]) -> None:
        """`folder` takes packages that have to be installed; `plan` is described above."""
        self.library = os.path.join(folder, "lib")
        self.plan = plan
        self.env: Any = None
        self.begun = False

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one request, whatever the environment does."""
        verb = request["verb"]
        seconds = self.plan["make_seconds" if verb == "make" else "step_seconds"]
        try:
            with time_limit(seconds):
                return {"result": plain(getattr(self, verb)(request))}
        except Overdue:
            self.begun = False
            message = f"{verb} took longer than {seconds:g} s and was interrupted"
            return failure("command_timeout", message if verb == "make" else message + "; reset the environment")
        except Refused as refused:
            return failure(refused.kind, str(refused))
        except Exception as error:  # noqa: BLE001  (the border: whatever an environment raises is an answer, not our end)
            return failure("command_failed", f"the environment raised {type(error).__name__}: {error}")

    def make(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make the environment."""
        env_id = self.plan["env_id"]
        if sys.version_info[:2] < OLDEST:
            raise Refused(
                "start_failed", f"gem-llm needs Python 3.10 or newer, the sandbox has {sys.version.split()[0]}"
            )
        installed = self.provide(env_id)
        try:
            self.env = self.build(env_id)
        except ImportError:
            if not installed:
                raise
            # One of those that need more than numpy.
            self.install((GEM,))
            self.env = self.build(env_id)
        return {}

    def build(self, env_id: str) -> Any:
        """Return the environment. Raises Refused for an unknown name."""
        gem = import_gem(with_reasoning=env_id.startswith("rg:"))
        for name in self.plan["modules"]:
            importlib.import_module(name)
        known = registry()
        if env_id not in known:
            close = [f"; did you mean {name!r}?" for name in difflib.get_close_matches(env_id, known, n=1)]
            raise Refused("not_found", f"no environment {env_id!r}{''.join(close)}")
        return gem.make(env_id)

    def reset(self, request: dict[str, Any]) -> dict[str, Any]:
        """Begin an episode."""
        observation, info = self.env.reset(seed=request["seed"])
        self.begun = True
        return {"observation": observation, "info": info}

    def step(self, request: dict[str, Any]) -> dict[str, Any]:
        """Take an action."""
        if not self.begun:
            raise Refused("bad_request", "the environment must be reset before a step")
        observation, reward, terminated, truncated, info = self.env.step(request["action"])
        return {
            "observation": observation, "reward": float(reward), "terminated": bool(terminated),
            "truncated": bool(truncated), "info": info,
        }  # fmt: skip

    def provide(self, env_id: str) -> bool:
        """Make gem importable; return whether it had to be installed, which is done without most of its requirements."""
        if os.path.isdir(self.library):
            sys.path.insert(0, self.library)
        if importlib.util.find_spec("gem") and importlib.util.find_spec("numpy"):
            return False
        self.install(LIGHT if env_id.startswith("game:") else (GEM,))
        return True

    def install(self, what: tuple[str, ...]) -> None:
        """Install packages into the library folder. Raises Refused with the reason."""
        advice = "use an image that has gem-llm, and register it in EnvHub for this environment"
        if importlib.util.find_spec("pip") is None:
            raise Refused("start_failed", f"{sys.executable} has neither gem-llm nor pip: {advice}")
        argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
        argv += ["--no-warn-conflicts", "--upgrade", "--target", self.library, *what]
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode:
            lines = [line for line in done.stdout.splitlines() if "ERROR" in line] or done.stdout.splitlines()[-1:]
            reason = " ".join(lines)[-1000:]
            raise Refused("start_failed", f"gem-llm cannot be installed in the sandbox ({reason}): {advice}")
        if self.library not in sys.path:
            sys.path.insert(0, self.library)
        for name in [name for name in sys.modules if name.split(".")[0] == "gem"]:
            del sys.modules[name]
        importlib.invalidate_caches()


def import_gem(with_reasoning: bool) -> Any:
    """Import gem.

    It imports reasoning_gym for one purpose, to name that package's environments (`rg:…`), at the price of 1000 modules,
    80 MB and two seconds. `with_reasoning` False: an empty stand-in takes its place while gem is imported.
    """
    if with_reasoning or "reasoning_gym" in sys.modules:
        return importlib.import_module("gem")
    stand_in: Any = types.ModuleType("reasoning_gym")
    stand_in.factory = types.SimpleNamespace(DATASETS={})
    sys.modules["reasoning_gym"] = stand_in
    try:
        return importlib.import_module("gem")
    finally:
        del sys.modules["reasoning_gym"]


def registry() -> list[str]:
    """Return the names of the environments that gem knows."""
    return sorted(importlib.import_module("gem.envs.registration").ENV_REGISTRY)


def plain(value: Any) -> Any:
    """Return a value of the environment as what JSON has: arrays as lists, NaN as null, anything else as its text."""
    if value is None or isinstance(value, (bool, int)):
        return value if value is None or type(value) in (bool, int) else int(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=str)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)


def failure(kind: str, message: str) -> dict[str, Any]:
    """Return an answer that is an error."""
    return {"error": {"kind": kind, "message": message[:4000]}}


def serve(folder: str, plan: dict[str, Any]) -> None:
    """Answer requests for ever."""
    host, last = Host(folder, plan), ""
    requests = os.fdopen(os.open(os.path.join(folder, "requests"), os.O_RDWR), "rb", buffering=0)
    answers = os.open(os.path.join(folder, "answers"), os.O_RDWR)
    for line in requests:
        token = os.path.join(folder, line.decode("ascii").strip())
        with open(token + ".request", encoding="utf-8") as file:
            request = json.load(file)
        os.unlink(token + ".request")
        text = json.dumps(host.answer(request))
        if len(text) > plan["answer_limit"]:
            text = json.dumps(failure("command_failed", f"the answer has {len(text)} bytes, too many"))
        if last:
            os.unlink(last + ".answer")
        last = token
        with open(token + ".answer", "w", encoding="ascii") as file:
            file.write(text)
        os.write(answers, line)


def show(folder: str, plan: dict[str, Any]) -> None:
    """Print the names of all environments, as one line of JSON."""
    host = Host(folder, plan)
    with contextlib.redirect_stdout(sys.stderr):
        host.provide(plan["env_id"])
        import_gem(with_reasoning=importlib.util.find_spec("reasoning_gym") is not None)
        for name in plan["modules"]:
            importlib.import_module(name)
    sys.stdout.write(json.dumps(registry()) + "\n")


def main(folder: str, verb: str = "serve") -> None:
    """Read the plan and follow it."""
    with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
        plan = json.load(file)
    (show if verb == "list" else serve)(folder, plan)


if __name__ == "__main__":
    main(*sys.argv[1:])
