"""The bash texts that start an environment's process in a sandbox and talk to it. Pure; every value is quoted here.

They run in a session of the sandbox, whose exported variables ROCK_GEM* (folder, process, Python) outlive even its shell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from shlex import quote
from typing import Any

SESSION = "rock-gem"

GONE, NO_PYTHON, NO_FOLDER = 91, 92, 93
"""Exit codes: the process ended (its last words are the output); the image has no Python; no folder can be made."""

# Sourced with a token and a request. The pipes are opened for reading and writing, so that opening them never waits for
# a process that may be dead; whether it is, is looked at while its answer is awaited.
_CALL = r"""
rock_gem_call() {
  local token=$1 done='' part='' text=''
  builtin kill -0 "$ROCK_GEM_PID" 2>/dev/null || { rock_gem_gone; return; }
  builtin printf %s "$2" >|"$ROCK_GEM/$token.request" || return
  builtin printf '%s\n' "$token" >&3
  until [[ $done == "$token" ]]; do
    if builtin read -r -t 1 -u 4 text; then
      done=$part$text part=''
    else
      part+=$text # the second was over in the middle of the line
      builtin kill -0 "$ROCK_GEM_PID" 2>/dev/null || { rock_gem_gone; return; }
    fi
  done
  IFS= builtin read -r -d '' text <"$ROCK_GEM/$token.answer"
  builtin printf %s "$text"
}
rock_gem_gone() {
  IFS= builtin read -r -d '' text <"$ROCK_GEM/log"
  ((${#text} > 2000)) && text=${text: -2000}
  builtin printf %s "$text"
  return 91
}
rock_gem_call "$@" 3<>"$ROCK_GEM/requests" 4<>"$ROCK_GEM/answers"
"""

_START = r"""
ROCK_GEM=$(mktemp -d "${ROCK_SANDBOX_DIR:-${TMPDIR:-/tmp}}/rock-gem-XXXXXX") && mkfifo "$ROCK_GEM"/{requests,answers} || return 93
for ROCK_GEM_PYTHON in %(pythons)s; do ROCK_GEM_PYTHON=$(type -P "$ROCK_GEM_PYTHON") && break; done
[[ $ROCK_GEM_PYTHON ]] || return 92
printf %%s %(inside)s >"$ROCK_GEM/inside.py"
printf %%s %(plan)s >"$ROCK_GEM/plan.json"
printf %%s %(call)s >"$ROCK_GEM/call"
export ROCK_GEM ROCK_GEM_PYTHON OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-1}
export ROCK_GEM_PID=$("$ROCK_GEM_PYTHON" "$ROCK_GEM/inside.py" "$ROCK_GEM" </dev/null >"$ROCK_GEM/log" 2>&1 & echo $!)
"""


def start(plan: Mapping[str, Any], pythons: Sequence[str], token: str) -> str:
    """Return the command that starts the environment's process and has it make the environment.

    Params:
        plan: what `inside.py` is to do.
        pythons: names or paths of interpreters, the first that is there is used.
        token: hex digits, of this call alone.
    """
    source = files("app.gem").joinpath("inside.py").read_text(encoding="utf-8")
    values = {"inside": source, "plan": json.dumps(plan), "call": _CALL}
    quoted = {name: quote(value) for name, value in values.items()}
    return _START % {**quoted, "pythons": " ".join(map(quote, pythons))} + call({"verb": "make"}, token)


def call(request: Mapping[str, Any], token: str) -> str:
    """Return the command that asks the environment's process and prints its answer.

    Params:
        request: `verb` and what belongs to it; any value that JSON can hold.
        token: hex digits, of this call alone.
    """
    # An apostrophe would be three characters in quotes, and once more in the keeper's file.
    text = json.dumps(request).replace("'", "\\u0027")
    return f'. "$ROCK_GEM/call" {quote(token)} {quote(text)}'


LIST = '"$ROCK_GEM_PYTHON" "$ROCK_GEM/inside.py" "$ROCK_GEM" list 2>/dev/null'
"""The command that prints the names of all environments."""
