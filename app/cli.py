"""`rock admin`, `rock config` and `rock proc`: run this machine's service and look at its configuration."""

import json
import os
import sys
from typing import Any

import click

from app import admin as service
from app import config_source, log, processes, reloading, running
from app.config import Config, load
from app.config_shown import masked
from app.running import Running
from app.sections import ConfigError
from rock import settings

env_option = click.option("--env", help="Configuration: conf/rock-<env>.yml (default: ROCK_ADMIN_ENV, else local).")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def configured(overrides: dict[str, str]) -> Config:
    """Load the configuration with these variables on top; a mistake in it ends the command with its message."""
    try:
        return load(environ={**config_source.environment(), **overrides})
    except (ConfigError, settings.SettingError) as error:
        raise click.ClickException(str(error)) from error


def _overrides(**values: Any) -> dict[str, str]:
    """Return the options that were given, as the variables that stand for them."""
    names = {"env": "ROCK_ADMIN_ENV", "host": "ROCK_SERVER__HOST", "port": "ROCK_SERVER__PORT"}
    return {names[name]: str(value) for name, value in values.items() if value is not None}


@click.group()
def admin() -> None:
    """Run this machine's service."""


@admin.command()
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the API (default 8080).")
@click.option("--host", help="Address of the API (default 127.0.0.1; anything but loopback needs ROCK_API_KEYS).")
@click.option("--role", type=click.Choice(processes.ROLES), default="admin", help="proxy: the API alone.")
@click.option("--detach", is_flag=True, help="Return when the service is up, and leave it running.")
@env_option
@json_option
def start(port: int | None, host: str | None, role: str, detach: bool, env: str | None, as_json: bool) -> None:
    """Start Redis, the API, this machine's workers, beat and EnvHub, and keep them running."""
    report = _report_json if as_json else _report
    overrides = _overrides(env=env, host=host, port=port)
    config = configured(overrides)
    try:
        processes.check_listen(config)
        if doubt := processes.open_redis(config):
            click.echo(doubt, err=True)
        if detach:
            options = [("--port", port), ("--host", host), ("--role", role), ("--env", env)]
            arguments = [text for name, value in options if value is not None for text in (name, str(value))]
            there = service.launch(config, ["admin", "start", *arguments])
            report(there, service.health(there.url) or {})
        else:
            log.set_up(config, "admin")
            service.run(config, role, overrides, report)
    except (ConfigError, service.CannotStart) as error:
        raise click.ClickException(str(error)) from error


def _report(there: Running, health: dict[str, Any]) -> None:
    """Print what runs."""
    click.echo(f"ROCK runs at {there.url} (role {there.role}, environment {there.env}, pid {there.supervisor.pid})")
    if there.node:
        click.echo(f"  node: {there.node}")
    if health.get("runtime"):
        click.echo(f"  runtime: {', '.join(health['runtime'])}")
    click.echo("  processes: " + ", ".join(f"{one.name} {one.pid}" for one in there.processes))
    sys.stdout.flush()


def _report_json(there: Running, health: dict[str, Any]) -> None:
    """The same for programs."""
    click.echo(json.dumps({"url": there.url, "pid": there.supervisor.pid, "health": health}, indent=2))
    sys.stdout.flush()


@admin.command()
@env_option
@json_option
def stop(env: str | None, as_json: bool) -> None:
    """End the service and wait until all its processes are gone."""
    config = configured(_overrides(env=env))
    there = service.stop(config)
    if as_json:
        click.echo(json.dumps({"stopped": there.url if there else None}))
        return
    click.echo(f"stopped the service at {there.url}" if there else f"nothing runs from {config.server.data_dir}")


@admin.command()
@env_option
@json_option
def reload(env: str | None, as_json: bool) -> None:
    """Have the API and EnvHub read their configuration anew: keys in its file take effect at once, those in ROCK_API_KEYS after a restart."""
    config = configured(_overrides(env=env))
    try:
        done = reloading.reload(config)
    except (ConfigError, reloading.CannotReload) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps({"reloaded": done.told, "warning": done.doubt}))
    elif not done.told:
        raise click.ClickException(f"nothing runs from {config.server.data_dir}")
    else:
        click.echo(f"reloaded: {', '.join(done.told)}")
        if done.doubt:
            click.echo(done.doubt, err=True)


