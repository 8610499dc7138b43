"""Quantiles, summaries and the book of a run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.samples import Book, quantile, summarize

floats = st.lists(st.floats(-1e6, 1e6), min_size=1)


def test_quantiles_lie_between_neighbours():
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert quantile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert quantile([7.0], 0.99) == 7.0
    assert quantile([0.0, 100.0], 0.95) == pytest.approx(95.0)


@given(floats)
def test_a_summary_is_ordered(values):
    found = summarize(values)
    assert found.n == len(values)
    assert found.low == min(values) and found.high == max(values)
    ordered = [found.low, found.median, found.p95, found.p99, found.high]
    assert all(one <= other + 1e-6 for one, other in zip(ordered, ordered[1:], strict=False))


def test_no_samples_have_no_summary():
    with pytest.raises(ValueError, match="no samples"):
        quantile([], 0.5)
    with pytest.raises(ValueError, match="no samples"):
        summarize([])


def test_a_book_keeps_its_order_and_counts_failures():
    book = Book()
    book.define("b", "ms", "second letter")
    book.define("a", "ms", "first letter")
    book.define("b", "s", "ignored: it has a meaning already")
    book.add("b", "one", 1.0, 2.0)
    assert book.fail("a", "one", "no") == 1
    assert book.fail("a", "one", "no again") == 2
    assert [(measure.name, measure.unit) for measure in book] == [("b", "ms"), ("a", "ms")]
    assert next(iter(book)).series["one"].values == [1.0, 2.0]
    with pytest.raises(KeyError):
        book.add("c", "one", 1.0)
