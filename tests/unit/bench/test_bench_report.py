"""The table and the JSON document."""

import json

import pytest

from bench.report import align, document, figure, ratio, table
from bench.samples import Book, summarize


@pytest.fixture
def book():
    book = Book()
    book.define("step", "ms", "a step")
    book.define("own", "ms", "our own cost")
    book.define("rate", "steps/s", "steps in a closed loop")
    book.define("never", "ms", "defined but not taken")
    book.add("step", "ours", 5.0, 6.0, 7.0)
    book.add("step", "theirs", 110.0, 112.0)
    book.add("own", "(none)", 0.05)
    book.add("rate", "ours", 1234.5)
    book.fail("rate", "theirs", "HTTP 500: broken")
    book.fail("rate", "theirs", "again")
    return book


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1234, "0.123"),
        (5.678, "5.68"),
        (56.78, "56.8"),
        (567.8, "568"),
        (12345.6, "12,346"),
        (-9.8, "-9.80"),
        (3, "3"),
    ],
)
def test_figures_have_three_digits(value, text):
    assert figure(value) == text


def test_one_server_gets_every_column(book):
    lines = table(book, ["ours"]).splitlines()
    assert lines[0].split() == ["measure", "unit", "n", "median", "p95", "p99", "min", "max"]
    assert lines[2].split() == ["step", "ms", "3", "6", "6.90", "6.98", "5", "7"]
    assert lines[3].split()[:4] == ["own", "ms", "1", "0.050"]
    assert not any("never" in line for line in lines)


def test_two_servers_stand_side_by_side_with_ratios(book):
    lines = table(book, ["ours", "theirs"]).splitlines()
    assert lines[0].endswith("/ ours")
    assert lines[2].split() == ["step", "ms", "6", "6.90", "3", "111", "112", "2", "x", "18.5"]
    rate = next(line for line in lines if line.startswith("rate"))
    assert rate.split()[-4:] == ["-", "-", "0", "-"]
    assert lines[-1] == "! rate on theirs: 2 failed, the first: HTTP 500: broken"


def test_a_ratio_needs_two_numbers():
    assert ratio(summarize([4.0]), summarize([2.0])) == "x 2"
    assert ratio(None, summarize([2.0])) == "-"
    assert ratio(summarize([4.0]), summarize([0.0])) == "-"


def test_columns_are_aligned():
    assert align([["a", "unit", "n"], ["long name", "ms", "100"]]) == [
        "a          unit    n",
        "---------  ----  ---",
        "long name  ms    100",
    ]


def test_the_document_holds_every_figure_and_is_json(book):
    read = json.loads(json.dumps(document(book, {"machine": {"cpus": 2}})))
    assert read["machine"] == {"cpus": 2}
    measures = {measure["name"]: measure for measure in read["measures"]}
    assert set(measures) == {"step", "own", "rate"}
    ours = measures["step"]["servers"]["ours"]
    assert (ours["n"], ours["median"], ours["low"], ours["high"]) == (3, 6.0, 5.0, 7.0)
    failed = measures["rate"]["servers"]["theirs"]
    assert failed == {"n": 0, "failures": 2, "first_failures": ["HTTP 500: broken", "again"]}
