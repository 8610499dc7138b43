"""What every part of `Sandbox` stands on: its configuration, its id, and the way to the service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rock import errors
from rock.actions import dump, parse
from rock.sdk.live import OnOutput, follow
from rock.sdk.sandbox.config import SandboxConfig
from rock.sdk.transport import PREFIX

T = TypeVar("T")


class Remote:
    """A sandbox at the service, started or not.

    Params:
        config: what to start and where; None means all defaults.
    """

    def __init__(self, config: SandboxConfig | None = None) -> None:
        self.config = config or SandboxConfig()
        self.transport = self.config.transport()
        self._sandbox_id: str | None = None
        self._host_name: str | None = None
        self._host_ip: str | None = None

    @property
    def sandbox_id(self) -> str | None:
        """The sandbox's id, None before start."""
        return self._sandbox_id

    @property
    def url(self) -> str:
        """Where the service's routes about sandboxes are."""
        return self.transport.url + PREFIX

    @property
    def cluster(self) -> str | None:
        """The cluster that was asked for."""
        return self.config.cluster

    @property
    def host_name(self) -> str | None:
        """Name of the machine that has the sandbox, None before start."""
        return self._host_name

    @property
    def host_ip(self) -> str | None:
        """Address of the machine that has the sandbox, None before start."""
        return self._host_ip

    def required_id(self) -> str:
        """Return the sandbox's id.

        Raises:
            NotRunning: neither start() nor attach() was called.
        """
        if self._sandbox_id is None:
            raise errors.NotRunning("this Sandbox has no sandbox yet: call start() or attach() first")
        return self._sandbox_id

    async def send(self, answer: type[T], path: str, request: Any, seconds: float | None = None) -> T:
        """Send a request that is answered when done.

        Params:
            answer: the response's class.
            path: below the sandbox prefix.
            request: a wire dataclass with a sandbox_id, which is filled in here.
            seconds: that the service may take, as for `Transport.post`.
        Raises:
            RockError: the service's error.
        """
        return parse(answer, await self.transport.post(path, self._body(request), seconds))

    async def call(self, answer: type[T], path: str, request: Any) -> T:
        """Send a request that may take long and wait for its end; otherwise as `send`."""
        return parse(answer, await self.transport.call(path, self._body(request)))

    async def listen(
        self, answer: type[T], path: str, request: Any, streams: Sequence[str], tell: OnOutput | None
    ) -> T:
        """Send a command, hand on what it prints while it runs, and wait for its end; otherwise as `call`.

        Params:
            streams: fields of the answer that hold what was printed; `output` is the stream `stdout`.
            tell: gets all of it; None: nobody listens.
        """
        if tell is None:
            return await self.call(answer, path, request)
        names, heard = ["stdout" if name == "output" else name for name in streams], False

        async def meanwhile(request_id: str) -> None:
            nonlocal heard
            heard = True
            await follow(self.transport, request_id, names, tell)

        try:
            found: Any = parse(answer, await self.transport.call(path, self._body(request), meanwhile))
        except errors.CommandFault as error:
            for field, name in () if heard else zip(streams, names, strict=True):
                if error.details.get(field):
                    tell(name, str(error.details[field]))
            raise
        for field, name in () if heard else zip(streams, names, strict=True):
            if getattr(found, field):
                tell(name, getattr(found, field))
        done: T = found
        return done

    def _body(self, request: Any) -> dict[str, Any]:
        """Return the request as a JSON object for this sandbox."""
        return dump(replace(request, sandbox_id=self.required_id()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(sandbox_id={self._sandbox_id!r}, image={self.config.image!r}, host_name={self._host_name!r})"
