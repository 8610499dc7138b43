"""Many GEM environments at once: `python -m bench.gem`. They are made, then stepped one by one, then all at the same time."""

import itertools
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import click

import rock
from rock.sdk.gem import Environment

AT_A_TIME = 8
"""Environments that are made, or ended, at once."""
MOVES = tuple(f"\\boxed{{{move}}}" for move in ("up", "left", "down", "right"))


@click.command()
@click.option("--env", "name", default="game:Sokoban-v0-easy", show_default=True, help="Environment to make.")
@click.option("--count", default=100, show_default=True, help="How many of them live at once.")
@click.option("--rounds", default=5, show_default=True, help="Steps of each, one environment after the other.")
@click.option("--users", default=8, show_default=True, help="Callers that step all at the same time.")
@click.option("--seconds", default=10.0, show_default=True, help="Of their closed loop.")
def main(name: str, count: int, rounds: int, users: int, seconds: float) -> None:
    """Measure the service at ROCK_BASE_URL, and print a line for each figure."""
    made: list[Environment] = []
    begin = time.perf_counter()
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        try:
            for environment in pool.map(lambda _: rock.make(name), range(count)):
                made.append(environment)
            for environment in made:
                environment.reset(seed=1)
            click.echo(f"{count} environments made and reset in {time.perf_counter() - begin:.1f} s")
            moves = itertools.cycle(MOVES)
            took = [_step(environment, next(moves)) for _ in range(rounds) for environment in made]
            click.echo(f"a step, one at a time: {_shown(took)}")
            _crowd(made, users, seconds)
        finally:
            list(pool.map(lambda environment: environment.close(), made))


def _step(environment: Environment, action: str) -> float:
    """Take a step, and begin anew after the last one of an episode; return the milliseconds of the step."""
    begin = time.perf_counter()
    _, _, terminated, truncated, _ = environment.step(action)
    took = (time.perf_counter() - begin) * 1e3
    if terminated or truncated:
        environment.reset(seed=1)
    return took


def _crowd(made: Sequence[Environment], users: int, seconds: float) -> None:
    """Let `users` callers step, each through a share of the environments of its own."""
    end = time.perf_counter() + seconds

    def work(place: int) -> list[float]:
        took = []
        for environment, move in zip(itertools.cycle(made[place::users]), itertools.cycle(MOVES), strict=False):
            if time.perf_counter() > end:
                break
            took.append(_step(environment, move))
        return took

    with ThreadPoolExecutor(users) as pool:
        took = [one for share in pool.map(work, range(users)) for one in share]
    click.echo(f"{users} callers at once: {len(took) / seconds:.0f} steps/s, {_shown(took)}")


def _shown(took: Sequence[float]) -> str:
    ordered = sorted(took)
    p95 = ordered[int(len(ordered) * 0.95)]
    return f"median {statistics.median(ordered):.1f} ms, p95 {p95:.1f} (n={len(ordered)})"


if __name__ == "__main__":
    main()
