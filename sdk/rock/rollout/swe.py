"""The tools of a SWE agent: what a model is told of them, and the shell command that each call becomes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rock import settings
from rock.errors import BadRequest

ENTRYPOINT = "/home/swe_execute_sandbox.py"
"""Where the editor stands in a SWE sandbox."""
REPOSITORY = "/testbed"

_INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*__[A-Za-z0-9][A-Za-z0-9._-]*")
_ARGUMENT_BYTES = 60_000
"""Longer parameters go over standard input: Linux refuses single arguments of 128 KB."""


def _tool(name: str, description: str, required: list[str], properties: dict[str, Any]) -> dict[str, Any]:
    """Return a tool as models are told of it (the usual function-calling form)."""
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


SWE_TOOL_CONFIGS: list[dict[str, Any]] = [
    _tool(
        "execute_bash",
        f"Run a bash command in the repository's environment. The shell is one and the same for all calls: the working "
        f"folder ({REPOSITORY} at first) and variables stay. A command is ended after 120 seconds and gets no input.",
        ["command"],
        {"command": {"type": "string", "description": "The command; several lines are allowed."}},
    ),
    _tool(
        "str_replace_editor",
        "View, create and edit text files. view: a file with line numbers, or a folder two levels deep. create: a new "
        "file. str_replace: replace the only place where old_str stands, which must match exactly. insert: put new_str "
        "after a line.",
        ["command", "path"],
        {
            "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert"]},
            "path": {"type": "string", "description": f"Absolute path, such as {REPOSITORY}/setup.py."},
            "view_range": {
                "type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2,
                "description": "view: the first and the last line, counted from 1; -1 is the file's last.",
            },
            "file_text": {"type": "string", "description": "create: the whole content."},
            "old_str": {"type": "string", "description": "str_replace: the text to replace, whitespace included."},
            "new_str": {"type": "string", "description": "str_replace, insert: the new text; left out: nothing."},
            "insert_line": {"type": "integer", "description": "insert: the line after which it goes; 0: at the top."},
        },
    ),
]  # fmt: skip
"""What a model is told of the tools."""


def get_swe_bench_image(name: str) -> str:
    """Return the image of a SWE-bench instance: `django__django-16911` has
    `swebench/sweb.eval.x86_64.django_1776_django-16911:latest`.

    Raises:
        BadRequest: the name is not `<owner>__<repository>-<number>`.
    """
    if not _INSTANCE.fullmatch(name):
        raise BadRequest(f"instance_id {name!r} is not of the form owner__repository-number")
    # Image names have no capitals, and Docker Hub refuses two underscores in a row.
    return f"swebench/sweb.eval.x86_64.{name.lower().replace('__', '_1776_')}:latest"


def entrypoint_mount() -> list[str]:
    """Return the `docker_args` that put the editor into a sandbox, read-only.

    The file is the node's: `SWE_ENTRYPOINT_LOCAL`, or the one in this package where client and node share a disk. The
    node's configuration must name its folder in `node.allowed_mounts`.
    """
    local = settings.read("SWE_ENTRYPOINT_LOCAL") or str(Path(__file__).with_name("swe_execute_sandbox.py"))
    return ["-v", f"{local}:{ENTRYPOINT}:ro"]


def tool_command(name: str, arguments: Mapping[str, Any]) -> str:
    """Return the shell command that a tool call becomes.

    Params:
        name: of one of SWE_TOOL_CONFIGS.
        arguments: the model's, unchecked.
    Raises:
        BadRequest: there is no such tool, or a bash call has no command; the text is for the model.
    """
    if name == "execute_bash":
        command = arguments.get("command")
        if not isinstance(command, str) or not command.strip():
            raise BadRequest("execute_bash needs the parameter command, a text that is not empty")
        return command
    if name != "str_replace_editor":
        known = ", ".join(tool["function"]["name"] for tool in SWE_TOOL_CONFIGS)
        raise BadRequest(f"there is no tool {name!r}; there are {known}")
    params = json.dumps(dict(arguments))  # ASCII in one line, whatever the texts in it.
    call = f"python3 {ENTRYPOINT} --action str_replace_editor --params"
    if len(params) <= _ARGUMENT_BYTES:
        return f"{call} {shlex.quote(params)}"
    return f"{call} - <<'ROCK_PARAMS'\n{params}\nROCK_PARAMS"
