"""The bash texts that a keeper runs for a request. Pure: every value from a request is quoted here, and only here."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote

from rock.actions import BashAction, Command, CreateBashSessionRequest, ReadFileRequest

CWD_FAILED = "\x1ecwd\x1e"
"""What an `execute` script writes on stderr, and nothing else, when it cannot enter its working folder."""

IS_FOLDER, NO_FILE, NO_ACCESS, NO_WRITE = 64, 65, 66, 67
"""Exit codes of our own file scripts; what they print on stderr is the reason."""

# One argument of exec may have 128 KiB on Linux (MAX_ARG_STRLEN); longer commands are evaluated instead.
ARGUMENT_LIMIT = 100_000


def run(command: str) -> bytes:
    """Return the line that a session's shell sources for `command`.

    `eval` makes bash report syntax errors as its own, without our file's name; `$?` of the command before is still there.
    NUL bytes are dropped, as bash does when it reads a script.
    """
    return b"\\builtin eval " + _bytes(quote(command.replace("\0", "")) or "''")


def session(request: CreateBashSessionRequest) -> bytes:
    """Return the first command of a new session: its variables, then its startup files; stops at one that fails."""
    lines = _exports(request.env or {})
    for path in request.startup_source:
        lines.append(f"\\builtin . {place(path)} || \\builtin return")
    return run("\n".join(lines))


def execute(command: Command) -> bytes:
    """Return the script of a one-off command: folder, variables, then the program in place of the subshell."""
    lines = []
    if command.cwd is not None:
        lines.append(f"cd -- {place(command.cwd)} 2>/dev/null || {{ printf {quote(CWD_FAILED)} >&2; exit 125; }}")
    lines += _exports(command.env or {})
    if isinstance(command.command, str):
        text: str | None = command.command
    else:
        text = " ".join(quote(word) for word in command.command) if command.shell else None
    if text is not None:
        lines.append(_shell(text))
    else:
        assert isinstance(command.command, list)
        lines.append(_program(command.command))
    return _bytes("\n".join(lines))


def read_file(request: ReadFileRequest, limit: int) -> bytes:
    """Return the script that prints a file, one byte more than `limit` at most."""
    return _bytes(
        f"p={place(request.path)}\n"
        f'[[ -d $p ]] && {{ printf "is a folder" >&2; return {IS_FOLDER}; }}\n'
        f'[[ -e $p ]] || {{ printf "no such file" >&2; return {NO_FILE}; }}\n'
        f'LC_ALL=C head -c {limit + 1} -- "$p" 2>/dev/null || {{ printf "cannot be read" >&2; return {NO_ACCESS}; }}'
    )


def write_file(path: str, call_id: str) -> bytes:
    """Return the script that puts its stdin into `path`: parents are made, a link is followed, a reader sees the old or the new file, whole."""
    return _bytes(
        f"p={place(path)}\n"
        f'[[ -d $p || $p == */ ]] && {{ printf "is a folder" >&2; return {IS_FOLDER}; }}\n'
        '[[ -L $p ]] && p=$(readlink -f -- "$p")\n'
        "d=${p%/*}\n"
        '[[ $d && ! -d $d ]] && { e=$(mkdir -p -- "$d" 2>&1) || { printf %s "${e##*: }" >&2; return ' + str(NO_WRITE) + "; }; }\n"
        # Devices, pipes and files that cannot be replaced (bind mounts) are written in place.
        'if [[ -e $p && ! -f $p ]]; then e=$( { cat >"$p"; } 2>&1) || { printf %s "${e##*: }" >&2; return ' + str(NO_WRITE) + "; }; return 0; fi\n"
        f't="$d/.rock-{call_id}"\n'
        'if ! e=$( { cat >"$t"; } 2>&1); then rm -f -- "$t"; printf %s "${e##*: }" >&2; return ' + str(NO_WRITE) + "; fi\n"
        'if [[ -e $p ]]; then s=$(stat -c "%a %u:%g" -- "$p") && chmod "${s% *}" -- "$t" && chown "${s#* }" -- "$t"; fi\n'
        'mv -f -- "$t" "$p" 2>/dev/null && return 0\n'
        'e=$( { cat "$t" >"$p"; } 2>&1); s=$?; rm -f -- "$t"; ((s)) && { printf %s "${e##*: }" >&2; return ' + str(NO_WRITE) + "; }\n"
        "return 0"
    )


def place(path: str) -> str:
    """Return `path` as one shell word. `~` is HOME; a relative path starts at the sandbox's working folder."""
    if path == "~" or path.startswith("~/"):
        return '"${HOME:-/root}"' + quote(path[1:]) if len(path) > 1 else '"${HOME:-/root}"'
    return quote(path if path.startswith("/") else f"./{path}")


def _shell(text: str) -> str:
    if len(text) > ARGUMENT_LIMIT:
        return f"unset -f $(compgen -A function); eval {quote(text)}"
    return f"exec bash --noprofile --norc -c {quote(text)}"


def _program(words: list[str]) -> str:
    name, argv = quote(words[0]), " ".join(quote(word) for word in words)
    if "/" in words[0]:
        check = (
            f"[[ -e {name} ]] || {{ printf '%s: No such file or directory\\n' {name} >&2; exit 127; }}\n"
            f"[[ -x {name} && ! -d {name} ]] || {{ printf '%s: Permission denied\\n' {name} >&2; exit 126; }}"
        )
    else:
        check = f"type -P -- {name} >/dev/null || {{ printf '%s: command not found\\n' {name} >&2; exit 127; }}"
    return f"{check}\nexec -- {argv}"


def _exports(env: Mapping[str, str]) -> list[str]:
    return [f"\\builtin export {name}={quote(value)}" for name, value in env.items()]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def observation(action: BashAction) -> str:
    """Return how an error message names the command: its first line, shortened."""
    first = action.command.strip().splitlines()[0] if action.command.strip() else ""
    return first if len(first) <= 80 else first[:77] + "..."
