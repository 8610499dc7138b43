"""What Podman does differently, and what makes up for it.

Podman's monitor closes a container's stdin for good as soon as any client detaches (it never asks it to "leave stdin
open"), so a relay that died would take the sandbox with it. Therefore, under Podman,

- the main process opens the pipe of its stdin for reading *and* writing: it never sees an end of file;
- what is sent to it goes through a small process in the container that writes to that pipe, and dies with its sender;
- the attached stream only reads.

It costs one exec per attach, 15-40 ms, and `cat` in the image.

It does not remove an image that a stopped container has, unless with the container and its files. So such an image only loses
its name (Engine.remove_image), and goes with the last container that was made from it.
"""

from __future__ import annotations

import time

from rock.errors import SandboxGone
from workers.deployments.engine import Engine
from workers.deployments.faults import Doing
from workers.deployments.snapshot import drop_nameless
from workers.deployments.wire import Answer, AttachedStream

_END_SEEN = 5.0
"""Seconds within which Podman has taken note of a container's end."""
WRITER = ["bash", "--noprofile", "--norc", "-c", "exec cat >/proc/1/fd/0"]


def hold_stdin(boot_argv: list[str]) -> list[str]:
    """Return an argv that becomes `boot_argv` with a stdin that never ends."""
    return ["bash", "--noprofile", "--norc", "-pc", 'exec 0<>/proc/self/fd/0; exec "$@"', "rock-hold", *boot_argv]


def attach(engine: Engine, name: str, sandbox_id: str, doing: Doing) -> PodmanStream:
    """Open both ways to the main process of a container."""
    reader = engine.attach(name, doing, stdin=False)
    try:
        return PodmanStream(reader, engine.exec(name, WRITER, "", doing)[1], sandbox_id)
    except BaseException:
        reader.connection.close()
        raise


def remove(engine: Engine, name: str) -> None:
    """Kill and remove a container, and its image if that has no name any more and no other container."""
    facts, end = engine.inspect(name), time.monotonic() + _END_SEEN
    while True:
        try:
            engine.remove(name)
            break
        except SandboxGone:
            # It has ended a moment ago, and Podman tried to end it and was too late for that.
            if time.monotonic() >= end:
                raise
            time.sleep(0.05)
    if facts is not None:
        drop_nameless(engine, facts["Image"])


class PodmanStream(AttachedStream):
    """An attached stream that reads by itself and writes through another connection.

    Params:
        reader: attached to stdout only.
        writer: connected to a `WRITER`.
    """

    def __init__(self, reader: Answer, writer: Answer, sandbox_id: str) -> None:
        super().__init__(reader, sandbox_id)
        self._writer = writer.connection
        self._writer.setblocking(False)

    def writable_fileno(self) -> int:
        """Return the descriptor of the writing connection."""
        return self._writer.fileno()

    def send(self, data: bytes | memoryview) -> int:
        """Send as much as fits now; return how much. Errors: SandboxGone."""
        try:
            said = self._writer.recv(4096)  # it prints nothing: whatever comes is its end
        except BlockingIOError:
            return self._send(self._writer, data)
        except OSError as error:
            raise SandboxGone(f"sandbox {self._sandbox_id}: the way to its stdin broke: {error}") from error
        raise SandboxGone(
            f"sandbox {self._sandbox_id}: the way to its stdin broke (it needs `cat` in the image): {said[8:].decode(errors='replace')}"
        )

    def close(self) -> None:
        """Close both connections; the container goes on."""
        super().close()
        self._writer.close()
