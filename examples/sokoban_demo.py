"""Plays Sokoban at random: an environment in a sandbox of its own, as a trainer sees it.

Needs a running service (`rock admin start --detach`), and an image that has gem-llm or in which pip can install it. Another
image than python:3.11 is registered with `rock envhub register game:Sokoban-v0-easy IMAGE`.

    .venv/bin/python examples/sokoban_demo.py
"""

import random
import sys

import rock

MOVES = ("up", "down", "left", "right")


def main(env_id: str, seed: int = 42) -> None:
    """Play one episode."""
    environment = rock.make(env_id)
    try:
        observation, info = environment.reset(seed=seed)
        print(observation, info["suffix"], sep="\n")
        choice, steps, total, done = random.Random(seed), 0, 0.0, False
        while not done:
            action = f"\\boxed{{{choice.choice(MOVES)}}}"
            observation, reward, terminated, truncated, info = environment.step(action)
            steps, total, done = steps + 1, total + reward, terminated or truncated
            print(f"{steps:3} {action:14} reward {reward:+.2f}  {observation}")
        print(info["suffix"])
        print(f"the episode ended after {steps} steps, total reward {total:+.2f}")
    finally:
        environment.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "game:Sokoban-v0-easy")
