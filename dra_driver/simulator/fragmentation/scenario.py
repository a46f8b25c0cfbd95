"""Definition of a workload: kinds of pods, how often they arrive, and how long they stay. Times are in hours."""

from __future__ import annotations

import math
import random
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import NormalDist

import msgspec

from dra_driver.cel import compile_for
from dra_driver.manifests import ManifestError, Origin
from dra_driver.manifests.documents import Path, documents
from dra_driver.manifests.fields import convert
from dra_driver.manifests.objects import DeviceClaim, ResourceClaimSpec
from dra_driver.manifests.validation import check_claim
from dra_driver.simulator.fragmentation.cluster import MAX_SET_SIZE, device_claim
from dra_driver.topology.cuts import Cuts
from dra_driver.topology.instance_types import resolve_emulation
from dra_driver.util.errors import DriverError


@dataclass(frozen=True, slots=True)
class Fixed:
    """A constant duration."""

    hours: float

    def at(self, share: float) -> float:  # noqa: ARG002 - constant
        """The quantile of the duration for this share (0 to 1)."""
        return self.hours

    @property
    def mean(self) -> float:
        """Mean duration."""
        return self.hours


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniformly distributed between two durations."""

    least: float
    most: float

    def at(self, share: float) -> float:
        """The quantile of the duration for this share (0 to 1)."""
        return self.least + share * (self.most - self.least)

    @property
    def mean(self) -> float:
        """Mean duration."""
        return (self.least + self.most) / 2


@dataclass(frozen=True, slots=True)
class Exponential:
    """Many short stays, some long ones; the age of a pod has no influence on its remaining time."""

    mean: float

    def at(self, share: float) -> float:
        """The quantile of the duration for this share (0 to 1)."""
        return -self.mean * math.log1p(-share)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Half of the stays are shorter than the median, and a few are very much longer."""

    median: float
    sigma: float

    def at(self, share: float) -> float:
        """The quantile of the duration for this share (0 to 1)."""
        return self.median * math.exp(self.sigma * NormalDist().inv_cdf(min(max(share, 1e-12), 1 - 1e-12)))

    @property
    def mean(self) -> float:
        """Mean duration."""
        return self.median * math.exp(self.sigma**2 / 2)


Duration = Fixed | Uniform | Exponential | Lognormal


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of identical pods: ``count`` chips of one connected set, ``count`` devices of a kind, or ``claims``."""

    name: str
    weight: float
    """Its share of all arrivals, relative to other kinds."""
    duration: Duration
    count: int | None = None
    claims: tuple[DeviceClaim, ...] = ()
    where: str = ""
    """Where it is defined, for errors: file, line and path."""
    device: str = ""
    """The kind of device that ``count`` counts, such as core or group4; "" for chips of one connected set."""

    @property
    def title(self) -> str:
        """Its name in error messages."""
        return f"{self.where or 'pods'}: kind {self.name}"


@dataclass(frozen=True, slots=True)
class Workload:
    """A stream of pods. A pod that does not fit is refused and does not come back."""

    kinds: tuple[Kind, ...]
    per_hour: float
    """Mean number of arrivals per hour; arrivals are independent of each other."""
    length: float
    warm_up: float = 0.0
    """The initial part of ``length``, which fills the cluster and is excluded from the figures."""
    nodes: Mapping[str, int] = field(default_factory=dict)
    """Instance type -> number of nodes; empty if the caller has to specify them."""
    devices: Cuts | None = None
    """What the nodes offer; None: what they do by default."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A pod arrives at ``hour`` and, if it fits, stays for ``stay`` hours."""

    hour: float
    kind: Kind
    stay: float


def arrivals(workload: Workload, seed: int) -> Iterator[Arrival]:
    """The pods in the order of their arrival.

    Only ``random()`` is called, three times per pod: Python guarantees its sequence across versions.
    """
    source = random.Random(seed)  # noqa: S311 - a simulation, not a secret
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


