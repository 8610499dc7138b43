"""L19: many starts at the same moment: all come up, a bounded number at once, and who works already is not held up. By hand: `--burst 64`."""

import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from scripts.images import DEBIAN
from tests.wire import Api

SMALL = {"image": DEBIAN, "memory": "64m", "cpus": 0.02, "limit_cpus": 1}
THREADS = 8
"""Of a lifecycle worker, by default (celery.lifecycle_threads)."""


class Watch:
    """Looks at the engine and at a living sandbox while something else goes on."""

    def __init__(self, engine, shell, label: str) -> None:
        self._engine, self._shell, self._label, self._over = engine, shell, label, threading.Event()
        self.took, self.most_unborn = [], 0
        self._threads = [threading.Thread(target=work) for work in (self._echo, self._look)]

    def __enter__(self) -> "Watch":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _echo(self) -> None:
        while not self._over.is_set():
            begun = time.monotonic()
            assert self._shell.output("echo on") == "on"
            self.took.append(time.monotonic() - begun)

    def _look(self) -> None:
        """Count the containers that are made and do not run yet."""
        while not self._over.wait(0.02):
            found = self._engine.api.containers(all=True, filters={"label": self._label, "status": "created"})
            self.most_unborn = max(self.most_unborn, len(found))


def test_L19_R06_a_burst_of_starts(engine, engine_server, pytestconfig, capsys):
    """R06: a network for each would end the addresses of an engine; they share one."""
    number, api = pytestconfig.getoption("--burst"), Api(engine_server.url)
    shell, networks = api.start(**SMALL).open(), {one.id for one in engine.networks.list()}
    shell.output("true")
    idle = []
    for _ in range(30):
        begun = time.monotonic()
        shell.output("echo on")
        idle.append(time.monotonic() - begun)
    log = engine_server.data_dir / "logs" / "service.log"
    read = log.stat().st_size
    with ThreadPoolExecutor(number) as pool, Watch(engine, shell, f"rock.node={engine_server.node_id}") as watch:
        begun = time.monotonic()
        boxes = list(pool.map(lambda _: api.start(**SMALL, auto_delete_seconds=0), range(number)))
        seconds = time.monotonic() - begun
    assert {one.id for one in engine.networks.list()} == networks
    assert watch.most_unborn <= THREADS
    story = (
        f"{number} starts at once in {seconds:.1f} s, at most {watch.most_unborn} in the making; an echo meanwhile: median "
        f"{statistics.median(watch.took) * 1e3:.1f} ms, p95 {_p95(watch.took) * 1e3:.1f} ms (idle: {_p95(idle) * 1e3:.1f} ms)"
    )
    with capsys.disabled():
        sys.stdout.write(f"\n{story}\n")
    # Twice the idle time is what a quiet machine shows; other tests make it hard to promise here.
    assert statistics.median(watch.took) < 0.5, story
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda box: box.stop(), boxes))
    with log.open("rb") as file:
        file.seek(read)
        assert b"Connection pool is full" not in file.read()
    shell.stop()


def _p95(took: list[float]) -> float:
    return sorted(took)[int(len(took) * 0.95)]
