"""The examples of README.md and docs/ run as they stand there, and print what stands under them."""

import doctest
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service_stack import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN, WANTED = ("sh", "python"), "output"
SHOWN = ("console", "yaml", "text")
"""What is shown only: it needs an installation, another machine or a network."""
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#([^)]*))?\)")


def examples(page):
    """Return the blocks of a page that run: language, text, and the output that stands under each (None: any)."""
    found = []
    for language, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        assert language in (*RUN, WANTED, *SHOWN), f"{page.name}: a block of language {language!r}"
        if language in RUN:
            found.append([language, text, None])
        elif language == WANTED:
            assert found and found[-1][2] is None, f"{page.name}: an output without its example"
            found[-1][2] = text
    return found


def agrees(wanted, printed):
    """Return whether an output is as a page says: `...` stands for anything; of a JSON object on one line, the members that are shown."""
    lines, got = wanted.splitlines(), printed.splitlines()
    if len(lines) == len(got) and all(line.startswith("{") for line in lines):
        return all(map(_agrees, map(json.loads, lines), map(json.loads, got)))
    return doctest.OutputChecker().check_output(wanted, printed, doctest.ELLIPSIS)


def _agrees(wanted, got):
    if isinstance(wanted, dict):
        return isinstance(got, dict) and all(
            name in got and _agrees(value, got[name]) for name, value in wanted.items()
        )
    if isinstance(wanted, str) and isinstance(got, str):
        return doctest.OutputChecker().check_output(wanted, got, doctest.ELLIPSIS)
    return bool(wanted == got)


def script_of(blocks, folder):
    """Return a bash script that runs the blocks one after the other in one shell, the output of each in a file."""
    lines = ["set -e"]
    for number, (language, text, _) in enumerate(blocks):
        if language == "python":
            (folder / f"{number}.py").write_text(text)
            text = f"{sys.executable} {folder / f'{number}.py'}\n"
        lines.append(f"{{\n{text}}} >{folder / f'{number}.out'} 2>&1 </dev/null")
    return "\n".join(lines)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_run_and_print_what_it_says(server, tmp_path, page):
    blocks = examples(page)
    if not blocks:
        return
    if any("curl " in text for language, text, _ in blocks if language == "sh") and not shutil.which("curl"):
        pytest.skip("no curl here")
    outputs, work = tmp_path / "outputs", tmp_path / "work"
    outputs.mkdir()
    work.mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script_of(blocks, outputs)], cwd=work, env={**server.environment(), "PATH": path, "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    printed = {int(file.stem): file.read_text() for file in outputs.glob("*.out")}
    assert done.returncode == 0, f"example {max(printed) + 1} of {page.name} failed:\n{printed[max(printed)]}"
    for number, (_, text, wanted) in enumerate(blocks):
        if wanted is None:
            continue
        assert agrees(wanted, printed[number]), f"{page.name}:\n{text}\nprinted\n{printed[number]}\nand not\n{wanted}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target, part in _LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        file = page.parent / target
        assert file.exists(), f"{page.name} links to {target}"
        heads = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE) if part else []
        names = [re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-") for head in heads]
        assert not part or part in names, f"{page.name} links to {target}#{part}"
