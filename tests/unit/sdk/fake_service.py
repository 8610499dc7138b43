"""A service over real HTTP whose answers the test writes: what the client does with each answer is the subject."""

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from rock.errors import success
from rock.sdk.transport import PREFIX


@dataclass
class Seen:
    """One request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    parts: dict[str, bytes] = field(default_factory=dict)


Answer = dict[str, Any] | web.Response | str | Callable[[Seen], Any]

HANG_UP = "hang up"
"""An answer: the connection is cut instead."""


class FakeService:
    """Answers each path with the next of its `answers`; the last one is repeated."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = defaultdict(list)
        self.seen: list[Seen] = []
        self.url = ""

    def on(self, path: str, *answers: Answer) -> None:
        """Set what a path answers; `*` stands for one path segment."""
        self.answers[path] = list(answers)

    def requests(self, path: str) -> list[Seen]:
        """Return what arrived at paths that begin with path."""
        return [seen for seen in self.seen if seen.path.startswith(path)]

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.Response:
        path = request.path.removeprefix(PREFIX)
        seen = Seen(request.method, path, dict(request.query), dict(request.headers), None)
        if request.content_type == "multipart/form-data":
            async for part in await request.multipart():
                seen.parts[part.name] = bytes(await part.read())
        elif request.body_exists:
            seen.body = json.loads(await request.read())
        self.seen.append(seen)
        pattern = path if path in self.answers else path.rsplit("/", 1)[0] + "/*"
        answers = self.answers.get(pattern)
        if not answers:
            return web.Response(status=404, text="nothing here")
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if callable(answer):
            answer = await answer(seen)
        if answer == HANG_UP:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return answer if isinstance(answer, web.Response) else web.json_response(answer)


def started(sandbox_id: str = "s1") -> dict[str, Any]:
    """Return the envelope of a start that succeeded."""
    return success({"sandbox_id": sandbox_id, "host_name": "h", "host_ip": "127.0.0.1", "cpus": 2, "memory": "8g"})


def unfinished(request_id: str = "r") -> dict[str, Any]:
    """Return the envelope of a call that goes on."""
    return success({"request_id": request_id, "state": "running"})


def observation(output: str = "", exit_code: int = 0) -> dict[str, Any]:
    """Return the envelope of a session command."""
    return success(
        {"output": output, "exit_code": exit_code, "failure_reason": "", "expect_string": "", "session_type": "bash"}
    )
