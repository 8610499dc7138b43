"""The bash texts do what they promise in a real bash, and take every value of a request as data."""

import os
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rock.actions import Command, CreateBashSessionRequest, ReadFileRequest
from workers import scripts

EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
names = texts.map(lambda text: text.replace("/", "_")).filter(lambda name: name not in ("", ".", ".."))


def bash(script: bytes, folder: Path, stdin: bytes = b"", **variables: str) -> "subprocess.CompletedProcess[bytes]":
    """Evaluate a script as the keeper does: in a function, with the keeper's options."""
    wrapped = b'set -f +H; R=. id=0; f() { eval "$1"; }; f "$(<script)"'
    (folder / "script").write_bytes(script)
    env = {"PATH": os.environ["PATH"], "HOME": str(folder / "home"), **variables}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-c", wrapped],
        cwd=folder,
        input=stdin,
        capture_output=True,
        env=env,
        timeout=20,
    )


def write(path: str, content: bytes, folder: Path) -> "subprocess.CompletedProcess[bytes]":
    return bash(scripts.write_file(path, "call000001"), folder, content)


def read(path: str, folder: Path, limit: int = 10**6) -> "subprocess.CompletedProcess[bytes]":
    return bash(scripts.read_file(ReadFileRequest(sandbox_id="box", path=path), limit), folder)


@EXAMPLES
@given(parent=names, name=names, content=st.binary(max_size=200))
def test_a_file_of_any_name_takes_any_content_and_gives_it_back(tmp_path, parent, name, content):
    path = tmp_path / "files" / f"-{parent}"[:60] / name[:60]
    if (
        len(os.fsencode(str(path))) > 3000
        or len(os.fsencode(path.name)) > 200
        or len(os.fsencode(path.parent.name)) > 200
    ):
        return
    written = write(str(path), content, tmp_path)
    assert (written.returncode, written.stderr, path.read_bytes()) == (0, b"", content)
    assert read(str(path), tmp_path).stdout == content
    assert [one.name for one in path.parent.iterdir() if one.name.startswith(".rock-")] == [], (
        "no half-made file is left"
    )


def test_a_name_with_shell_signs_is_a_name(tmp_path):
    path = f"{tmp_path}/w/-rf '$(touch pwned)' \"a\"\nb.txt"
    assert write(path, b"x", tmp_path).returncode == 0
    assert Path(path).read_bytes() == b"x" and not (tmp_path / "pwned").exists()


def test_a_relative_path_starts_at_the_working_folder_and_a_tilde_at_home(tmp_path):
    write("sub/a", b"1", tmp_path)
    write("~/b", b"2", tmp_path)
    write("~c", b"3", tmp_path)
    assert (tmp_path / "sub/a").read_bytes() == b"1" and (tmp_path / "home/b").read_bytes() == b"2"
    assert (tmp_path / "~c").read_bytes() == b"3"


def test_writing_over_a_link_writes_its_target(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "dangling").symlink_to("made")
    for name in ("link", "dangling"):
        assert write(f"{tmp_path}/{name}", b"new", tmp_path).returncode == 0
        assert (tmp_path / name).is_symlink()
    assert (tmp_path / "target").read_text() == "new" and (tmp_path / "made").read_text() == "new"


