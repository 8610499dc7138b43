"""The examples do what they say."""

import subprocess
import sys

import pytest

from tests.service_stack import ROOT


@pytest.mark.parametrize(
    "name, words",
    [
        ("sandbox_demo", ["Hello Rock", "still here in /tmp (exit code 3)"]),
        (
            "sandbox_files_demo",
            ["print(6 * 7)", "256000 bytes", "['empty', 'run.sh', 'start']", "a downloaded file: the project runs"],
        ),
    ],
)
def test_an_example(server, name, words):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py")],
        env=server.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for word in words:
        assert word in done.stdout
    assert done.stderr == ""
