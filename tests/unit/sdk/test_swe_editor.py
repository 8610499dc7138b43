"""The editor inside a SWE sandbox: what it does, and that its errors say what to do next."""

import ast
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rock.rollout import swe_execute_sandbox as editor
from rock.rollout.swe_execute_sandbox import EditorError, run

SOURCE = Path(editor.__file__)


def edit(command, path, **params):
    return run("str_replace_editor", {"command": command, "path": str(path), **params})


def refused(*words):
    """Expect an error that holds all of these words."""
    return pytest.raises(EditorError, match="(?s)" + "".join(f"(?=.*{word})" for word in words))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("import os\n\n\ndef first():\n    return 1\n\n\ndef second():\n    return 1\n")
    return path


def test_its_syntax_is_that_of_python_3_5():
    tree = ast.parse(SOURCE.read_text(encoding="ascii"), feature_version=(3, 5))
    newer = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.AsyncFor)
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, newer)]
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported | modules <= {"argparse", "difflib", "json", "os", "shutil", "sys", "typing"}
    for node in ast.walk(tree):
        # A comma after the last argument is an error of 3.5 where that is *args or **kwargs.
        if isinstance(node, ast.Call):
            assert not any(isinstance(item, ast.Starred) for item in node.args)
            assert not any(item.arg is None for item in node.keywords)


def test_view_numbers_lines(file):
    assert edit("view", file).splitlines()[3] == "     4\tdef first():"
    assert edit("view", file, view_range=[4, 5]) == "     4\tdef first():\n     5\t    return 1"
    assert edit("view", file, view_range=[8, -1]).splitlines()[-1] == "     9\t    return 1"
    assert edit("view", file, view_range="[9, 100]") == "     9\t    return 1"
    with refused("a.py", "lines 1 to 9", "10"):
        edit("view", file, view_range=[10, 12])
    for bad in ([3], "x", [2, 1], [0, 3], [1, "a"]):
        with refused("view_range"):
            edit("view", file, view_range=bad)


def test_view_of_a_folder(tmp_path, file):
    (tmp_path / "src" / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "src" / "b.py").write_text("")
    (tmp_path / "src" / "deep" / "c.py").write_text("")
    (tmp_path / ".git").mkdir()
    listed = edit("view", tmp_path).splitlines()[1:]
    assert listed == ["a.py", "src/", "src/b.py", "src/deep/"]
    with refused("folder", "view_range"):
        edit("view", tmp_path, view_range=[1, 2])


def test_a_long_view_is_cut_and_says_so(tmp_path):
    path = tmp_path / "long"
    path.write_text("x" * 99 + "\n" + "line\n" * 20_000)
    seen = edit("view", path)
    assert len(seen) < editor.VIEW_CHARS + 200 and "of 20001; use view_range" in seen
    path.write_text("x" * 1_000_000)
    assert len(edit("view", path)) < editor.VIEW_CHARS + 200


def test_create(tmp_path):
    path = tmp_path / "new" / "folder" / "x.py"
    assert "(2 lines)" in edit("create", path, file_text="a\nb\n")
    assert path.read_text() == "a\nb\n"
    with refused("x.py exists already", "str_replace"):
        edit("create", path, file_text="other")
    with refused("folder"):
        edit("create", tmp_path, file_text="")
    with refused("file_text is missing", "content"):
        edit("create", tmp_path / "y", content="x")
    with refused("x.py is not a folder", "x.py/below/y"):
        edit("create", path / "below" / "y", file_text="")


def test_str_replace(file):
    file.chmod(0o755)
    said = edit("str_replace", file, old_str="def second():\n    return 1", new_str="def second():\n    return 2")
    assert "     9\t    return 2" in said and "     4\tdef first" in said
    assert file.read_text().endswith("return 2\n") and stat.S_IMODE(file.stat().st_mode) == 0o755
    edit("str_replace", file, old_str="import os\n\n\n")
    assert file.read_text().startswith("def first")
    assert os.listdir(file.parent) == ["a.py"]


def test_str_replace_says_where_a_text_stands_more_than_once(file):
    before = file.read_text()
    with refused("a.py", "2 times", "lines 5, 9", "add lines"):
        edit("str_replace", file, old_str="    return 1\n", new_str="")
    assert file.read_text() == before


