"""`python -m bench.sdk` against the real service, small."""

import subprocess
import sys

from tests.service_stack import ROOT


def test_it_measures_each_thing(server):
    small = ("--size", "2", "--files", "20", "--folder-size", "0.1", "--times", "1", "--users", "2", "--seconds", "0.5")
    done = subprocess.run(
        [sys.executable, "-m", "bench.sdk", *small],
        cwd=ROOT, env=server.environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [
        "upload of 2 MB", "download of 2 MB", "upload of a folder, 20 files, 0.1 MB", "2 users",
    ]  # fmt: skip
