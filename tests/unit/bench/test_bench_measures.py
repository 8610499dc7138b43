"""Turns, limits and contents of the measures, and the command line's words."""

import dataclasses

import pytest
from click.testing import CliRunner

from bench.__main__ import main
from bench.client import Server, Shape
from bench.measures import GIVE_UP, Run, in_turns, same, text
from bench.plan import QUICK, Plan
from bench.samples import Book
from bench.wire import BenchError


@pytest.fixture
def run():
    servers = [Server(name, "http://127.0.0.1:1") for name in ("a", "b")]
    book = Book()
    book.define("it", "ms", "anything")
    return Run(servers, Shape(), Plan(), book, say=lambda text: None)


def test_servers_take_turns_and_change_who_is_first(run):
    seen = []
    in_turns(run, "it", 5, lambda server: seen.append(server.name), block=2)
    assert "".join(seen) == "aabb" + "bbaa" + "ab"


def test_a_server_that_keeps_failing_is_left(run):
    seen = []

    def take(server):
        seen.append(server.name)
        if server.name == "b":
            raise BenchError("no")

    in_turns(run, "it", 20, take, block=1)
    assert seen.count("a") == 20 and seen.count("b") == GIVE_UP
    assert next(iter(run.book)).series["b"].failures == ["no"] * GIVE_UP


def test_a_measure_ends_with_its_budget(run):
    seen = []
    hasty = dataclasses.replace(run, plan=Plan(budget=-1.0))
    in_turns(hasty, "it", 20, lambda server: seen.append(server.name), only={"b"})
    assert seen == ["b"]


@pytest.mark.parametrize("size", [1, 100, 1024, 1024 * 1024])
def test_texts_have_their_size_in_short_lines(size):
    content = text(size)
    assert len(content) == size and content == text(size)
    assert max(map(len, content.splitlines())) <= 99


def test_contents_are_compared_but_for_the_ends_of_lines():
    same("x", "a\r\nb", "a\nb\n")
    with pytest.raises(BenchError, match="other contents"):
        same("x", "a\nc", "a\nb\n")


def test_quick_is_less_of_everything():
    full, quick = dataclasses.asdict(Plan()), dataclasses.asdict(QUICK)
    counts = [name for name, value in full.items() if isinstance(value, int | float)]
    assert all(quick[name] <= full[name] for name in counts)
    assert sum(QUICK.outputs.values()) < sum(Plan().outputs.values())


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--only", "nothing"], "choose from own, start"),
        (["--url", "https://x"], "not an http:// URL"),
        (["--url", "127.0.0.1:1", "--url", "127.0.0.1:1"], "two servers have one name"),
        (["--crowds", "8,many"], "numbers separated by commas"),
        (["--header", "nonsense"], "is not NAME: VALUE"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_measured(arguments, hint):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert hint in result.output
