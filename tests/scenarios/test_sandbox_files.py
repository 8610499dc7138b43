"""Files go in and come out as they are, under any name: the F rows of the catalogue of faults."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor

import pytest


@pytest.fixture
def folder(shell):
    """A folder of the test's own."""
    return shell.output("pwd")


def digest(box, path):
    return box.execute(["sha256sum", path]).result["stdout"].split()[0].lstrip("\\")


def test_text_is_written_and_read(shell, folder):
    assert shell.write(f"{folder}/a.txt", "é\r\n\ttab\n").result["success"] is True
    assert shell.read(f"{folder}/a.txt").result == {"content": "é\r\n\ttab\n"}


def test_relative_paths_and_home(shell):
    home = shell.output("echo ~")
    shell.write("~/in-home", "1")
    assert shell.read(f"{home}/in-home").result["content"] == "1"
    assert shell.read("~/in-home").ok
    shell.run("rm ~/in-home")


def test_F01_a_binary_file_says_what_to_pass(shell):
    shell.read("/bin/ls").failed(4000, "utf-8", "latin-1")
    assert "ELF" in shell.read("/bin/ls", errors="replace").result["content"]
    assert shell.read("/bin/ls", encoding="latin-1").result["content"].startswith("\x7fELF")


def test_F03_a_lone_surrogate_is_named(shell, folder):
    shell.write(f"{folder}/x", "\ud800").failed(4000, "content", kind="bad_request")


def test_F04_parent_folders_are_made(shell, folder):
    assert shell.write(f"{folder}/a/b/c/x.txt", "1").ok
    assert shell.upload(b"2", f"{folder}/q/w/e.bin").result["success"] is True
    assert shell.output("cat a/b/c/x.txt q/w/e.bin") == "12"


def test_F06_a_link_is_followed(shell, folder):
    shell.run("echo old > t; ln -s t l")
    assert shell.write(f"{folder}/l", "new").ok
    assert shell.output("cat t; readlink l") == "newt"
    for data in (b"small", b"x" * 2_000_000):
        assert shell.upload(data, f"{folder}/l").ok
        assert digest(shell, f"{folder}/t") == hashlib.sha256(data).hexdigest()
        assert shell.output("readlink l; ls -A") == "t\nl\nt"


def test_F07_memory_and_kernel_files_work(shell):
    assert "processor" in shell.read("/proc/cpuinfo").result["content"]
    name = f"/dev/shm/test-{os.getpid()}-{shell.session}"
    assert shell.write(name, "1").ok and shell.output(f"cat {name}; rm {name}") == "1"


def test_F09_the_name_of_an_upload_is_only_a_name(shell, folder):
    reply = shell.upload(b"x", f"{folder}/up.bin", filename="../../etc/x")
    assert reply.ok and shell.output("ls") == "up.bin"
    assert shell.upload(b"y", f"{folder}/sub/../up2.bin").ok and "up2.bin" in shell.output("ls")
    escape = f"{folder}/../../../../../../../../..{folder}/up3.bin"
    assert shell.upload(b"z", escape).ok and shell.output("cat up3.bin") == "z", "resolved in the sandbox, as given"


@pytest.mark.parametrize("size", [0, 1, 127_000, 140_000, 1_048_576, 5_000_000])
def test_F10_content_of_any_size_is_written_and_read(shell, folder, size):
    content = ("é" + "x" * 997 + "\n") * (size // 999) + "y" * (size % 999)
    assert shell.write(f"{folder}/f", content).ok
    assert shell.read(f"{folder}/f").result["content"] == content


def test_F10_long_arguments_run(shell):
    assert shell.execute(["sh", "-c", "x=" + "y" * 200_000 + "; echo ${#x}"]).result["stdout"] == "200000\n"
    assert shell.execute("x=" + "y" * 2_000_000 + "; echo ${#x}", shell=True).result["stdout"] == "2000000\n"


@pytest.mark.parametrize("size", [0, 10, 1_048_575, 1_048_576, 1_048_577, 20_000_000])
def test_F12_uploads_of_any_size_arrive_whole(shell, folder, size):
    data = os.urandom(size)
    reply = shell.upload(data, f"{folder}/up.bin", filename="up.bin")
    assert reply.ok and reply.result["success"] is True and reply.result["file_name"] == "up.bin"
    assert digest(shell, f"{folder}/up.bin") == hashlib.sha256(data).hexdigest()
    assert shell.output("ls -A") == "up.bin"


def test_F13_an_upload_replaces_or_says_why_not(shell, folder):
    for data in (b"A" * 1000, b"B" * 1000, b"C" * 2_000_000, b"D" * 2_000_000):
        assert shell.upload(data, f"{folder}/x").ok
        assert digest(shell, f"{folder}/x") == hashlib.sha256(data).hexdigest()
    for size in (10, 2_000_000):
        shell.upload(b"x" * size, "/proc/nope/x").failed(4000, "/proc/nope/x")


@pytest.mark.parametrize(
    "name", ["-rf '$(touch pwned)' \"a\"\nb.txt", "-", "a b", "é漢", "*", "..x", "$HOME", "`id`", "a\\b", "x" * 255]
)
def test_F15_any_name_makes_the_round_trip(shell, folder, name):
    path = f"{folder}/{name}"
    assert shell.write(path, "content").ok
    assert shell.read(path).result["content"] == "content"
    assert shell.upload(b"uploaded", path).ok and shell.read(path).result["content"] == "uploaded"
    assert shell.output("ls -A | wc -l; ls -d pwned ~/pwned 2>/dev/null || echo none").endswith("none")


@pytest.mark.parametrize(
    "path, word", [("/proc/nope", ""), ("/", "folder"), ("/proc/version", ""), ("/dev/full", "No space")]
)
def test_F18_what_cannot_be_written_says_why(shell, path, word):
    reply = shell.write(path, "x" * 100)
    reply.failed(4000, path, word)


def test_F19_a_reader_sees_one_writers_whole_content(shell, folder):
    letters = "abcdefghij"
    shell.write(f"{folder}/x", "a" * 300_000)

    def write(letter):
        return shell.write(f"{folder}/x", letter * 300_000).ok

    def read(_):
        content = shell.read(f"{folder}/x").result["content"]
        return len(content) == 300_000 and len(set(content)) == 1

    with ThreadPoolExecutor(12) as callers:
        writes, reads = callers.map(write, letters), callers.map(read, range(30))
        assert all(writes) and all(reads)
    assert shell.output("ls -A") == "x"


def test_F21_encodings_are_checked(shell, folder):
    shell.execute("printf '\\xba\\xba' > gbk", shell=True, cwd=folder)
    assert shell.read(f"{folder}/gbk", encoding="gbk").result["content"] == "汉"
    shell.read(f"{folder}/gbk", encoding="nope").failed(4000, "encoding")
    shell.read(f"{folder}/gbk", errors="nope").failed(4000, "errors")


def test_F22_what_is_not_there_is_not_found(shell, folder):
    shell.read("/nope/x").failed(4000, "/nope/x", kind="not_found")
    shell.read(folder).failed(4000, "folder")
