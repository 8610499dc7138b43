"""Sandboxes in containers live and end in every way there is, processes are killed meanwhile, and nothing is left. By hand: `--lifecycles 500`."""

import contextlib
import os
import random
import secrets
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
import pytest
import redis

from app.keys import Keys
from scripts import images
from tests.chaos.test_kills import nothing_held
from tests.crowd import descriptors
from tests.wire import Api, Box, Reply, retried, until

AT_ONCE = 6
PATIENCE = 100.0
"""Seconds within which whoever asks again and again has its answer, whatever is killed meanwhile."""
VICTIMS = ("worker", "lifecycle", "api", "redis", "beat")
VOLUME = "rock-test/volume:1"


class Lives:
    """The ways in which a sandbox lives and ends. Each is a method, called in a thread of its own, that ends what it began."""

    def __init__(self, url: str, engine: docker.DockerClient) -> None:
        self._api, self._engine = Api(url), engine

    def plain(self, chance: random.Random) -> None:
        """A session, a one-off command, a large file, and a stop with work in hand."""
        name = self._start(image=VOLUME)
        self._do("/create_session", sandbox_id=name, session="a")
        self._do("/execute", sandbox_id=name, command="echo hi >/data/a", shell=True)
        # One that a kill cuts off fails, and says that it may be sent again.
        until(lambda: self._upload(name).ok, PATIENCE, "an upload")
        self._do("/run_in_session", sandbox_id=name, session="a", command="sleep 9876 & sleep 9876", wait=0)
        self._do("/stop", sandbox_id=name)

    def stopped_half_way(self, chance: random.Random) -> None:
        """A cancellation or a stop while it starts."""
        request = uuid.uuid4().hex
        name = self._do("/start_async", **_small(), request_id=request).result["sandbox_id"]
        if chance.random() < 0.5:
            self._ask(f"/results/{request}/cancel")
        self._do("/stop", sandbox_id=name)

    def refused(self, chance: random.Random) -> None:
        """A start that fails: no such image, no bash in it, no time."""
        fields: list[dict[str, object]] = [{"image": "rock-test/nothing:1", "pull": "never"}, {"image": images.NOBASH}]
        wrong = chance.choice([*fields, {"startup_timeout": 0.05}])
        reply = self._ask("/start", **_small(**wrong))
        assert not reply.ok or "startup_timeout" in wrong, reply.body
        if reply.ok:
            self._do("/stop", sandbox_id=reply.result["sandbox_id"])

    def killed(self, chance: random.Random) -> None:
        """Its container is killed or removed by somebody else, which is seen without a call."""
        name = self._start()
        (container,) = self._engine.containers.list(filters={"label": f"rock.sandbox={name}"}, ignore_removed=True)
        container.kill() if chance.random() < 0.5 else container.remove(force=True, v=True)

        def is_seen() -> bool:
            reply = retried(lambda: self._api.get("/is_alive", sandbox_id=name), PATIENCE)
            return reply.ok and not reply.result["is_alive"]

        until(is_seen, PATIENCE, "its end being seen")

    def again(self, chance: random.Random) -> None:
        """Stopped, started again, stopped, deleted."""
        name = self._start(auto_delete_seconds=600)
        for route in ("/stop", "/restart", "/stop", "/delete"):
            self._do(route, sandbox_id=name)

    def forgotten(self, chance: random.Random) -> None:
        """Nobody stops it: its lease ends."""
        self._start(auto_clear_seconds=1)

    def _upload(self, name: str) -> Reply:
        reply = retried(lambda: Box(self._api, name).upload(b"x" * 3_000_000, "/tmp/large"), PATIENCE)
        assert reply.ok or reply.body["result"]["retryable"], reply.body
        return reply

    def _start(self, **fields: object) -> str:
        return str(self._do("/start", **_small(**fields)).result["sandbox_id"])

    def _do(self, route: str, **fields: object) -> Reply:
        reply = self._ask(route, **fields)
        assert reply.ok, f"{route} {fields}: {reply.body!r}"
        return reply

    def _ask(self, route: str, **fields: object) -> Reply:
        """Ask until answered, under one request id."""
        fields = {"request_id": uuid.uuid4().hex, **fields}
        return retried(lambda: self._api.post(route, **fields), PATIENCE)


WAYS = (Lives.plain, Lives.stopped_half_way, Lives.refused, Lives.killed, Lives.again, Lives.forgotten)


def _small(**fields: object) -> dict[str, object]:
    return {"image": images.DEBIAN, "memory": "64m", "cpus": 0.05, "auto_delete_seconds": 0, **fields}


