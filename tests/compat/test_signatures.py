"""docs/sdk.md compares our SDK with rl-rock's: every method and field is in its table, and what the table says is true."""

import dataclasses
import json
import re
import subprocess
from pathlib import Path

import pytest

from rock import settings
from rock.sdk.sandbox import client, config, files, process
from tests.compat.signatures import methods
from tests.service_stack import ROOT

SCRIPT = Path(__file__).with_name("third_party_signatures.py")
ROW = re.compile(r"^\| `([\w.]+)` \| (same|better|different|left out|new) \|(.*)\|$", re.MULTILINE)
CLASSES = {
    "Sandbox": client.Sandbox,
    "SandboxGroup": client.SandboxGroup,
    "Sandbox.fs": files.FileSystem,
    "Sandbox.process": process.Process,
}
CONFIGS = {"SandboxConfig": config.SandboxConfig, "SandboxGroupConfig": config.SandboxGroupConfig}
INTERNAL = {"send", "call", "listen", "required_id"}


@pytest.fixture(scope="module")
def theirs(rl_rock_python):
    environment = settings.inherited(["PATH", "HOME", "LANG"])
    done = subprocess.run(
        [str(rl_rock_python), str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def table():
    return {name: (verdict, why.strip()) for name, verdict, why in ROW.findall((ROOT / "docs" / "sdk.md").read_text())}


def ours(owner):
    """Return our public names of a class: methods with their parameters, properties, fields with their defaults."""
    if owner in CONFIGS:
        made = CONFIGS[owner]()
        return {item.name: getattr(made, item.name) for item in dataclasses.fields(made)}
    return methods(CLASSES[owner], INTERNAL)


def test_every_name_of_theirs_is_in_the_table_with_what_is_true_of_ours(theirs, table, monkeypatch):
    monkeypatch.delenv("ROCK_BASE_URL", raising=False)
    for owner, names in theirs.items():
        mine = ours(owner) if owner in CLASSES or owner in CONFIGS else {}
        if owner == "SandboxGroupConfig":
            names = {name: value for name, value in names.items() if name not in theirs["SandboxConfig"]}
        for name, value in names.items():
            key = f"{owner}.{name}"
            verdict, why = table.get(key) or (_family(table, owner))
            if verdict == "left out":
                assert name not in mine and why, f"{key} is said to be left out"
                continue
            assert name in mine, f"{key} is said to be here"
            if verdict == "same" and isinstance(value, list):
                assert mine[name][: len(value)] == value, f"{key}: {mine[name]} and not {value}"
            elif verdict == "same":
                assert mine[name] == value, f"{key}: {mine[name]!r} and not {value!r}"
            elif isinstance(value, list):
                assert [one for one, _ in mine[name]][: len(value)] == [one for one, _ in value] and why, key


def test_what_only_ours_has_is_in_the_table_too(theirs, table):
    for owner in (*CLASSES, *CONFIGS):
        inherited = theirs["SandboxConfig"] if owner == "SandboxGroupConfig" else {}
        for name in ours(owner):
            if name in theirs[owner] or name in inherited or owner == "SandboxGroupConfig":
                continue
            assert table[f"{owner}.{name}"][0] == "new", f"{owner}.{name} is not in the table as new"
    known = {f"{owner}.{name}" for owner in (*CLASSES, *CONFIGS) for name in ours(owner)}
    known |= {f"{owner}.{name}" for owner, names in theirs.items() for name in names} | set(theirs)
    assert not set(table) - known, "the table names what nobody has"


def _family(table, owner):
    """Return the row of a whole part (`Sandbox.agent`) that is left out."""
    assert owner in table, f"{owner} is not in the table"
    return table[owner]
