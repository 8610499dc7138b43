"""Runs this machine's service: brings its processes up together, and says whether they run.

`run` is the body of the supervising process. What it knows is kept in `running.json` under the data folder, by which
`rock admin stop` and `status` find exactly the processes that were started here.
"""

import json
import logging
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from app import processes, running
from app.config import Config
from app.processes import Process
from app.running import Pid, Running
from app.supervisor import StartFailed, Supervisor

log = logging.getLogger(__name__)

START_SECONDS = 60.0
STOP_SECONDS = 90.0


class CannotStart(Exception):
    """The service cannot be started; the message says why and what to do."""


def url_of(config: Config) -> str:
    """Return the address under which this machine reaches the API."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.server.host, config.server.host)
    return f"http://[{host}]:{config.server.port}" if ":" in host else f"http://{host}:{config.server.port}"


def health(url: str, seconds: float = 2.0) -> dict[str, Any] | None:
    """Return what /healthz says, or None while it does not answer."""
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=seconds) as response:
            answer = json.load(response)
    except (OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None


def run(
    config: Config, role: str, overrides: dict[str, str], report: Callable[[Running, dict[str, Any]], None]
) -> None:
    """Run the service until told to stop; `report` is called once, when it is up.

    Params:
        overrides: variables that make the children load the same configuration.
    Raises:
        CannotStart, ConfigError: nothing was left running.
    """
    # A file that is found by the folder and the environment's name would be looked for anew at each of their starts.
    file = {"ROCK_CONFIG": str(Path(config.source).resolve())} if config.source else {}
    children = processes.with_variables(processes.service(config, role), {**overrides, **file})
    try:
        with running.hold(config.server.data_dir):
            _end_leftovers(config)
            _check_ports(config, role)
            try:
                _supervise(config, role, _without_second_envhub(config, children), report)
            finally:
                running.forget(config.server.data_dir)
    except running.AlreadyRunning as error:
        raise CannotStart(already(config)) from error


def _supervise(
    config: Config, role: str, children: Sequence[Process], report: Callable[[Running, dict[str, Any]], None]
) -> None:
    """Start the children in order, watch them, stop them."""
    supervisor = Supervisor(children)
    note = _Note(config, role, supervisor)
    try:
        for child in children:
            supervisor.start(child.name)
            note.write("starting")
            if child.name == processes.REDIS:
                processes.wait_for_redis(config.redis.url)
        if supervisor.wait_until(lambda: _is_up(config, role), START_SECONDS):
            report(note.write("running"), health(url_of(config)) or {})
            supervisor.watch(lambda: note.write("running"))
    except StartFailed as error:
        raise CannotStart(str(error)) from error
    finally:
        note.write("stopping")
        supervisor.stop()


class _Note:
    """Writes what runs into the data folder."""

    def __init__(self, config: Config, role: str, supervisor: Supervisor) -> None:
        self._config, self._role, self._supervisor = config, role, supervisor
        self._me = running.myself("supervisor")

    def write(self, phase: str) -> Running:
        """Record the phase and the living children; return the record."""
        record = Running(
            supervisor=self._me,
            role=self._role,
            env=self._config.env,
            url=url_of(self._config),
            node="" if self._role == "proxy" else self._config.node.id,
            phase=phase,
            processes=self._supervisor.pids(),
        )
        running.write(self._config.server.data_dir, record)
        return record


def _is_up(config: Config, role: str) -> bool:
    """Return whether the API answers and, where this machine is a node, a node takes sandboxes."""
    answer = health(url_of(config), 0.5)
    return answer is not None and (role == "proxy" or answer.get("nodes", {}).get("alive", 0) > 0)


def already(config: Config) -> str:
    """Say what holds the data folder."""
    there = running.read(config.server.data_dir)
    what = f"at {there.url} (pid {there.supervisor.pid})" if there else f"from {config.server.data_dir}"
    return f"the service already runs {what}; end it with `rock admin stop`, or use another ROCK_DATA_DIR and ports"


def _end_leftovers(config: Config) -> None:
    """End what a killed supervisor left; the kernel told them to end, so this is for those that did not listen."""
    left = running.read(config.server.data_dir)
    if left is None:
        return
    alive = tuple(process for process in left.processes if process.is_alive())
    if alive:
        log.warning("ending what an earlier run left: %s", ", ".join(f"{one.name} {one.pid}" for one in alive))
        running.end(tuple(reversed(alive)), 20.0)
    running.forget(config.server.data_dir)


def _check_ports(config: Config, role: str) -> None:
    """Refuse ports that somebody else listens on, before anything is started."""
    _check_port(config.server.host, config.server.port, "the API", "--port or ROCK_PORT")
    if config.redis.embedded and role != "proxy":
        _check_port("127.0.0.1", config.redis.port, "the embedded Redis", "ROCK_REDIS__PORT, or ROCK_REDIS_URL")


def _without_second_envhub(config: Config, children: Sequence[Process]) -> tuple[Process, ...]:
    """Return the processes, without EnvHub if its port is taken: one serves all services of a machine."""
    try:
        _check_port(config.envhub.host, config.envhub.port, "EnvHub", "ROCK_ENVHUB__PORT")
    except CannotStart as error:
        if any(child.name == processes.ENVHUB for child in children):
            log.warning("no EnvHub is started, GEM asks the one at %s: %s", config.envhub.base_url, error)
        return tuple(child for child in children if child.name != processes.ENVHUB)
    return tuple(children)


def _check_port(host: str, port: int, what: str, setting: str) -> None:
    """Raise CannotStart if `port` cannot be listened on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the servers do: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise CannotStart(
                f"{what} cannot listen on {host}:{port} ({error.strerror}): "
                f"another program uses it, or the address is not ours; choose another with {setting}"
            ) from error


