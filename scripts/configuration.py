"""Writes docs/configuration.md from the registry: `python -m scripts.configuration`. A test checks that the file is current."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
from pathlib import Path
from typing import Any

from app import config
from rock import settings

FILE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

_HEAD = """\
# Configuration

This page is made by `python -m scripts.configuration` from `app/config.py` and `sdk/rock/settings.py`; a test checks that it is current.

A value comes from, the later the stronger: the defaults here, `conf/rock-<env>.yml` (`<env>` is `--env` or `ROCK_ADMIN_ENV`, else `local`;
`ROCK_CONFIG` names another file), the environment. Every key has a variable, `ROCK_<SECTION>__<KEY>`; the usual ones have a short name, too.
Sizes are bytes, or texts such as `512m` and `8g`; lists are comma separated in variables. An unknown key is refused with the nearest known one.
`rock config show` prints what holds, secrets masked.
"""


def page() -> str:
    """Return the text of the page."""
    short = {key: name for name, key in config.NAMED.items()}
    parts = [_HEAD]
    for section, kind in config.SECTIONS.items():
        meanings = _meanings(kind)
        parts.append(
            f"\n## `{section}`\n{inspect.getdoc(kind)}\n\n| key | default | variable | meaning |\n|---|---|---|---|\n"
        )
        for item in dataclasses.fields(kind):
            if item.metadata.get("derived"):
                continue
            name = short.get(f"{section}.{item.name}") or f"ROCK_{section.upper()}__{item.name.upper()}"
            meaning = meanings.get(item.name, "")
            parts.append(f"| `{item.name}` | {_default(item)} | `{name}` | {meaning} |\n")
    parts.append(
        "\n## Environment only\nRead by the SDK, the command line and the rollout client, or needed before there is a configuration.\n\n"
        "| variable | default | meaning |\n|---|---|---|\n"
    )
    for setting in settings.SETTINGS.values():
        if setting.name not in config.NAMED:
            parts.append(f"| `{setting.name}` | {_shown(setting.default)} | {setting.meaning} |\n")
    return "".join(parts)


def _meanings(kind: type) -> dict[str, str]:
    """Return the texts that stand under a section's fields, by field, each on one line."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    found, field = {}, ""
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            field = node.target.id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and field:
            found[field] = " ".join(str(node.value.value).split()).replace("|", "\\|")
            field = ""
    return found


def _default(item: dataclasses.Field[Any]) -> str:
    """Return a key's default, and its choices if it has any."""
    value = item.default if item.default is not dataclasses.MISSING else ""
    if item.metadata.get("size") and isinstance(value, int) and value:
        value = next(
            f"{value // unit}{letter}" for unit, letter in ((1024**3, "g"), (1024**2, "m"), (1, "")) if not value % unit
        )
    choices = item.metadata.get("choices")
    return _shown(value) + (f" ({', '.join(choices)})" if choices else "")


def _shown(value: Any) -> str:
    """Return a default as text."""
    if value is None or value in ("", ()):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{FILE} is written\n")