class Inventory:
    """What a service may leave behind, counted."""

    def __init__(self, stack, engine: docker.DockerClient) -> None:
        self._stack, self._engine = stack, engine

    def counts(self) -> dict[str, int]:
        """Return how many there are of each kind."""
        stack, pids = self._stack, self._stack.pids()
        with contextlib.closing(redis.Redis.from_url(stack.redis_url, decode_responses=True)) as client:
            keys = {key: 1 for key in client.scan_iter(count=1000) if client.ttl(key) == -1}
            stopped = client.zcard(Keys().node_stopped(stack.node_id))
        label = f"rock.node={stack.node_id}"
        return {
            "containers": len(self._engine.api.containers(all=True, filters={"label": label})),
            "kept containers": stopped,
            "volumes": len(self._engine.volumes.list()),
            "networks": len(self._engine.networks.list()),
            "shims without a container": len(self._orphans()),
            **keys,
            **{f"descriptors of {name}": descriptors(pids[name].pid) for name in ("api", "worker", "lifecycle")},
        }

    def _orphans(self) -> set[str]:
        """Return the ids of containers that have a process of the engine's, and that the engine does not know."""
        found = set()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_text(errors="replace").split("\0")
                if "containerd-shim" in words[0] and "-id" in words:
                    found.add(words[words.index("-id") + 1])
        return found - {one["Id"] for one in self._engine.api.containers(all=True)}


@pytest.fixture(scope="module")
def stack(make_stack, engine_url):
    """A service of its own, since its processes die, whose containers have a volume where their image says so."""
    variables = {"DOCKER_HOST": engine_url, "ROCK_NODE__LOST_AFTER_SECONDS": "40"}
    return make_stack(runtime="docker", variables=variables).start()


@pytest.fixture
def volume_image(engine) -> Iterator[None]:
    """An image that declares a volume."""
    base = engine.containers.create(images.DEBIAN, ["true"])
    repository, tag = VOLUME.split(":")
    base.commit(repository, tag, changes="VOLUME /data")
    base.remove()
    yield
    engine.images.remove(VOLUME)


def test_nothing_is_left(stack, engine, volume_image, pytestconfig, capsys):
    seed = pytestconfig.getoption("--chaos-seed") or secrets.randbits(32)
    number, chance = pytestconfig.getoption("--lifecycles"), random.Random(seed)
    lives, inventory = Lives(stack.url, engine), Inventory(stack, engine)
    with ThreadPoolExecutor(AT_ONCE) as pool:  # all connections of all pools
        list(pool.map(lambda way: way(lives, random.Random(seed)), WAYS))
    before = _settled(stack, inventory)
    lived, kills, over = Counter[str](), Counter[str](), threading.Event()

    def live(place: int) -> None:
        luck = random.Random(f"{seed}-{place}")
        way = WAYS[place % len(WAYS)]
        way(lives, luck)
        lived[way.__name__] += 1

    def kill() -> None:
        while not over.wait(chance.uniform(1, 6)):
            name = chance.choice(VICTIMS)
            if process := stack.pids().get(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
                    kills[name] += 1

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    began = time.monotonic()
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for done in [pool.submit(live, place) for place in range(number)]:
                done.result()
    finally:
        over.set()
        killer.join()
    seconds = time.monotonic() - began
    after = _settled(stack, inventory)
    story = f"seed {seed}: {lived.total()} lives {dict(lived)} in {seconds:.0f} s, killed {dict(kills)}\nbefore: {_shown(before)}\nafter:  {_shown(after)}"
    with capsys.disabled():
        sys.stdout.write(f"\n{story}\n")
    # Connections to the engine and to Redis are kept, as many as were needed at once.
    limits = {kind: before.get(kind, 0) + (20 if kind.startswith("descriptors") else 0) for kind in after}
    assert not {kind: count for kind, count in after.items() if count > limits[kind]}, f"{story}\n{stack.log()}"


def _shown(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if not kind.startswith("rock:"))


def _settled(stack, inventory: Inventory) -> dict[str, int]:
    """Return the counts once all that ended is cleared away."""

    def cleared() -> bool:
        counts = inventory.counts()
        return not (counts["containers"] or counts["kept containers"] or counts["shims without a container"])

    until(lambda: set(VICTIMS) <= set(stack.pids()), PATIENCE, "all processes being there")
    until(cleared, PATIENCE, "the end of all containers")
    nothing_held(stack)
    return inventory.counts()
