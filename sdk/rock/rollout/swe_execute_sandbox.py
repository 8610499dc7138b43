"""The file editor of an agent, run inside the sandbox of a SWE task.

    python3 swe_execute_sandbox.py --action str_replace_editor --params '{"command": "view", "path": "/testbed/a.py"}'

`--params -` reads them from standard input: one argument of a program has a limit. The answer is on standard output; the
exit code is 1 when nothing was done, and the text then begins with ERROR and says what to do instead.
Syntax and library are those of Python 3.5: it runs under whatever Python the task's environment has.
"""

import argparse
import difflib
import json
import os
import shutil
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

VIEW_CHARS = 30000
"""A view longer than this is cut."""
FILE_BYTES = 20 * 1024 * 1024
FOLDER_ENTRIES = 1000
SEARCHED_ENTRIES = 20000
CONTEXT = 4
"""Lines shown around an edit."""


class EditorError(Exception):
    """The command cannot be done; the message says why, and what to do instead."""


def main(argv: List[str]) -> int:
    """Run one action and print its answer; return the exit code."""
    parser = argparse.ArgumentParser(description="view and edit files for an agent")
    parser.add_argument("--action", required=True, help="str_replace_editor, or one of its commands")
    parser.add_argument("--params", required=True, help="a JSON object, or - to read it from standard input")
    options = parser.parse_args(argv)
    try:
        text, code = run(options.action, _loaded(options.params)), 0
    except EditorError as error:
        text, code = "ERROR: {}".format(error), 1
    # The environment's locale may be C: written as bytes, so that any text passes.
    sys.stdout.buffer.write((text + "\n").encode("utf-8", "replace"))
    return code


def run(action: str, params: Dict[str, Any]) -> str:
    """Return the answer to one action. Raises EditorError."""
    command = params.get("command") if action == "str_replace_editor" else action
    if command not in COMMANDS:
        raise EditorError("unknown command {!r}; there are {}".format(command, ", ".join(sorted(COMMANDS))))
    try:
        return COMMANDS[command](params)
    except OSError as error:
        raise EditorError("{} failed: {}: {}".format(command, error.strerror or error, error.filename or params.get("path")))


def view(params: Dict[str, Any]) -> str:
    """Return a file's numbered lines, all or those of view_range, or the names in a folder."""
    path = _existing(params)
    if os.path.isdir(path):
        if params.get("view_range") is not None:
            raise EditorError("{} is a folder: leave out view_range".format(path))
        return _listing(path)
    lines = _lines(_read(path))
    if not lines:
        return "{} is empty".format(path)
    first, last = _range(params.get("view_range"), len(lines), path)
    text = _numbered(lines[first - 1 : last], first)
    if len(text) <= VIEW_CHARS:
        return text
    kept = text[:VIEW_CHARS].rpartition("\n")[0] or text[:VIEW_CHARS]
    until = first + kept.count("\n")
    return "{}\n(cut: lines {} to {} of {}; use view_range, or search it with grep -n)".format(kept, first, until, len(lines))


def create(params: Dict[str, Any]) -> str:
    """Write a new file, and the folders above it."""
    path, text = _path(params), _text(params, "file_text")
    if os.path.isdir(path):
        raise EditorError("{} is a folder; path must name a file".format(path))
    if os.path.lexists(path):
        raise EditorError("{} exists already; change it with str_replace or insert, or choose another path".format(path))
    folder = os.path.dirname(path)
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise EditorError("{} is not a folder, so there can be no {}".format(folder, path))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    _write(path, text)
    return "created {} ({} lines)".format(path, len(_lines(text)))


def str_replace(params: Dict[str, Any]) -> str:
    """Replace the one place in a file where old_str stands."""
    path = _file(params)
    text = _read(path)
    old, new = (_as_in(text, _text(params, name, default)) for name, default in (("old_str", None), ("new_str", "")))
    if not old:
        raise EditorError("old_str is empty; to add text use insert")
    if old == new:
        raise EditorError("old_str and new_str are the same, so {} stays as it is".format(path))
    places = _places(text, old)
    if not places:
        raise EditorError("old_str is not in {}, so nothing was replaced. {}".format(path, _similar(text, old)))
    if len(places) > 1:
        numbers = ", ".join(str(text.count("\n", 0, place) + 1) for place in places[:20])
        raise EditorError(
            "old_str stands in {} {} times (beginning at lines {}), so nothing was replaced; "
            "add lines before or after to old_str until it is the only one".format(path, len(places), numbers)
        )
    place = places[0]
    _write(path, text[:place] + new + text[place + len(old) :])
    return _edited(path, text.count("\n", 0, place) + 1, new.count("\n") + 1)


