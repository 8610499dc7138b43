"""What a command prints, while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from urllib.parse import quote

from rock import errors

OnOutput = Callable[[str, str], None]
"""Called with the stream (`stdout` or `stderr`) and the text that has just come. It must not block for long."""

SOON_SECONDS, LATER_SECONDS = 0.1, 0.5
"""Between two looks at an output: after some has come, and at most."""


class _Asks(Protocol):
    """The way to the service."""

    async def get(self, path: str, params: dict[str, str]) -> Any:
        """Return the result of a GET."""


async def follow(
    transport: _Asks, request_id: str, streams: Sequence[str], tell: OnOutput, *, to_end: bool = True
) -> None:
    """Hand on what a call prints as it comes, until it is done.

    Params:
        request_id: of the call, which the service has taken.
        streams: `stdout`, and of `execute` also `stderr`.
        to_end: False: only until nothing more is there now.
    Raises:
        RockError: the service cannot tell. An output that is not kept any more just ends: what became of the call says why.
    """
    path, pause = f"/results/{quote(request_id, safe='')}/output", SOON_SECONDS
    offsets = dict.fromkeys(streams, 0)
    while offsets:
        moved = False
        for stream, offset in list(offsets.items()):
            try:
                part = await transport.get(path, {"offset": str(offset), "stream": stream})
            except (errors.CallerFault, errors.SandboxGone):
                return
            if part["output"]:
                tell(stream, part["output"])
            moved = moved or part["next_offset"] > offset
            offsets[stream] = part["next_offset"]
            if part["done"] or not (to_end or part["output"]):
                del offsets[stream]
        pause = SOON_SECONDS if moved else min(2 * pause, LATER_SECONDS)
        if offsets:
            await asyncio.sleep(pause)
