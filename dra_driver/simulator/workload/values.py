"""What a workload is: kinds of pods, how often they arrive, and how long they stay. Times are in hours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist

from dra_driver.simulator.objects import DeviceClaim


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same time."""

    hours: float

    def at(self, share: float) -> float:  # noqa: ARG002 - the same for every share
        """The time that this share (0 to 1) of pods stays at most."""
        return self.hours

    @property
    def mean(self) -> float:
        """Mean time."""
        return self.hours


@dataclass(frozen=True, slots=True)
class Uniform:
    """Any time between two, each as likely."""

    least: float
    most: float

    def at(self, share: float) -> float:
        """The time that this share (0 to 1) of pods stays at most."""
        return self.least + share * (self.most - self.least)

    @property
    def mean(self) -> float:
        """Mean time."""
        return (self.least + self.most) / 2


@dataclass(frozen=True, slots=True)
class Exponential:
    """Many short stays, some long ones; how long a pod has been there says nothing about how long it will stay."""

    mean: float

    def at(self, share: float) -> float:
        """The time that this share (0 to 1) of pods stays at most."""
        return -self.mean * math.log1p(-share)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Half of the stays are shorter than the median, and a few are very much longer."""

    median: float
    sigma: float

    def at(self, share: float) -> float:
        """The time that this share (0 to 1) of pods stays at most."""
        return self.median * math.exp(self.sigma * NormalDist().inv_cdf(min(max(share, 1e-12), 1 - 1e-12)))

    @property
    def mean(self) -> float:
        """Mean time."""
        return self.median * math.exp(self.sigma**2 / 2)


Duration = Fixed | Uniform | Exponential | Lognormal


@dataclass(frozen=True, slots=True)
class Kind:
    """Pods that are alike: either ``count`` chips of one connected set, or ``claims``."""

    name: str
    weight: float
    """Its share of all arrivals, relative to the other kinds'."""
    duration: Duration
    count: int | None = None
    claims: tuple[DeviceClaim, ...] = ()
    where: str = ""
    """Where it is written, for errors: file, line and path."""

    @property
    def title(self) -> str:
        """What errors call it."""
        return f"{self.where or 'pods'}: kind {self.name}"


@dataclass(frozen=True, slots=True)
class Workload:
    """A stream of pods. Whoever finds no room is refused and does not come back."""

    kinds: tuple[Kind, ...]
    per_hour: float
    """Arrivals an hour, on average; they come independently of each other."""
    length: float
    warm_up: float = 0.0
    """The first part of ``length``, which fills the cluster and is left out of the figures."""
    nodes: Mapping[str, int] = field(default_factory=dict)
    """Instance type -> how many; empty when whoever runs it has to say."""