def launch(config: Config, arguments: Sequence[str]) -> Running:
    """Start the supervisor in the background with `rock` and these arguments; return once the service is up.

    Raises:
        CannotStart: it ended before that; carries the end of its log.
    """
    folder = Path(config.server.data_dir) / "logs"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / "service.log"
    with path.open("ab") as output:
        begin = output.tell()
        child = subprocess.Popen(
            [sys.executable, "-m", "rock.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    while child.poll() is None:
        there = running.read(config.server.data_dir)
        if there and there.supervisor.pid == child.pid and there.phase == "running":
            return there
        time.sleep(0.05)
    raise CannotStart(_last_words(path, begin))


def _last_words(path: Path, begin: int) -> str:
    """Return the end of the log as far as it is about the failure, without the orderly stop that followed."""
    with path.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
    ends = [place for place, line in enumerate(lines) if line.endswith(" while starting")]
    reason = lines[-1].removeprefix("Error: ") if lines else "it said nothing"
    before = lines[max(0, ends[0] - 12) : ends[0]] if ends else []
    return "\n".join([reason, *before, f"(the whole log: {path})"])


def stop(config: Config) -> Running | None:
    """End the service of this data folder and wait for it; return what ran, or None if nothing did."""
    there = running.read(config.server.data_dir)
    if there is None:
        return None
    children: tuple[Pid, ...] = tuple(reversed(there.processes))
    ran = any(process.is_alive() for process in (there.supervisor, *children))
    running.end((there.supervisor,), STOP_SECONDS)
    # With the supervisor gone its children are gone too, unless it was killed: then they are ended here.
    running.end(tuple(process for process in children if process.is_alive()), 20.0)
    running.forget(config.server.data_dir)
    return there if ran else None


def status(config: Config) -> dict[str, Any]:
    """Return whether the service of this data folder runs, with its processes and what /healthz says."""
    there = running.read(config.server.data_dir)
    if there is None or not there.supervisor.is_alive():
        return {"running": False, "data_dir": config.server.data_dir}
    return {
        "running": there.phase == "running",
        "phase": there.phase,
        "pid": there.supervisor.pid,
        "url": there.url,
        "role": there.role,
        "env": there.env,
        "node": there.node,
        "data_dir": config.server.data_dir,
        "processes": [
            {"name": one.name, "pid": one.pid, "restarts": one.restarts, "alive": one.is_alive()}
            for one in there.processes
        ],
        "health": health(there.url),
    }
