"""The environment of the third-party client `rl-rock`, apart from ours: its import package is also called `rock`."""

import sys
from pathlib import Path

from scripts.steps import run, step

CLIENT = "rl-rock==1.11.0"
FOLDER = Path(__file__).resolve().parent.parent / ".venv" / "compat"
PYTHON = FOLDER / "bin" / "python"
_STAMP = FOLDER / "installed"


def ensure() -> Path:
    """Make the environment if it is not there yet; return its Python.

    Raises:
        StepFailed: the client cannot be installed.
    """
    if not _STAMP.exists() or _STAMP.read_text() != CLIENT:
        with step(f"installing {CLIENT} into an environment of its own"):
            run([sys.executable, "-m", "venv", "--clear", str(FOLDER)])
            run([str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", CLIENT])
            _STAMP.write_text(CLIENT)
    return PYTHON