def test_str_replace_shows_the_text_that_was_meant(file):
    with refused("not in", "other spaces", "     4\tdef first"):
        edit("str_replace", file, old_str="def first():\n\treturn 1", new_str="")
    with refused("nearest text", "     8\tdef second"):
        edit("str_replace", file, old_str="def second(self):\n    return 5", new_str="")
    with refused("not in", "view the file again"):
        edit("str_replace", file, old_str="zzz ### qqq", new_str="")
    with refused("same"):
        edit("str_replace", file, old_str="import os", new_str="import os")
    with refused("old_str is empty", "insert"):
        edit("str_replace", file, old_str="", new_str="x")


def test_insert(file):
    edit("insert", file, insert_line=0, new_str="# top")
    edit("insert", file, insert_line=1, new_str="# second\n")
    assert file.read_text().startswith("# top\n# second\nimport os\n")
    assert "    12\t# end" in edit("insert", file, insert_line="11", new_str="# end")
    with refused("insert_line is 13", "has 12 lines", "0 to 12"):
        edit("insert", file, insert_line=13, new_str="x")
    file.write_text("no end")
    edit("insert", file, insert_line=1, new_str="x")
    assert file.read_text() == "no end\nx\n"
    file.write_text("")
    edit("insert", file, insert_line=0, new_str="x")
    assert file.read_text() == "x\n"
    for bad in ("a", None, True, 1.5):
        with refused("insert_line", "whole number"):
            edit("insert", file, insert_line=bad, new_str="x")


def test_line_ends_and_strange_bytes_stay(tmp_path):
    path = tmp_path / "dos.py"
    path.write_bytes(b"a\r\nb\xff\r\nc\r\n")
    edit("str_replace", path, old_str="a\nb", new_str="A\nB")
    edit("insert", path, insert_line=1, new_str="new")
    assert path.read_bytes() == b"A\r\nnew\r\nB\xff\r\nc\r\n"
    assert edit("view", path).splitlines()[0] == "     1\tA"


def test_a_link_is_followed(tmp_path, file):
    (tmp_path / "link").symlink_to(file)
    edit("str_replace", tmp_path / "link", old_str="import os", new_str="import sys")
    assert (tmp_path / "link").is_symlink() and file.read_text().startswith("import sys")


def test_paths_that_lead_nowhere(tmp_path, file, monkeypatch):
    (tmp_path / "src" / "package").mkdir(parents=True)
    (tmp_path / "src" / "package" / "fields.py").write_text("")
    with refused("does not exist", "src/package/fields.py"):
        edit("view", tmp_path / "package" / "fields.py")
    with refused("b.py does not exist", "Did you mean .*a.py"):
        edit("str_replace", tmp_path / "b.py", old_str="a", new_str="b")
    with refused("nearest folder that exists is", "package; view it"):
        edit("view", tmp_path / "src" / "package" / "no" / "thing-at-all")
    monkeypatch.chdir(tmp_path)
    with refused("must be absolute", f"did you mean {tmp_path}/a.py"):
        edit("view", "a.py")
    with refused("is a folder"):
        edit("insert", tmp_path, insert_line=0, new_str="")


def test_files_that_are_no_text(tmp_path):
    (tmp_path / "b").write_bytes(b"\0\1")
    with refused("binary", "shell"):
        edit("view", tmp_path / "b")
    with (tmp_path / "big").open("wb") as big:
        big.truncate(editor.FILE_BYTES + 1)
    with refused("sed -n"):
        edit("view", tmp_path / "big")


def test_calls_that_are_wrong():
    with refused("unknown command 'undo_edit'", "create, insert, str_replace, view"):
        run("str_replace_editor", {"command": "undo_edit"})
    with refused("path is missing"):
        run("view", {})
    with refused("must be a text"):
        run("view", {"path": 3})


@pytest.mark.parametrize("over_stdin", [False, True])
def test_the_command_line(tmp_path, over_stdin):
    """Whatever the locale, texts come back as UTF-8; the exit code tells success from failure."""
    (tmp_path / "f").write_text("grüße\n", encoding="utf-8")

    def call(params):
        text = params if isinstance(params, str) else json.dumps(params)
        argv = [sys.executable, str(SOURCE), "--action", "str_replace_editor", "--params", "-" if over_stdin else text]
        return subprocess.run(argv, input=text.encode(), capture_output=True, env={"LC_ALL": "C", "PYTHONUTF8": "0"})

    done = call({"command": "view", "path": str(tmp_path / "f")})
    assert (done.returncode, done.stdout.decode()) == (0, "     1\tgrüße\n")
    done = call({"command": "view", "path": str(tmp_path / "g")})
    assert done.returncode == 1 and done.stdout.startswith(b"ERROR: ") and not done.stderr
    assert b"not JSON" in call("{").stdout and b"JSON object" in call("[]").stdout
