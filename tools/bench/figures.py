"""Statistics of samples: pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

Samples = Mapping[str, Sequence[float]]
"""Durations in milliseconds by action: `get`, `prepare`, `unprepare`."""


@dataclass(frozen=True)
class Round:
    """One round of calls.

    Attributes:
        milliseconds: Durations by action.
        seconds: Duration of the whole round.
    """

    milliseconds: Samples
    seconds: float


@dataclass(frozen=True)
class CallFigures:
    """A driver's figures in one situation, durations in milliseconds.

    Attributes:
        get: Median over the rounds of the API server's own median; None if it was not called.
        prepare: The same for NodePrepareResources.
        prepare_p99: 99th percentile of all its calls.
        unprepare: Median over the rounds of the median of NodeUnprepareResources.
        unprepare_p99: 99th percentile of all its calls.
        above_get: Median over the rounds of the difference of the medians of prepare and get.
        pairs_per_second: Median over the rounds.
        calls: Number of prepare calls.
    """

    get: float | None
    prepare: float
    prepare_p99: float
    unprepare: float
    unprepare_p99: float
    above_get: float | None
    pairs_per_second: float
    calls: int


@dataclass(frozen=True)
class ProcessFigures:
    """What a called process takes: VmRSS before the calls and after them, in MB of 1024 kB, and threads after them."""

    before_mb: float
    after_mb: float
    threads: int


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of the values do not exceed.

    Raises:
        ValueError: There are no values.
    """
    if not values:
        raise ValueError("no values, so there is no percentile")
    rank = math.ceil(len(values) * percent / 100)
    return sorted(values)[max(rank, 1) - 1]


def call_figures(rounds: Sequence[Round]) -> CallFigures:
    """Return the figures of some rounds of the same kind (at least one)."""
    prepares = [value for item in rounds for value in item.milliseconds["prepare"]]
    unprepares = [value for item in rounds for value in item.milliseconds["unprepare"]]
    gets = [median(item.milliseconds["get"]) for item in rounds if "get" in item.milliseconds]
    medians = [median(item.milliseconds["prepare"]) for item in rounds]
    return CallFigures(
        get=median(gets) if gets else None,
        prepare=median(medians),
        prepare_p99=percentile(prepares, 99),
        unprepare=median(median(item.milliseconds["unprepare"]) for item in rounds),
        unprepare_p99=percentile(unprepares, 99),
        above_get=median(mine - get for mine, get in zip(medians, gets, strict=True)) if gets else None,
        pairs_per_second=median(len(item.milliseconds["unprepare"]) / item.seconds for item in rounds),
        calls=len(prepares),
    )