def insert(params: Dict[str, Any]) -> str:
    """Insert new_str after a line; 0 is the beginning of the file."""
    path = _file(params)
    text = _read(path)
    new, after = _as_in(text, _text(params, "new_str")), _integer(params.get("insert_line"), "insert_line")
    lines = text.split("\n")
    count = len(_lines(text))
    if not 0 <= after <= count:
        raise EditorError("insert_line is {}, but {} has {} lines; it may be 0 to {}".format(after, path, count, count))
    end = "\r\n" if _has_crlf(text) else "\n"
    before = "\n".join(lines[:after]) + ("\n" if after and after < len(lines) else "")
    rest = text[len(before) :]
    if before and not before.endswith("\n"):
        before += end  # The file's last line has no end.
    if not new.endswith("\n"):
        new += end
    _write(path, before + new + rest)
    return _edited(path, after + 1, new.count("\n"))


COMMANDS = {
    "view": view,
    "create": create,
    "str_replace": str_replace,
    "insert": insert,
}  # type: Dict[str, Callable[[Dict[str, Any]], str]]


def _loaded(text: str) -> Dict[str, Any]:
    """Return the parameters as an object."""
    try:
        params = json.loads(sys.stdin.buffer.read().decode("utf-8") if text == "-" else text)
    except ValueError as error:
        raise EditorError("the parameters are not JSON: {}".format(error))
    if not isinstance(params, dict):
        raise EditorError("the parameters must be a JSON object")
    return params


def _text(params: Dict[str, Any], name: str, default: Optional[str] = None) -> str:
    """Return a parameter that is a text."""
    value = params.get(name)
    if value is None and default is not None:
        return default
    if value is None:
        given = ", ".join(sorted(params)) or "nothing"
        raise EditorError("the parameter {} is missing (given: {})".format(name, given))
    if not isinstance(value, str):
        raise EditorError("the parameter {} must be a text, is {!r}".format(name, value))
    return value


def _integer(value: Any, name: str) -> int:
    """Return a parameter that is a whole number, also when it was sent as a text."""
    if isinstance(value, str) and value.strip().lstrip("-").isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise EditorError("the parameter {} must be a whole number, is {!r}".format(name, value))
    return value


def _range(value: Any, count: int, path: str) -> Tuple[int, int]:
    """Return the first and last line to show; an end behind the file's is its end."""
    if value is None:
        return 1, count
    if isinstance(value, str):
        value = value.strip("[] ").split(",")
    if not isinstance(value, list) or len(value) != 2:
        raise EditorError("view_range must be two line numbers such as [10, 40], or [10, -1] for all from 10")
    first, last = (_integer(item, "view_range") for item in value)
    if not 1 <= first <= count or (last != -1 and last < first):
        raise EditorError(
            "view_range is [{}, {}], but {} has lines 1 to {}; the second number must not be less than the first, "
            "or be -1".format(first, last, path, count)
        )
    return first, count if last == -1 else min(last, count)


def _path(params: Dict[str, Any]) -> str:
    """Return the path parameter, which must be absolute."""
    path = _text(params, "path")
    if "\0" in path or not path:
        raise EditorError("the parameter path must name a file or folder, is {!r}".format(path))
    if not os.path.isabs(path):
        raise EditorError("path must be absolute, is {}; did you mean {}?".format(path, os.path.join(os.getcwd(), path)))
    return os.path.normpath(path)


def _existing(params: Dict[str, Any]) -> str:
    """Return the path of something that is there."""
    path = _path(params)
    if not os.path.exists(path):
        raise EditorError("{} does not exist. {}".format(path, _nearby(path)))
    return path


def _file(params: Dict[str, Any]) -> str:
    """Return the path of a file that is there."""
    path = _existing(params)
    if os.path.isdir(path):
        raise EditorError("{} is a folder; only files can be edited".format(path))
    return path


def _nearby(path: str) -> str:
    """Return what may have been meant by a path that leads nowhere: names like it, and files of that name elsewhere."""
    folder, name = os.path.split(path)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    close = []  # type: List[str]
    if folder == os.path.dirname(path):
        close = [os.path.join(folder, one) for one in difflib.get_close_matches(name, os.listdir(folder), 3)]
    seen = 0
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        seen += len(files) + len(folders)
        if name in files and len(close) < 5:
            close.append(os.path.join(root, name))
        if seen > SEARCHED_ENTRIES or folder == "/":
            break
    if close:
        return "Did you mean {}?".format(" or ".join(close))
    return "The nearest folder that exists is {}; view it to see what is there".format(folder)


