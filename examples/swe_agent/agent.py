"""The loop of a SWE agent: ask the model for a tool call, carry it out in the task's sandbox, show it what came out."""

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rock.rollout import SweEnvironment

Message = dict[str, Any]
"""A message of a chat, in the form that chat models take."""

SYSTEM = "You mend a fault in the repository at /testbed. Look, change the code, check it; stop when the fault is gone."


@dataclass(frozen=True)
class ToolCall:
    """What a model wants done: the name of a tool of SWE_TOOL_CONFIGS, and its arguments."""

    name: str
    arguments: dict[str, Any]


Model = Callable[[Sequence[Message]], Awaitable[ToolCall | None]]
"""The messages so far → the next call, None when the model has nothing more to do."""


@dataclass(frozen=True)
class Episode:
    """What an attempt came to: the reward, the agent's changes as a diff, and the conversation."""

    reward: float
    patch: str
    messages: list[Message]


async def attempt(environment: SweEnvironment, model: Model, max_steps: int = 50) -> Episode:
    """Let a model work on a task, then run the task's tests.

    Params:
        environment: a started one; it is left running.
        model: decides each step.
        max_steps: tool calls after which it is stopped.
    Raises:
        RockError: the sandbox or the service failed; such an attempt says nothing about the model.
    """
    messages: list[Message] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": environment.task.problem_statement},
    ]
    for step in range(max_steps):
        call = await model(messages)
        if call is None:
            break
        seen = await environment.step(call.name, call.arguments)
        messages += _exchange(f"call-{step}", call, seen)
    patch = await environment.patch()  # Before the tests come in.
    return Episode(await environment.reward(), patch, messages)


def scripted(calls: Iterable[ToolCall]) -> Model:
    """Return a model that makes the given calls one after the other, whatever it sees."""
    left = iter(calls)

    async def model(messages: Sequence[Message]) -> ToolCall | None:
        """Return the next call of the script."""
        return next(left, None)

    return model


def _exchange(call_id: str, call: ToolCall, seen: str) -> list[Message]:
    """Return a call and its observation as messages."""
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call_id, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call_id, "content": seen},
    ]
