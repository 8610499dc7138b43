"""gem-llm for the tests: an environment of its own for the `local` deployment, and a layer for the test image.

Only what its games need, as the service installs it in a sandbox: all its requirements are 400 MB.
"""

import sys
from pathlib import Path

from scripts.steps import run, step

PACKAGES = ("--no-deps", "gem-llm==0.1.0", "numpy>=2,<3")
FOLDER = Path(__file__).resolve().parent.parent / ".venv" / "gem"
PYTHON = FOLDER / "bin" / "python"
_STAMP = FOLDER / "installed"
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def ensure() -> Path:
    """Make the environment if it is not there yet; return its Python.

    Raises:
        StepFailed: the packages cannot be had.
    """
    if not _STAMP.exists() or _STAMP.read_text() != " ".join(PACKAGES):
        with step("installing gem-llm into an environment of its own"):
            run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(FOLDER)])
            run([*_PIP, "--python", str(PYTHON), "install", "--quiet", *PACKAGES])
            _STAMP.write_text(" ".join(PACKAGES))
    return PYTHON


def unpack(folder: Path) -> None:
    """Install the packages for the Python 3.11 of the test images into `folder`. Raises StepFailed."""
    target = ["--python-version", "3.11", "--only-binary", ":all:", "--target", str(folder)]
    run([*_PIP, "install", "--quiet", *target, *PACKAGES])