def _read(path: str) -> str:
    """Return a file's text; bytes that are no UTF-8 survive being written back."""
    if os.path.getsize(path) > FILE_BYTES:
        raise EditorError("{} has {} bytes; read it in parts with sed -n or grep".format(path, os.path.getsize(path)))
    with open(path, "rb") as file:
        data = file.read()
    if b"\0" in data:
        raise EditorError("{} is a binary file; use shell commands on it".format(path))
    return data.decode("utf-8", "surrogateescape")


def _write(path: str, text: str) -> None:
    """Write a file so that it is the old one or the new one, never half of it; a link is followed, the mode stays."""
    target = os.path.realpath(path)
    part = os.path.join(os.path.dirname(target), ".{}.{}.part".format(os.path.basename(target)[:200], os.getpid()))
    try:
        with open(part, "xb") as file:
            file.write(text.encode("utf-8", "surrogateescape"))
        if os.path.exists(target):
            shutil.copymode(target, part)
        os.replace(part, target)
    except UnicodeEncodeError as error:
        raise EditorError("the text has a character that UTF-8 cannot hold: {}".format(error))
    finally:
        if os.path.exists(part):
            os.unlink(part)


def _has_crlf(text: str) -> bool:
    """Return whether all line ends of a text are CR LF."""
    return "\r\n" in text and text.count("\r\n") == text.count("\n")


def _as_in(text: str, given: str) -> str:
    """Return a given text with the line ends of the file's text."""
    return given.replace("\r\n", "\n").replace("\n", "\r\n") if _has_crlf(text) else given


def _lines(text: str) -> List[str]:
    """Return the lines as an editor counts them, without their ends."""
    lines = [line[:-1] if line.endswith("\r") else line for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _numbered(lines: List[str], first: int) -> str:
    """Return lines with their numbers, as `cat -n` shows them."""
    return "\n".join("{:6d}\t{}".format(number, line) for number, line in enumerate(lines, first))


def _edited(path: str, line: int, count: int) -> str:
    """Return the answer to an edit: the changed lines and those around them."""
    lines = _lines(_read(path))
    first, last = max(1, line - CONTEXT), min(len(lines), line + count - 1 + CONTEXT)
    shown = _numbered(lines[first - 1 : last], first)
    if len(shown) > VIEW_CHARS:
        shown = shown[:VIEW_CHARS] + "\n(cut)"
    return "edited {}; lines {} to {} of {} are now:\n{}".format(path, first, last, len(lines), shown)


def _places(text: str, old: str) -> List[int]:
    """Return where old begins in the text; places may overlap."""
    places = []
    place = text.find(old)
    while place >= 0:
        places.append(place)
        place = text.find(old, place + 1)
    return places


def _similar(text: str, old: str) -> str:
    """Return what in the text comes near to old, and how it differs."""
    lines, wanted = _lines(text), _lines(old.strip("\n")) or [""]
    bare, bare_wanted = [line.strip() for line in lines], [line.strip() for line in wanted]
    for index in range(len(lines) - len(wanted) + 1):
        if bare[index : index + len(wanted)] == bare_wanted:
            found = _numbered(lines[index : index + len(wanted)], index + 1)
            return "It is there with other spaces at the beginning or end of lines:\n{}".format(found)
    # The longest line says most about the place that was meant.
    longest = max(bare_wanted, key=len)
    close = difflib.get_close_matches(longest, sorted(set(bare[:SEARCHED_ENTRIES])), 1) if longest else []
    if not close:
        return "Nothing in it comes near; view the file again, it may have changed"
    index = max(0, bare.index(close[0]) - bare_wanted.index(longest))
    return "The nearest text is:\n{}".format(_numbered(lines[index : index + len(wanted)], index + 1))


def _listing(folder: str) -> str:
    """Return what is in a folder and in the folders below it, two levels deep, without hidden names."""
    names = []  # type: List[str]
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        for name in sorted(files) + folders:
            if not name.startswith("."):
                path = os.path.relpath(os.path.join(root, name), folder)
                names.append(path + "/" if name in folders else path)
        if root != folder:
            del folders[:]
    text = "\n".join(sorted(names)[:FOLDER_ENTRIES])
    more = len(names) - FOLDER_ENTRIES
    return "{} (two levels, without hidden names):\n{}{}".format(
        folder, text or "(nothing)", "\n({} more)".format(more) if more > 0 else ""
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
