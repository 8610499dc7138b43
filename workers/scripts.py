"""The bash texts that a keeper runs for a request. Pure: every value from a request is quoted here, and only here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from shlex import quote

from rock.actions import BashAction, Command, CreateBashSessionRequest, ReadFileRequest

CWD_FAILED = "\x1ecwd\x1e"
"""What an `execute` script writes on stderr, and nothing else, when it cannot enter its working folder."""

IS_FOLDER, NO_FILE, NO_ACCESS, NO_WRITE = 64, 65, 66, 67
"""Exit codes of our own file scripts; what they print on stderr is the reason."""

# One argument of exec may have 128 KiB on Linux (MAX_ARG_STRLEN); longer commands go through a file.
ARGUMENT_LIMIT = 100_000

SMALL = 4096
"""Bytes of a file that bash reads and writes itself: one system call, no tool."""

_EXIT_TRAP = re.compile(r"""\btrap\b.*[\s'"](EXIT|0)\s*($|[;&|)}])""", re.DOTALL | re.MULTILINE)

BASH = "bash --noprofile --norc"


def run(command: str) -> bytes:
    """Return the line that a session's shell sources for `command`.

    `eval` makes bash report syntax errors as its own, without our file's name; `$?` of the command before is still there.
    NUL bytes are dropped, as bash does when it reads a script.
    """
    return b"\\builtin eval -- " + _bytes(quote(command.replace("\0", "") + "\n"))


def run_flag(command: str) -> str:
    """Return the flag of a RUN frame: `trap` when the command may set an EXIT trap, whose output needs care, else `-`."""
    return "trap" if _EXIT_TRAP.search(command) else "-"


def program(command: str) -> bytes:
    """Return the script that runs `command` at a terminal which a program reads: nothing coloured, no cursor to be moved."""
    return _at_terminal(f"\\builtin export TERM=dumb PAGER=cat GIT_PAGER=cat\n{_in_bash(command.replace(chr(0), ''))}")


def shell() -> bytes:
    """Return the script of a terminal for people: an interactive bash that leaves no history file behind."""
    return _at_terminal("\\builtin export TERM=xterm-256color HISTFILE= PS1='\\u@\\h:\\w\\$ '\n\\builtin exec bash -i")


def _at_terminal(text: str) -> bytes:
    return _bytes(text + "\n")


def _in_bash(command: str) -> str:
    if len(command.encode("utf-8", "surrogatepass")) > ARGUMENT_LIMIT:
        return f"\\builtin eval -- {quote(command)}"
    return f"\\builtin exec {BASH} -c {quote(command)}"


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
    shell, text = _shell_text(command)
    if len(text.encode("utf-8", "surrogatepass")) > ARGUMENT_LIMIT:
        # Before the variables are set: $R and $id are the keeper's, which evaluates this script.
        lines.append(f'printf %s {quote(text)} >"$R/x.$id" && exec 9<"$R/x.$id" || exit 125')
        read = "</dev/fd/9" if shell == BASH else "cat /dev/fd/9"
        last = f"exec {shell} -c 'eval \" $({read})\" 9<&-'"
    elif shell:
        last = f"exec {shell} -c -- {quote(text)}"
    else:
        assert isinstance(command.command, list)
        last = _program(command.command)
    return _bytes("\n".join([*lines, *_exports(command.env or {}), last]))


def read_file(request: ReadFileRequest, limit: int) -> bytes:
    """Return the script that prints a file, one byte more than `limit` at most."""
    return _bytes(
        f"p={place(request.path)}\n"
        f'[[ -d $p ]] && {{ printf "is a folder" >&2; return {IS_FOLDER}; }}\n'
        f'[[ -e $p ]] || {{ printf "no such file" >&2; return {NO_FILE}; }}\n'
        f'[[ -p $p ]] && {{ printf "is a pipe" >&2; return {NO_ACCESS}; }}\n'
        # A small file without NUL (on which the second read would end well) needs no tool.
        f'[[ -f $p ]] && IFS= read -r -N {SMALL + 1} s <"$p"\n'
        f'if [[ -f $p && -r $p && ${{#s}} -le {SMALL} ]] && ! IFS= read -r -d "" s <"$p"; then printf %s "$s"; return 0; fi\n'
        f'LC_ALL=C head -c {limit + 1} -- "$p" 2>/dev/null || {{ printf "cannot be read" >&2; return {NO_ACCESS}; }}'
    )


def write_small(path: str, content: bytes) -> bytes:
    """Return the script that writes a few bytes without NUL into `path`: no fork, and one write, so that a reader sees them all.

    File scripts of one sandbox run one after the other, so none of them sees the moment between emptying a file and filling it.
    """
    return (
        _bytes(_write_prelude(path) + "[[ -e $p ]] && t=old\nprintf %s ")
        + _bytes(quote(content.decode("utf-8", "surrogateescape")))
        + _bytes(f' >"$p" && return 0\n[[ $t ]] || rm -f -- "$p"\nreturn {NO_WRITE}')
    )


def write_file(path: str, call_id: str) -> bytes:
    """Return the script that puts its stdin into `path`.

    Parents are made, a link is followed, mode and owner of what was there are kept, and a reader sees the old or the new file, whole. Each tool costs a
    fork of 1 ms, so there are few; what they say on stderr is the reason of a failure.
    """
    return _bytes(
        f"{_write_prelude(path)}"
        f'[[ -L $p ]] && {{ p=$(readlink -f -- "$p") || {{ printf "the link leads nowhere" >&2; return {NO_WRITE}; }}; }}\n'
        "d=${p%/*}\n"
        # Devices and pipes cannot be replaced.
        f'[[ -e $p && ! -f $p ]] && {{ cat >"$p" || return {NO_WRITE}; return 0; }}\n'
        f't="$d/.rock-{call_id}"\n'
        '[[ -e $p ]] && { cp --attributes-only -p -- "$p" "$t" 2>/dev/null || cp -p -- "$p" "$t" 2>/dev/null; }\n'
        f'cat >"$t" || {{ rm -f -- "$t"; return {NO_WRITE}; }}\n'
        'mv -f -- "$t" "$p" 2>/dev/null && return 0\n'
        # A bind-mounted file can only be written in place.
        f'cat "$t" >"$p"; s=$?; rm -f -- "$t"; ((s)) && return {NO_WRITE}\n'
        "return 0"
    )


def send_file(path: str) -> bytes:
    """Return the script that prints a file, however large."""
    return _bytes(
        f"p={place(path)}\n"
        f'[[ -d $p ]] && {{ printf "is a folder" >&2; return {IS_FOLDER}; }}\n'
        f'[[ -e $p ]] || {{ printf "no such file" >&2; return {NO_FILE}; }}\n'
        f'[[ -f $p ]] || {{ printf "is not a regular file" >&2; return {NO_ACCESS}; }}\n'
        'exec cat -- "$p"'
    )


def send_archive(path: str) -> bytes:
    """Return the script that prints a file or folder as a tar, whose members begin with its name. The image needs tar."""
    return _bytes(
        f"p={place(path)}\n"
        f'[[ -e $p || -L $p ]] || {{ printf "no such file or folder" >&2; return {NO_FILE}; }}\n'
        f'type -P tar >/dev/null || {{ printf "the image has no tar" >&2; return {NO_ACCESS}; }}\n'
        "while [[ $p == */ && $p != / ]]; do p=${p%/}; done\n"
        # What has no name of its own (`/`, `.`, `..`) is entered; its members begin with a dot.
        '[[ $p == / || ${p##*/} == . || ${p##*/} == .. ]] && { cd -- "$p" && exec tar -cf - .; }\n'
        'd=${p%/*}; cd -- "${d:-/}" && exec tar -cf - -- "${p##*/}"'
    )


def _write_prelude(path: str) -> str:
    """Return the lines that refuse a folder and make the parents."""
    return (
        f"p={place(path)} t=\n"
        f'[[ -d $p || $p == */ ]] && {{ printf "is a folder" >&2; return {IS_FOLDER}; }}\n'
        "d=${p%/*}\n"
        f'[[ $d && ! -d $d ]] && {{ mkdir -p -- "$d" || return {NO_WRITE}; }}\n'
    )


def reason(stderr: str) -> str:
    """Return what a failed file script said, without the name of the tool that said it."""
    lines = stderr.strip().splitlines()
    return lines[-1].rpartition(": ")[2] if lines else ""


def place(path: str) -> str:
    """Return `path` as one shell word. `~` is HOME; a relative path starts at the sandbox's working folder."""
    if path == "~" or path.startswith("~/"):
        return '"${HOME:-/root}"' + quote(path[1:]) if len(path) > 1 else '"${HOME:-/root}"'
    return quote(path if path.startswith("/") else f"./{path}")


def _shell_text(command: Command) -> tuple[str, str]:
    """Return the shell that runs `command` and the text it runs; ("", "") for a program without a shell."""
    words = command.command
    if isinstance(words, str):
        return BASH, words
    if command.shell:
        return BASH, " ".join(quote(word) for word in words)
    if len(words) == 3 and words[1] == "-c" and words[0].rpartition("/")[2] in ("sh", "bash"):
        return quote(words[0]), words[2]
    return "", ""


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
    return [f"\\builtin export {quote(f'{name}={value}')}" for name, value in env.items()]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def observation(action: BashAction) -> str:
    """Return how an error message names the command: its first line, shortened."""
    first = action.command.strip().splitlines()[0] if action.command.strip() else ""
    return first if len(first) <= 80 else first[:77] + "..."
