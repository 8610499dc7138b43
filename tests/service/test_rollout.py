"""The rollout's client against the real service, with connections that break."""

import asyncio
import contextlib
from urllib.parse import urlsplit

import pytest

from rock import errors
from rock.rollout import RockSandbox


class Cutter:
    """A way to the service that can be cut: all connections break, new ones work."""

    def __init__(self, url):
        self._target = urlsplit(url)
        self._open = set()
        self.arrived = asyncio.Event()
        """Set whenever the service was sent something."""

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error):
        self.cut()
        self._server.close()
        await self._server.wait_closed()

    def cut(self):
        for writer in self._open:
            writer.transport.abort()

    async def _connected(self, reader, writer):
        there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
        ends = {writer, back}
        self._open |= ends
        await asyncio.gather(self._pump(reader, back, True), self._pump(there, writer, False))
        self._open -= ends

    async def _pump(self, reader, writer, forth):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
                if forth:
                    self.arrived.set()
        writer.close()


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.02)


def test_T09_a_broken_connection_repeats_nothing(server, tmp_path):
    async def body():
        async with Cutter(server.url) as way, RockSandbox(way.url) as sandbox:
            start = asyncio.create_task(sandbox.start("any", cpus=0.1, memory="64m"))
            await way.arrived.wait()
            way.cut()
            await start
            begun, go = tmp_path / "begun", tmp_path / "go"
            command = f"echo x >> {begun}; until [ -e {go} ]; do sleep 0.05; done; echo over"
            run = asyncio.create_task(sandbox.execute_in_session(command))
            await until(begun.exists)
            way.cut()
            way.arrived.clear()
            await way.arrived.wait()
            go.touch()
            assert (await run).output == "over"
            assert begun.read_text() == "x\n"

    asyncio.run(body())


def test_the_verbs(server):
    async def body():
        async with RockSandbox(server.url) as sandbox:
            await sandbox.start("any", cpus=0.1, memory="64m")
            await sandbox.execute_in_session("cd /tmp; x=1", "s")
            seen = await sandbox.execute_in_session("pwd; echo $x; false", "s")
            assert (seen.output, seen.exit_code) == ("/tmp\n1", 1)
            done = await sandbox.execute("echo out; echo err >&2; exit 3")
            assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 3)
            assert (await sandbox.execute(["printf", "%s", "a  b"])).stdout == "a  b"
            with pytest.raises(errors.CommandTimeout):
                await sandbox.execute_in_session("sleep 60", "s", timeout=0.5)
            ended = await sandbox.execute_in_session("exit 4", "s")
            assert ended.exit_code == 4 and "ended" in ended.failure_reason
            with pytest.raises(errors.BadRequest, match="docker_args"):
                await RockSandbox(server.url).start("any", docker_args=["--privileged"])

    asyncio.run(body())
