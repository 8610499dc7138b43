"""How much is measured: counts and limits, in full and in quick form."""

from collections.abc import Mapping
from dataclasses import dataclass, field

KB, MB = 1024, 1024 * 1024


@dataclass(frozen=True)
class Plan:
    """Counts of a run. Every measure also ends after `budget` seconds per server, with what it has by then."""

    starts: int = 20
    steps: int = 300
    executes: int = 100
    """Also of files of 1 KB."""
    transfers: int = 20
    """Of files of 1 MB."""
    outputs: Mapping[int, int] = field(default_factory=lambda: {100 * KB: 30, MB: 20, 10 * MB: 5})
    """Bytes of output -> how often."""
    crowds: tuple[int, ...] = (8, 32)
    """Numbers of sandboxes at once."""
    seconds: float = 10.0
    """Of one closed loop."""
    rounds: int = 2
    """How often each crowd is started and loaded."""
    at_a_time: int = 8
    """Starts under way at once while a crowd comes up."""
    idle: int = 8
    """Sandboxes whose memory is measured."""
    settle: float = 3.0
    """Seconds that they are left alone before."""
    budget: float = 120.0
    pull: str = ""
    """Image that is pulled again and again while `busy` is measured; empty: none."""
    flight: int = 2000
    """Commands in flight at once."""
    sizes: tuple[int, ...] = (1, 50, 100, 150, 200)
    """Numbers of idle sandboxes beside which costs are measured."""
    kill: str = "rock proc worker|celery.*worker"
    """Pattern of the command lines of the processes that `recovery` kills."""


QUICK = Plan(
    starts=3, steps=40, executes=20, transfers=5, outputs={100 * KB: 5, MB: 3, 10 * MB: 1}, crowds=(4,), seconds=3.0,
    rounds=1, at_a_time=4, idle=3, settle=1.0, budget=30.0, flight=100, sizes=(1, 4),
)  # fmt: skip
"""For trying things out; its figures are not to be quoted."""
