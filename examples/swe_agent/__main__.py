"""Run an agent on one task of a data set in the form of SWE-bench.

    python -m examples.swe_agent task.json --script calls.json
    python -m examples.swe_agent task.json --model my_package.my_module:next_call

`task.json` is one row of the data set. A model is a coroutine function: messages → ToolCall or None (agent.py). A script
is a JSON list of `{"name": …, "arguments": …}`. The service is at ROCK_BASE_URL, and its nodes must allow the mount of
the editor: `node.allowed_mounts` with the folder of SWE_ENTRYPOINT_LOCAL.
"""

import argparse
import asyncio
import importlib
import json
from pathlib import Path

from examples.swe_agent.agent import Episode, Model, ToolCall, attempt, scripted
from rock.rollout import SweEnvironment, SweTask


async def solve(task: SweTask, model: Model, cpus: float, memory: str) -> Episode:
    """Attempt one task in a sandbox of its own, which is taken down in the end."""
    async with SweEnvironment(task, cpus=cpus, memory=memory) as environment:
        return await attempt(environment, model)


def main() -> None:
    """Read the command line, attempt the task, print the changes and the reward."""
    parser = argparse.ArgumentParser(prog="python -m examples.swe_agent")
    parser.add_argument("task", type=Path, help="a row of the data set, as JSON")
    parser.add_argument("--image", help="instead of the one that SWE-bench names after the instance")
    parser.add_argument("--cpus", type=float, default=4.0)
    parser.add_argument("--memory", default="16g")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--script", type=Path, help="tool calls to make, as JSON")
    which.add_argument("--model", help="module:function")
    options = parser.parse_args()
    if options.script is not None:
        model = scripted(ToolCall(**call) for call in json.loads(options.script.read_text()))
    else:
        module, _, function = options.model.partition(":")
        model = getattr(importlib.import_module(module), function)
    task = SweTask.from_record(json.loads(options.task.read_text()), image=options.image)
    episode = asyncio.run(solve(task, model, options.cpus, options.memory))
    print(episode.patch)
    print(f"{len(episode.messages) // 2 - 1} steps, reward {episode.reward}")


if __name__ == "__main__":
    main()
