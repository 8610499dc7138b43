"""A run's figures as a table for people and as JSON for programs. Pure."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bench.samples import Book, Measure, Summary, summarize

NOBODY = "(none)"
"""The server's name of measures that need no server."""


def table(book: Book, names: Sequence[str]) -> str:
    """Return the figures as text: one server with all its columns, several side by side with ratios to the first."""
    rows = _alone(book, names[0]) if len(names) == 1 else _side_by_side(book, names)
    return "\n".join([*align(rows), *failures(book)])


def _alone(book: Book, name: str) -> list[list[str]]:
    rows = [["measure", "unit", "n", "median", "p95", "p99", "min", "max"]]
    for measure in book:
        found = _summary(measure, name) or _summary(measure, NOBODY)
        if found:
            figures = (found.median, found.p95, found.p99, found.low, found.high)
            rows.append([measure.name, measure.unit, str(found.n), *map(figure, figures)])
    return rows


def _side_by_side(book: Book, names: Sequence[str]) -> list[list[str]]:
    first = names[0]
    rows = [["measure", "unit"]]
    for name in names:
        rows[0] += [f"{name} median", "p95", "n"] + ([] if name == first else [f"/ {first}"])
    for measure in book:
        summaries = {name: _summary(measure, name) or _summary(measure, NOBODY) for name in names}
        if not any(summaries.values()):
            continue
        row = [measure.name, measure.unit]
        for name in names:
            found = summaries[name]
            row += [figure(found.median), figure(found.p95), str(found.n)] if found else ["-", "-", "0"]
            if name != first:
                row.append(ratio(found, summaries[first]))
        rows.append(row)
    return rows


def ratio(one: Summary | None, other: Summary | None) -> str:
    """Return how many times one median is the other, or `-` when there is no such number."""
    if one is None or other is None or other.median == 0:
        return "-"
    return f"x {figure(one.median / other.median)}"


def figure(value: float) -> str:
    """Return a number with three digits that mean something, and none lost before the point."""
    size = abs(value)
    if size == int(size):
        return f"{value:,.0f}"
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}"


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of one length as lines: the first two columns to the left, figures to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return lines


def failures(book: Book) -> list[str]:
    """Return a line for each measure that failed on a server: how often, and the first reason."""
    return [
        f"! {measure.name} on {server}: {len(series.failures)} failed, the first: {series.failures[0]}"
        for measure in book
        for server, series in measure.series.items()
        if series.failures
    ]


def document(book: Book, about: dict[str, Any]) -> dict[str, Any]:
    """Return the run as one JSON object: `about` it, and every measure with its figures by server."""
    return {**about, "measures": [_entry(measure) for measure in book if measure.series]}


def _entry(measure: Measure) -> dict[str, Any]:
    results = {}
    for server, series in measure.series.items():
        found = asdict(summarize(series.values)) if series.values else {"n": 0}
        rounded = {name: round(value, 4) for name, value in found.items()}
        results[server] = {**rounded, "failures": len(series.failures), "first_failures": series.failures[:3]}
    return {"name": measure.name, "unit": measure.unit, "meaning": measure.meaning, "servers": results}


def _summary(measure: Measure, server: str) -> Summary | None:
    series = measure.series.get(server)
    return summarize(series.values) if series and series.values else None