HOURS = {"s": 1 / 3600, "m": 1 / 60, "h": 1.0, "d": 24.0}
"""Unit of time -> hours."""
MAX_HOURS = 24.0 * 366 * 10
MAX_ARRIVALS = 1_000_000
"""Maximum expected number of arrivals of a stream."""
MAX_NODES = 10_000
"""Maximum number of nodes of one type."""
MAX_KINDS = 100
RATES = (1e-6, 1e6)
"""Minimum and maximum of weights and arrivals per hour."""

_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])", re.ASCII)
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?", re.ASCII)


class _Entry(msgspec.Struct, frozen=True, rename="camel"):
    """A part of the file as written."""


class _Exponential(_Entry, frozen=True):
    mean: str


class _Uniform(_Entry, frozen=True):
    least: str = msgspec.field(name="from")
    most: str = msgspec.field(name="to")


class _Lognormal(_Entry, frozen=True):
    median: str
    sigma: float


class _Duration(_Entry, frozen=True):
    fixed: str | None = None
    uniform: _Uniform | None = None
    exponential: _Exponential | None = None
    lognormal: _Lognormal | None = None


class _Kind(_Entry, frozen=True):
    name: str
    weight: float
    count: int | None = None
    device: str | None = None
    claims: tuple[ResourceClaimSpec, ...] = ()
    duration: _Duration | None = None


class _Arrivals(_Entry, frozen=True):
    per_hour: float


class _File(_Entry, frozen=True):
    pods: tuple[_Kind, ...]
    arrivals: _Arrivals
    duration: _Duration
    length: str
    warm_up: str = "0s"
    nodes: dict[str, int] | None = None
    devices: str | None = None


def read_workload(file: str, text: str, kubernetes: str = "1.37") -> Workload:
    """Read the workload from a file.

    Args:
        file: its name in error messages.
        text: YAML or JSON, one document.
        kubernetes: the release whose CEL the claims use.

    Raises:
        ManifestError: the text is not a valid workload; with file, line and path.
        DriverError: CEL's parser is not installed.
    """
    found = list(documents(file, text))
    if len(found) != 1:
        raise ManifestError(
            f"{file}: {len(found)} documents, and a workload is one", remedy="docs/placement.md has an example"
        )
    origin, value = found[0]
    if not isinstance(value, dict):
        raise origin.error((), f"a workload expected, found {type(value).__name__}")
    return _Reader(origin, kubernetes).workload(convert(value, _File, origin))


