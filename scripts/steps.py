"""Says what a long job is doing, and how long each step took."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence


class StepFailed(Exception):
    """A step did not succeed; the message says which and why."""


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Announce a step, and print its time when it is over."""
    print(f"==> {what} ...", flush=True)
    begin = time.monotonic()
    try:
        yield
    except BaseException:
        print(f"==> {what}: failed after {time.monotonic() - begin:.1f} s", flush=True)
        raise
    took = time.monotonic() - begin
    print(f"==> {what}: {took:.1f} s" if took >= 1 else f"==> {what}: {took * 1000:.0f} ms", flush=True)


def run(argv: Sequence[str], env: dict[str, str] | None = None) -> None:
    """Run a command quietly; on failure show what it said.

    Raises:
        StepFailed: it is missing or exited with another code than 0.
    """
    try:
        done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    except FileNotFoundError as error:
        raise StepFailed(f"{argv[0]} is not installed") from error
    if done.returncode != 0:
        sys.stdout.write(done.stdout[-4000:] + done.stderr[-4000:])
        raise StepFailed(f"{' '.join(argv)} exited with {done.returncode}")
