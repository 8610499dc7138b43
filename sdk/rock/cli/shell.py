"""`rock sandbox shell`: this terminal becomes one of the sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator

from rock.actions import CreateBashSessionRequest
from rock.cli import options
from rock.errors import AlreadyExists
from rock.sdk.sandbox.client import Sandbox
from rock.sdk.sandbox.terminal import Terminal


async def shell(sandbox_id: str, session: str) -> int:
    """Carry keys and screen between our own terminal and one of a session (made if it is not there); return the shell's exit code.

    Raises:
        RockError: how it ended, if not by itself.
    """
    sandbox = Sandbox(options.config())
    await sandbox.attach(sandbox_id)
    with contextlib.suppress(AlreadyExists):
        await sandbox.create_session(CreateBashSessionRequest(session=session))
    size = shutil.get_terminal_size()
    terminal = await Terminal.open(sandbox, session, size.lines, size.columns)
    try:
        with _raw(sys.stdin.fileno()):
            return await _carry(terminal)
    finally:
        await terminal.close()


async def _carry(terminal: Terminal) -> int:
    loop, keys = asyncio.get_running_loop(), asyncio.Queue[bytes]()
    source = sys.stdin.fileno()
    loop.add_reader(source, lambda: keys.put_nowait(os.read(source, 65536)))
    loop.add_signal_handler(signal.SIGWINCH, lambda: keys.put_nowait(b""))
    typing = loop.create_task(_type(terminal, keys))
    try:
        async for data in terminal:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        return terminal.exit_code or 0
    finally:
        loop.remove_reader(source)
        loop.remove_signal_handler(signal.SIGWINCH)
        typing.cancel()


async def _type(terminal: Terminal, keys: asyncio.Queue[bytes]) -> None:
    """Send what is typed; nothing typed means that the size has changed."""
    while True:
        typed = await keys.get()
        if typed:
            await terminal.type(typed)
        else:
            size = os.get_terminal_size(sys.stdout.fileno())
            await terminal.resize(size.lines, size.columns)


@contextlib.contextmanager
def _raw(descriptor: int) -> Iterator[None]:
    """Hand every key on as it is, while the block runs."""
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
