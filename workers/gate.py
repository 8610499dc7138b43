"""The gate of a node: lets API processes through to ports of its sandboxes, and moves the bytes.

One thread with an event loop in the lifecycle worker, since the session worker must never be held up. Only a sandbox's own ports
can be reached: whoever asks names a sandbox and a number, never an address.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from app.clock import Clock
from app.config import Config
from app.gate import BadMessage, Wish
from app.gate import Gate as Address
from app.gate_store import GateStore
from app.keys import check_name
from app.records import State
from app.store import SandboxStore
from rock.errors import Internal, RockError, Unavailable
from workers.deployments.abstract import AbstractDeployment
from workers.passage import Passage

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10.0
DIALERS = 16
"""Connections that are made at the same time: each may wait for an engine, or for a program that takes none."""
LONG = 1.0
"""Seconds; the end of a shorter connection renews no lease, as its beginning has just done so."""


class Gate:
    """The gate. Its methods may be called from any thread; the connections are in the gate's own."""

    def __init__(
        self, config: Config, gates: GateStore, sandboxes: SandboxStore, deployment: AbstractDeployment, clock: Clock
    ) -> None:
        self._node, self._settings = config.node, config.proxy
        self._gates, self._sandboxes, self._deployment = gates, sandboxes, deployment
        self._clock, self._secret = clock, secrets.token_hex(32)
        self._pool = ThreadPoolExecutor(DIALERS, "gate")
        # Of each connection its sandbox, "" before it is through. Changed in the gate's thread only.
        self._open: dict[asyncio.Task[None], str] = {}
        self._thread: threading.Thread | None = None
        self._address: Address | None = None
        self._ready = threading.Event()

    def announce(self, now: float) -> None:
        """Listen, and say where: again and again, since what Redis knows of it expires, or may be lost.

        Raises Unavailable when the address cannot be listened on, or Redis does not answer.
        """
        if self._address is None:
            listener = self._listen()
            self._address = Address(self._node.host_ip, listener.getsockname()[1], self._secret)
            self._thread = threading.Thread(target=self._run, args=(listener,), name="gate", daemon=True)
            self._thread.start()
            self._ready.wait()
        self._gates.put(self._node.id, self._address)

    def hold(self, now: float) -> None:
        """Renew the leases of the sandboxes that somebody is connected to; end connections into those that are over."""
        for sandbox_id in set(self._open.values()) - {""}:
            record = self._sandboxes.renew(sandbox_id, now)
            if record is None or record.node != self._node.id or record.state is not State.RUNNING:
                self._loop.call_soon_threadsafe(self._cut, sandbox_id)

    def close(self) -> None:
        """End every connection and stop listening."""
        if self._thread is None or self._address is None:
            return
        try:
            self._gates.drop(self._node.id, self._address)
        except RockError as error:
            log.info("the gate's address stays in Redis until it expires: %s", error)
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            self._loop.call_soon_threadsafe(self._accepting.cancel)
        self._thread.join(timeout=2)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _listen(self) -> socket.socket:
        host, port = self._settings.host or self._node.host_ip, self._settings.port
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server((host, port), family=family, backlog=512)
        except OSError as error:
            raise Unavailable(
                f"node {self._node.id} cannot listen on {host}:{port} for the proxy ({error}); "
                "set proxy.host (and proxy.port) to an address of this machine"
            ) from error
        listener.setblocking(False)
        return listener

    def _run(self, listener: socket.socket) -> None:
        """Serve until told to end; connections that are open then are ended."""
        with listener, contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._accept(listener))

    async def _accept(self, listener: socket.socket) -> None:
        accepting = asyncio.current_task()
        assert accepting is not None
        self._loop, self._accepting = asyncio.get_running_loop(), accepting
        self._ready.set()
        while True:
            try:
                connection, _ = await self._loop.sock_accept(listener)
            except OSError as error:
                # Out of descriptors, most likely: those that are open go on, and give some back.
                log.warning("gate: a connection could not be taken: %s", error)
                await asyncio.sleep(0.1)
                continue
            connection.setblocking(False)
            task = self._loop.create_task(self._serve(connection))
            self._open[task] = ""
            task.add_done_callback(self._open.pop)

    async def _serve(self, connection: socket.socket) -> None:
        """Carry one connection from its handshake to its end."""
        sandbox_id, begun = "", time.monotonic()
        try:
            with connection:
                passage = Passage(connection, self._secret)
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    wish = await passage.greet()
                try:
                    target = await self._dial(wish)
                except RockError as error:
                    await passage.refuse(error.to_envelope())
                    return
                with target:
                    sandbox_id = self._open[_this()] = wish.sandbox
                    await passage.admit(target)
        except (BadMessage, TimeoutError) as error:
            log.warning("gate: a connection was refused: %s", error or "it did not say what it wants")
        except OSError as error:
            log.debug("gate: a connection broke: %s", error, extra={"sandbox_id": sandbox_id})
        if sandbox_id and time.monotonic() - begun > LONG:
            await self._loop.run_in_executor(self._pool, self._renew, sandbox_id)

    async def _dial(self, wish: Wish) -> socket.socket:
        """Return a connection to the program. Raises RockError."""
        if len(self._open) > self._settings.streams:
            raise Unavailable(
                f"node {self._node.id} has {self._settings.streams} connections into its sandboxes open (proxy.streams); "
                "try again later",
                sandbox_id=wish.sandbox,
            )
        dialed = self._loop.run_in_executor(
            self._pool, self._connect, check_name(wish.sandbox, "sandbox_id"), wish.port
        )
        try:
            return await asyncio.shield(dialed)
        except asyncio.CancelledError:
            dialed.add_done_callback(_close)
            raise

    def _connect(self, sandbox_id: str, port: int) -> socket.socket:
        """Return a connection to a port of a sandbox. Raises RockError."""
        try:
            target = self._deployment.dial(sandbox_id, port, self._settings.connect_seconds)
        except OSError as error:
            text = f"node {self._node.id} cannot make a connection into sandbox {sandbox_id}: {error}"
            raise Internal(text, sandbox_id=sandbox_id) from error
        target.setblocking(False)
        return target

    def _cut(self, sandbox_id: str) -> None:
        for task, name in list(self._open.items()):
            if name == sandbox_id:
                task.cancel()

    def _renew(self, sandbox_id: str) -> None:
        try:
            self._sandboxes.renew(sandbox_id, self._clock())
        except RockError as error:
            about = {"sandbox_id": sandbox_id}
            log.info("the lease was not renewed at the end of a connection: %s", error, extra=about)


def _this() -> asyncio.Task[None]:
    """Return the task of the connection that is being served."""
    task = asyncio.current_task()
    assert task is not None
    return task


def _close(dialed: asyncio.Future[socket.socket]) -> None:
    """Close a connection that came when nobody waited for it any more."""
    if not dialed.cancelled() and dialed.exception() is None:
        dialed.result().close()