@admin.command()
@env_option
@json_option
def status(env: str | None, as_json: bool) -> None:
    """Say what runs; exit code 0 if the service is up, 1 if not."""
    found = service.status(configured(_overrides(env=env)))
    if as_json:
        click.echo(json.dumps(found, indent=2))
    elif not found["running"]:
        click.echo(f"not running ({found.get('phase', 'nothing runs from ' + found['data_dir'])})")
    else:
        click.echo(f"running at {found['url']} (role {found['role']}, pid {found['pid']})")
        for one in found["processes"]:
            click.echo(f"  {one['name']:<10} pid {one['pid']:<8} restarts {one['restarts']}")
        click.echo(f"  health: {json.dumps(found['health'])}")
    sys.exit(0 if found["running"] else 1)


@click.group()
def config() -> None:
    """Look at the configuration."""


@config.command()
@env_option
@json_option
def show(env: str | None, as_json: bool) -> None:
    """Print every key with its effective value; secrets are masked."""
    effective = masked(configured(_overrides(env=env)))
    if as_json:
        click.echo(json.dumps({**effective, "environment": settings.effective()}, indent=2))
        return
    click.echo(f"# environment {effective.pop('env')}, file {effective.pop('source') or 'none (defaults)'}")
    for section, values in effective.items():
        for key, value in values.items():
            click.echo(f"{section}.{key} = {json.dumps(value)}")
    for name, value in settings.effective().items():
        click.echo(f"{name} = {json.dumps(value)}  # {settings.SETTINGS[name].meaning}")


@click.command()
@click.argument("name", type=click.Choice(processes.NAMES))
@env_option
def proc(name: str, env: str | None) -> None:
    """Become one process of the service, as the Procfile needs it."""
    overrides = _overrides(env=env)
    loaded = configured(overrides)
    try:
        chosen = {process.name: process for process in processes.service(loaded)}
        if name not in chosen:
            click.echo(f"{name}: not needed, another one is configured")
            processes.wait_for_end()
            return
        if name == processes.REDIS:
            # Two servers on one append-only file would destroy it; the lock goes along through exec.
            os.set_inheritable(running.take(loaded.server.data_dir), True)
        elif name != processes.ENVHUB:
            processes.wait_for_redis(loaded.redis.url)
    except running.AlreadyRunning as error:
        raise click.ClickException(service.already(loaded)) from error
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    _become(chosen[name], overrides)


@click.command("start")
@click.option("--port", type=click.IntRange(1, 65535), help="Port (default 8081).")
@click.option("--host", help="Address (default 127.0.0.1; anything but loopback needs ROCK_API_KEYS).")
@click.option("--db-url", help="SQLite file: a path or a sqlite:/// URL (default ~/.rock/rock_envs.db).")
@env_option
def envhub_start(port: int | None, host: str | None, db_url: str | None, env: str | None) -> None:
    """Run EnvHub until told to stop."""
    given = {"ROCK_ENVHUB__PORT": port, "ROCK_ENVHUB__HOST": host, "ROCK_ENVHUB__DB_URL": db_url}
    overrides = {**_overrides(env=env), **{name: str(value) for name, value in given.items() if value is not None}}
    loaded = configured(overrides)
    try:
        processes.check_listen(loaded)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"EnvHub runs at {loaded.envhub.host}:{loaded.envhub.port}, its file is {loaded.envhub.db_url}")
    sys.stdout.flush()
    _become(processes.envhub(loaded), overrides)


def _become(process: processes.Process, overrides: dict[str, str]) -> None:
    """Replace this process by one of the service."""
    os.execvpe(process.argv[0], process.argv, {**settings.with_prefix(""), **overrides, **process.env})
