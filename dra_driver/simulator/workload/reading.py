"""From the text of a workload file to a workload. Strict: what is not understood is refused, with file, line and path.

``docs/placement.md`` describes the format.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from dra_driver.simulator.workload.cluster import LARGEST_SET
from dra_driver.simulator.workload.document import Spot, WorkloadError, load
from dra_driver.simulator.workload.values import Duration, Exponential, Fixed, Kind, Lognormal, Uniform, Workload

__all__ = ["WorkloadError", "read_workload"]

HOURS = {"s": 1 / 3600, "m": 1 / 60, "h": 1.0, "d": 24.0}
"""Unit of time -> hours."""
MOST_HOURS = 24.0 * 366 * 10
MOST_ARRIVALS = 1_000_000
"""Expected arrivals of a stream."""
MOST_NODES = 10_000
"""Of one type."""
MOST_KINDS = 100

_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])", re.ASCII)
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)


def read_workload(file: str, text: str) -> Workload:
    """The workload of a file; ``file`` is what errors call it.

    Raises:
        WorkloadError: the text is no workload.
    """
    spot = load(file, text)
    fields = spot.fields(("pods", "arrivals", "duration", "length"), ("nodes", "warmUp"))
    usual = _duration(fields["duration"])
    length = _time(fields["length"])
    per_hour = fields["arrivals"].fields(("perHour",))["perHour"]
    rate = per_hour.number(1e-6, 1e6)
    if rate * length > MOST_ARRIVALS:
        per_hour.refuse(f"{rate * length:.0f} arrivals in {length:g} h are more than {MOST_ARRIVALS}")
    warm_up = _time(fields["warmUp"], least=0.0) if "warmUp" in fields else 0.0
    if warm_up >= length:
        fields["warmUp"].refuse(f"{warm_up:g} h are not less than the length of {length:g} h")
    return Workload(_kinds(fields["pods"], usual), rate, length, warm_up, _nodes(fields.get("nodes")))


def _nodes(spot: Spot | None) -> Mapping[str, int]:
    if spot is None:
        return {}
    found = {name: item.whole(1, MOST_NODES) for name, item in spot.mapping().items()}
    if not found:
        spot.refuse("no type is named", "write, for example, trn2.48xlarge: 4")
    return found


def _kinds(spot: Spot, usual: Duration) -> tuple[Kind, ...]:
    items = spot.items()
    if len(items) > MOST_KINDS:
        spot.refuse(f"{len(items)} kinds are more than {MOST_KINDS}")
    found: dict[str, Kind] = {}
    for item in items:
        kind = _kind(item, usual)
        if kind.name in found:
            item.refuse(f"the name {kind.name} comes twice")
        found[kind.name] = kind
    return tuple(found.values())


def _kind(spot: Spot, usual: Duration) -> Kind:
    fields = spot.fields(("name", "weight", "count"), ("duration",))
    name = fields["name"].text()
    if not _NAME.fullmatch(name):
        fields["name"].refuse(f"{name!r} is not of small letters, digits and dashes")
    return Kind(
        name,
        fields["weight"].number(1e-6, 1e6),
        _duration(fields["duration"]) if "duration" in fields else usual,
        fields["count"].whole(1, LARGEST_SET),
    )


def _time(spot: Spot, least: float = 1e-6) -> float:
    """Hours of a text such as ``90m``."""
    text = spot.value if isinstance(spot.value, str) else ""
    match = _TIME.fullmatch(text)
    if match is None:
        spot.refuse(f"a time such as 90m expected, found {spot.kind() if not text else repr(text[:24])}", _UNITS)
    hours = float(match[1]) * HOURS[match[2]]
    if not least <= hours <= MOST_HOURS:
        spot.refuse(f"{text} is not in the range from {least:g} to {MOST_HOURS:g} hours")
    return hours


_UNITS = "write a number and one of the units s, m, h and d"


def _exponential(spot: Spot) -> Duration:
    return Exponential(_time(spot.fields(("mean",))["mean"]))


def _uniform(spot: Spot) -> Duration:
    fields = spot.fields(("from", "to"))
    least, most = _time(fields["from"]), _time(fields["to"])
    if most < least:
        fields["to"].refuse("is less than from")
    return Uniform(least, most)


def _lognormal(spot: Spot) -> Duration:
    fields = spot.fields(("median", "sigma"))
    found = Lognormal(_time(fields["median"]), fields["sigma"].number(0.01, 4))
    if not math.isfinite(found.mean) or found.mean > MOST_HOURS:
        spot.refuse(f"the mean is more than {MOST_HOURS:g} hours")
    return found


_DISTRIBUTIONS: dict[str, Callable[[Spot], Duration]] = {
    "fixed": lambda spot: Fixed(_time(spot)),
    "uniform": _uniform,
    "exponential": _exponential,
    "lognormal": _lognormal,
}


def _duration(spot: Spot) -> Duration:
    fields = spot.fields((), tuple(_DISTRIBUTIONS))
    if len(fields) != 1:
        spot.refuse("exactly one distribution expected", f"give one of {', '.join(_DISTRIBUTIONS)}")
    ((name, found),) = fields.items()
    return _DISTRIBUTIONS[name](found)
