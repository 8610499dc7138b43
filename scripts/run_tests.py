"""`make test`: an engine and the test images, lint, types, then every layer of the suite; then nothing of it is left."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rock import settings
from scripts import compat, engine, gem, images, registry, sshd
from scripts.steps import StepFailed, step

ROOT = Path(__file__).resolve().parent.parent
_CHECKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("lint (ruff check)", ("-m", "ruff", "check", ".")),
    ("format (ruff format --check)", ("-m", "ruff", "format", "--check", ".")),
    ("types (mypy)", ("-m", "mypy")),
)


def main(arguments: Sequence[str]) -> int:
    """Run everything, cheap checks first; return the exit code. Arguments go to pytest."""
    failed = [what for what, argv in _CHECKS if not _passes(what, argv)]
    found: engine.Engine | None = None
    try:
        found = engine.ensure()
        variables: dict[str, str] = {}
        if found is not None:
            print(f"==> the engine answers at {found.url}", flush=True)
            images.ensure(found.url)
            registry.ensure()
            sshd.ensure()
            variables["DOCKER_HOST"] = found.url
            engine.ensure_podman()
        compat.ensure()
        gem.ensure()
        if not _passes("the suite (pytest)", ("-m", "pytest", *arguments), variables):
            failed.append("the suite (pytest)")
    except StepFailed as error:
        print(f"==> {error}", flush=True)
        failed.append(str(error))
    finally:
        if found is not None:
            engine.stop(found)
    print(f"==> failed: {'; '.join(failed)}" if failed else "==> all passed", flush=True)
    return 1 if failed else 0


def _passes(what: str, argv: Sequence[str], variables: dict[str, str] | None = None) -> bool:
    """Run a Python module in the environment of this interpreter; return whether it succeeded."""
    env = {**settings.with_prefix(""), **(variables or {})}
    with step(what):
        return subprocess.run([sys.executable, *argv], cwd=ROOT, env=env, stdin=subprocess.DEVNULL).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
