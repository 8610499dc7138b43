"""What a trainer sees through our SDK: `python -m bench.sdk`. Large files both ways, a folder of small ones, many users at once."""

import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import click

from rock.actions import BashAction, CreateBashSessionRequest
from rock.sdk.sandbox.client import Sandbox, SandboxGroup
from rock.sdk.sandbox.config import SandboxConfig, SandboxGroupConfig

MB = 1_000_000
AT_A_TIME = 8
"""Starts under way at once."""
SESSION = "bench"


@click.command()
@click.option("--size", default=100.0, show_default=True, help="MB of the large file.")
@click.option("--files", default=1000, show_default=True, help="Files of the folder.")
@click.option("--folder-size", default=10.0, show_default=True, help="MB of the folder.")
@click.option("--times", default=5, show_default=True, help="How often each transfer is measured.")
@click.option("--users", default=64, show_default=True, help="Sandboxes, each with one user; 0: none.")
@click.option("--seconds", default=10.0, show_default=True, help="Of the users' closed loop.")
def main(size: float, files: int, folder_size: float, times: int, users: int, seconds: float) -> None:
    """Measure the service at ROCK_BASE_URL through the SDK, and print a line for each figure."""
    asyncio.run(_measure(size, files, folder_size, times, users, seconds))


async def _measure(size: float, files: int, folder_size: float, times: int, users: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as place:
        await _transfers(Path(place), size, files, folder_size, times)
    if users:
        rate, cpu = await _users(users, seconds)
        click.echo(f"{users} users: {rate:.0f} steps/s in all; this program used {cpu:.0%} of a core")


async def _transfers(place: Path, size: float, files: int, folder_size: float, times: int) -> None:
    """Measure transfers in one sandbox; what comes back is compared with what was sent."""
    large, back, folder = place / "large", place / "back", place / "folder"
    large.write_bytes(os.urandom(round(size * MB)))
    folder.mkdir()
    for number in range(files):
        (folder / f"{number}.bin").write_bytes(os.urandom(round(folder_size * MB / files)))
    spent: dict[str, list[float]] = {"upload": [], "download": [], "folder": []}
    async with Sandbox(SandboxConfig(memory="1g", cpus=0.5, limit_cpus=2, auto_delete_seconds=0)) as sandbox:
        home = (await sandbox.arun("echo ~")).output
        for _ in range(times):
            with _timed(spent["upload"].append):
                await sandbox.upload_by_path(large, f"{home}/large")
            with _timed(spent["download"].append):
                await sandbox.fs.download_file(f"{home}/large", back)
            if back.read_bytes() != large.read_bytes():
                raise click.ClickException("what came back is not what was sent")
            with _timed(spent["folder"].append):
                await sandbox.fs.upload_dir(folder, f"{home}/folder")
    for name in ("upload", "download"):
        rates = sorted(size / one for one in spent[name])
        click.echo(
            f"{name} of {size:g} MB: {statistics.median(rates):.0f} MB/s (n={times}, {rates[0]:.0f} to {rates[-1]:.0f})"
        )
    took = sorted(spent["folder"])
    text = f"upload of a folder, {files} files, {folder_size:g} MB"
    click.echo(f"{text}: {statistics.median(took):.2f} s (n={times}, {took[0]:.2f} to {took[-1]:.2f})")


async def _users(count: int, seconds: float) -> tuple[float, float]:
    """Return the steps per second of `count` users, each in a sandbox of its own, and the share of a core that we used."""
    async with _ready(count) as sandboxes:
        cpu, end = time.process_time(), time.monotonic() + seconds
        done = await asyncio.gather(*(_steps(sandbox, end) for sandbox in sandboxes))
        return sum(done) / seconds, (time.process_time() - cpu) / seconds


@contextlib.asynccontextmanager
async def _ready(count: int) -> AsyncIterator[list[Sandbox]]:
    """Yield sandboxes with a session each; they are stopped at the end."""
    shape = SandboxGroupConfig(
        memory="64m", cpus=0.05, limit_cpus=1, auto_delete_seconds=0, size=count, start_concurrency=AT_A_TIME
    )
    async with SandboxGroup(shape) as group:
        opening = CreateBashSessionRequest(session=SESSION)
        await asyncio.gather(*(sandbox.create_session(opening) for sandbox in group.sandbox_list))
        yield group.sandbox_list


async def _steps(sandbox: Sandbox, end: float) -> int:
    """Run `echo hi` until `end`; return how often."""
    count = 0
    while time.monotonic() < end:
        seen = await sandbox.run_in_session(BashAction(session=SESSION, command="echo hi"))
        if seen.output != "hi":
            raise click.ClickException(f"`echo hi` gave {seen.output[:60]!r}")
        count += 1
    return count


@contextlib.contextmanager
def _timed(keep: Callable[[float], None]) -> Iterator[None]:
    """Keep the seconds that the block takes."""
    begin = time.perf_counter()
    yield
    keep(time.perf_counter() - begin)


if __name__ == "__main__":
    main()
