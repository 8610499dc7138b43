"""What was measured: samples by measure and server, and their summary. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Summary:
    """The figures that are shown of a list of samples."""

    n: int
    median: float
    p95: float
    p99: float
    low: float
    high: float


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of the sorted samples lie, interpolated between neighbours.

    Raises ValueError when there is no sample.
    """
    if not ordered:
        raise ValueError("no samples")
    place = (len(ordered) - 1) * share
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def summarize(values: Sequence[float]) -> Summary:
    """Return the summary of at least one sample. Raises ValueError when there is none."""
    ordered = sorted(values)
    return Summary(
        n=len(ordered),
        median=quantile(ordered, 0.5),
        p95=quantile(ordered, 0.95),
        p99=quantile(ordered, 0.99),
        low=ordered[0],
        high=ordered[-1],
    )


@dataclass
class Series:
    """The samples of one measure on one server, and what went wrong meanwhile."""

    values: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass
class Measure:
    """One measured quantity, by the name of the server."""

    name: str
    unit: str
    meaning: str
    series: dict[str, Series] = field(default_factory=dict)


class Book:
    """All measures of a run, in the order in which they were first taken."""

    def __init__(self) -> None:
        self._measures: dict[str, Measure] = {}

    def __iter__(self) -> Iterator[Measure]:
        """Iterate over the measures."""
        return iter(self._measures.values())

    def define(self, name: str, unit: str, meaning: str) -> None:
        """Name a measure before its first sample; a second time it stays as it is."""
        self._measures.setdefault(name, Measure(name, unit, meaning))

    def add(self, name: str, server: str, *values: float) -> None:
        """Add samples. Raises KeyError for a measure that was not defined."""
        self._series(name, server).values.extend(values)

    def fail(self, name: str, server: str, reason: str) -> int:
        """Note a failed attempt; return how many there are now. Raises KeyError for an undefined measure."""
        failures = self._series(name, server).failures
        failures.append(reason)
        return len(failures)

    def _series(self, name: str, server: str) -> Series:
        return self._measures[name].series.setdefault(server, Series())