class _Reader:
    def __init__(self, origin: Origin, kubernetes: str) -> None:
        self._origin = origin
        self._kubernetes = kubernetes

    def workload(self, entry: _File) -> Workload:
        usual = self._duration(entry.duration, ("duration",))
        length = self._time(entry.length, ("length",))
        warm_up = self._time(entry.warm_up, ("warmUp",), least=0)
        if warm_up >= length:
            raise self._origin.error(("warmUp",), f"{warm_up:g} h are not less than the length of {length:g} h")
        rate = self._number(entry.arrivals.per_hour, ("arrivals", "perHour"), *RATES)
        if rate * length > MAX_ARRIVALS:
            what = f"{rate * length:.0f} pods in {length:g} h are more than {MAX_ARRIVALS}"
            raise self._origin.error(("arrivals", "perHour"), what)
        if entry.nodes is not None and not entry.nodes:
            raise self._origin.error(("nodes",), "no type is named", remedy="write, for example, trn2.48xlarge: 4")
        for name, count in (entry.nodes or {}).items():
            self._number(count, ("nodes", name), 1, MAX_NODES)
            try:
                resolve_emulation(name)
            except DriverError as error:
                raise self._origin.error(("nodes", name), error.what, remedy=error.remedy) from error
        kinds = tuple(self._kinds(entry.pods, usual))
        return Workload(kinds, rate, length, warm_up, entry.nodes or {}, self._cuts(entry.devices))

    def _cuts(self, text: str | None) -> Cuts | None:
        try:
            return None if text is None else Cuts.parse(text)
        except DriverError as error:
            raise self._origin.error(("devices",), error.what, remedy=error.remedy) from error

    def _kinds(self, entries: tuple[_Kind, ...], usual: Duration) -> Iterator[Kind]:
        if not 1 <= len(entries) <= MAX_KINDS:
            raise self._origin.error(("pods",), f"{len(entries)} kinds; 1 to {MAX_KINDS} are possible")
        names: set[str] = set()
        for place, entry in enumerate(entries):
            if entry.name in names:
                raise self._origin.error(("pods", place, "name"), f"the name {entry.name} comes twice")
            names.add(entry.name)
            yield self._kind(entry, ("pods", place), usual)

    def _kind(self, entry: _Kind, path: Path, usual: Duration) -> Kind:
        if not _NAME.fullmatch(entry.name):
            what = f"{entry.name[:60]!r} is not a valid name: lower-case letters, digits and -, at most 42"
            raise self._origin.error((*path, "name"), what)
        if (entry.count is None and entry.device is None) == (not entry.claims):
            raise self._origin.error(path, "exactly one of count and claims is needed")
        if entry.device is not None and device_claim(entry.device, 1) is None:
            raise self._origin.error(
                (*path, "device"),
                f"{entry.device[:24]!r} is not a kind of device",
                remedy="write chip, core, group, group4 (or another size) or node",
            )
        if entry.count is not None:
            self._number(entry.count, (*path, "count"), 1, MAX_SET_SIZE)
        for place, claim in enumerate(entry.claims):
            compile_ = compile_for(self._kubernetes)
            check_claim(claim.devices, self._origin, (*path, "claims", place), compile_)
        return Kind(
            entry.name,
            self._number(entry.weight, (*path, "weight"), *RATES),
            self._duration(entry.duration, (*path, "duration")) if entry.duration is not None else usual,
            entry.count if entry.device is None else entry.count or 1,
            tuple(claim.devices for claim in entry.claims),
            self._origin.error(path, "").what.removesuffix(": "),
            entry.device or "",
        )

    def _number(self, value: float, path: Path, least: float, most: float) -> float:
        # Written so that NaN is refused, too.
        if not least <= value <= most:
            raise self._origin.error(path, f"{str(value)[:24]} is not in the range from {least:g} to {most:g}")
        return value

    def _time(self, text: str, path: Path, least: float = 1e-6) -> float:
        """Parse a duration such as ``90m`` as hours."""
        match = _TIME.fullmatch(text)
        if match is None:
            raise self._origin.error(
                path, f"{text[:24]!r} is not a duration", remedy="write a number and a unit (s, m, h, d), such as 90m"
            )
        hours = float(match[1]) * HOURS[match[2]]
        if not least <= hours <= MAX_HOURS:
            raise self._origin.error(path, f"{text} is {'more' if hours > least else 'less'} than a workload can have")
        return hours

    def _duration(self, entry: _Duration, path: Path) -> Duration:
        given = [name for name in entry.__struct_fields__ if getattr(entry, name) is not None]
        if len(given) != 1:
            names = ", ".join(_DISTRIBUTIONS)
            raise self._origin.error(path, "exactly one distribution is needed", remedy=f"give one of {names}")
        return _DISTRIBUTIONS[given[0]](self, getattr(entry, given[0]), (*path, given[0]))

    def fixed(self, entry: str, path: Path) -> Duration:
        return Fixed(self._time(entry, path))

    def uniform(self, entry: _Uniform, path: Path) -> Duration:
        least, most = self._time(entry.least, (*path, "from")), self._time(entry.most, (*path, "to"))
        if most < least:
            raise self._origin.error((*path, "to"), f"{entry.most} is less than {entry.least}")
        return Uniform(least, most)

    def exponential(self, entry: _Exponential, path: Path) -> Duration:
        return Exponential(self._time(entry.mean, (*path, "mean")))

    def lognormal(self, entry: _Lognormal, path: Path) -> Duration:
        sigma = self._number(entry.sigma, (*path, "sigma"), 0.01, 4)
        found = Lognormal(self._time(entry.median, (*path, "median")), sigma)
        if found.mean > MAX_HOURS:
            raise self._origin.error(path, f"the mean of {found.mean:.0f} h is more than {MAX_HOURS:g} h")
        return found


_DISTRIBUTIONS: dict[str, Callable[..., Duration]] = {
    "fixed": _Reader.fixed,
    "uniform": _Reader.uniform,
    "exponential": _Reader.exponential,
    "lognormal": _Reader.lognormal,
}
