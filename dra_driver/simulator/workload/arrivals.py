"""The stream of pods: the same one for the same seed, whatever happens to the pods."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from dra_driver.simulator.workload.values import Kind, Workload


@dataclass(frozen=True, slots=True)
class Arrival:
    """A pod comes at ``hour`` and, if it finds room, stays for ``stay`` hours."""

    hour: float
    kind: Kind
    stay: float


def arrivals(workload: Workload, seed: int) -> Iterator[Arrival]:
    """The pods in the order of their arrival.

    Only ``random()`` is asked, and three times for each pod: Python promises its sequence for all its versions.
    """
    source = random.Random(seed)  # noqa: S311 - a simulation, no secret
    bounds = list(accumulate(kind.weight for kind in workload.kinds))
    hour = 0.0
    while True:
        gap, which, share = source.random(), source.random(), source.random()
        hour -= math.log1p(-gap) / workload.per_hour
        if hour >= workload.length:
            return
        place = min(bisect_right(bounds, which * bounds[-1]), len(bounds) - 1)
        kind = workload.kinds[place]
        yield Arrival(hour, kind, kind.duration.at(share))