def test_mode_and_links_of_a_file_that_was_there_are_kept(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text("old")
    path.chmod(0o750)
    assert write(str(path), b"new", tmp_path).returncode == 0
    assert path.read_text() == "new" and stat.S_IMODE(path.stat().st_mode) == 0o750


def test_devices_and_pipes_are_written_in_place(tmp_path):
    assert write("/dev/null", b"x" * 1000, tmp_path).returncode == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert write("/dev/full", b"x", tmp_path).returncode == scripts.NO_WRITE


@pytest.mark.parametrize(
    "path, code, word",
    [
        (".", scripts.IS_FOLDER, "folder"),
        ("/", scripts.IS_FOLDER, "folder"),
        ("new/", scripts.IS_FOLDER, "folder"),
        ("file/below", scripts.NO_WRITE, ""),
        ("/proc/nope/x", scripts.NO_WRITE, ""),
        ("/proc/version", scripts.NO_WRITE, ""),
        ("loop", scripts.NO_WRITE, ""),
        ("x" * 300, scripts.NO_WRITE, "too long"),
    ],
)
def test_a_file_that_cannot_be_written_says_why_and_leaves_nothing(tmp_path, path, code, word):
    (tmp_path / "file").write_text("kept")
    (tmp_path / "loop").symlink_to("loop")
    before = set(tmp_path.iterdir()) | {tmp_path / "script"}
    done = write(path, b"x", tmp_path)
    assert done.returncode == code
    reason = scripts.reason(done.stderr.decode())
    assert reason and word in reason and str(tmp_path) not in reason
    assert (tmp_path / "file").read_text() == "kept" and set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "path, code, word",
    [
        (".", scripts.IS_FOLDER, "folder"),
        ("nope", scripts.NO_FILE, "no such file"),
        ("script/x", scripts.NO_FILE, "no such file"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path, path, code, word):
    done = read(path, tmp_path)
    assert done.returncode == code and word in done.stderr.decode()


def test_a_read_goes_one_byte_beyond_the_limit_at_most(tmp_path):
    (tmp_path / "big").write_bytes(b"x" * 5000)
    assert len(read("big", tmp_path, limit=1000).stdout) == 1001


def test_files_of_the_kernel_can_be_read(tmp_path):
    assert b"MemTotal" in read("/proc/meminfo", tmp_path).stdout


@EXAMPLES
@given(words=st.lists(texts, max_size=5))
def test_a_program_gets_its_arguments_as_they_are(tmp_path, words):
    done = bash(scripts.execute(Command(command=["printf", "%s\\0", "x", *words])), tmp_path)
    assert done.stdout == b"".join(word.encode() + b"\0" for word in ["x", *words])


@EXAMPLES
@given(value=texts, name=st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,10}", fullmatch=True).map(lambda name: f"V_{name}"))
def test_a_variable_reaches_the_program_as_it_is(tmp_path, name, value):
    command = Command(command=["bash", "-c", f'printf %s "${name}"'], env={name: value})
    assert bash(scripts.execute(command), tmp_path).stdout == value.encode()
    request = CreateBashSessionRequest(env={name: value})
    script = scripts.session(request) + f"\nbash -c 'printf %s \"${name}\"'".encode()
    assert bash(script, tmp_path).stdout == value.encode()


@pytest.mark.parametrize("name", ["A;touch pwned;B", "A$(touch pwned)", "A\ntouch pwned\nB", "A B", "A-B", "é"])
def test_the_name_of_a_variable_is_data_too(tmp_path, name):
    command = Command(command=["bash", "-c", "echo ran"], env={name: "x", "GOOD": "y"})
    done = bash(scripts.execute(command), tmp_path)
    assert not (tmp_path / "pwned").exists() and done.stdout in (b"ran\n", b"")
    bash(scripts.session(CreateBashSessionRequest(env={name: "x"})), tmp_path)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("cwd", ["nope", "script", "$(touch pwned)", "-", "~/nope", "a\nb"])
def test_a_folder_that_cannot_be_entered_is_told_apart(tmp_path, cwd):
    done = bash(scripts.execute(Command(command="touch ran", cwd=cwd)), tmp_path)
    assert done.stderr.decode() == scripts.CWD_FAILED
    assert not (tmp_path / "ran").exists() and not (tmp_path / "pwned").exists()


def test_a_folder_of_any_name_is_entered(tmp_path):
    folder = tmp_path / "-a 'b' $c"
    folder.mkdir()
    assert bash(scripts.execute(Command(command="pwd", cwd=str(folder))), tmp_path).stdout.decode() == f"{folder}\n"
    assert bash(scripts.execute(Command(command="pwd", cwd=folder.name)), tmp_path).stdout.decode() == f"{folder}\n"


@pytest.mark.parametrize(
    "command, code, word",
    [
        (["nosuchcmd"], 127, "nosuchcmd: command not found"),
        (["/no/such"], 127, "No such file"),
        (["./script"], 126, "Permission denied"),
        (["/"], 126, "Permission denied"),
        (["-x"], 127, "command not found"),
    ],
)
def test_a_program_that_cannot_be_run_says_so_as_a_shell_does(tmp_path, command, code, word):
    done = bash(scripts.execute(Command(command=command)), tmp_path)
    assert done.returncode == code and word in done.stderr.decode()


@pytest.mark.parametrize("form", ["text", "words", "sh -c"])
@pytest.mark.parametrize("size", [10, 99_000, 101_000, 1_000_000])
def test_a_command_of_any_length_runs_as_in_a_bash_of_its_own(tmp_path, form, size):
    text = f"x={'y' * size}; echo ${{#x}} [${{id-}}${{R-}}] $(echo scrip*); echo err >&2; exit 3"
    command = {"text": text, "words": ["bash", "-c", text], "sh -c": ["sh", "-c", text]}[form]
    done = bash(scripts.execute(Command(command=command)), tmp_path)
    assert (done.stdout.decode(), done.stderr, done.returncode) == (f"{size} [] script\n", b"err\n", 3)


def test_a_list_for_the_shell_is_one_command(tmp_path):
    assert bash(scripts.execute(Command(command=["echo", "hi  there"], shell=True)), tmp_path).stdout == b"hi  there\n"


@pytest.mark.parametrize("command", ["", "  ", "# note", "\n\n", "\0"])
def test_nothing_is_a_command_that_does_nothing(tmp_path, command):
    done = bash(scripts.run(command), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
