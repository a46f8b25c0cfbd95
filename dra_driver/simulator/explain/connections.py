"""Counts that are legal, but do not promise chips that are connected."""

from __future__ import annotations

from collections.abc import Sequence

from dra_driver.names import DRIVER_NAME
from dra_driver.simulator.allocator import Allocation
from dra_driver.simulator.allocator.constraints import value
from dra_driver.simulator.allocator.offers import Offer
from dra_driver.simulator.explain.diagnosis import Case
from dra_driver.simulator.explain.shares import Pair
from dra_driver.simulator.explain.sights import Sight
from dra_driver.simulator.explain.wording import listed
from dra_driver.topology.instance_types import InstanceType, lookup
from dra_driver.util.errors import DriverError

_UNTOLD = frozenset({"switched", "single", "unknown"})
"""Fabrics of which neighbourhood says nothing."""


def unconnected(case: Case, seen: Sequence[Sight], chosen: Allocation | None) -> str:  # noqa: ARG001 # of the table of traps
    """A request for several chips that need not be connected; "" when all are or when nothing is known."""
    for sight in seen:
        option = sight.wish.option
        chips = [pair for pair in sight.matching if chip(pair[0]) is not None]
        kind = _kind(chips)
        if option.all_devices or option.count < 2 or kind is None or option.count >= len(chips):  # a node's all or one
            continue
        if not _promised(sight, chips, kind):
            return _sentence(sight, kind, chosen)
    return ""


def chip(offer: Offer) -> int | None:
    """The host's number of a chip of this driver; None for any other device."""
    found = value(offer, f"{DRIVER_NAME}/deviceId") if offer.driver == DRIVER_NAME else None
    return found[1] if found is not None and isinstance(found[1], int) else None


def _kind(chips: Sequence[Pair]) -> InstanceType | None:
    """The type of the node whose chips these are, if its links are known."""
    found = value(chips[0][0], f"{DRIVER_NAME}/instanceType") if chips else None
    kind = lookup(str(found[1])) if found is not None else None
    return kind if kind is not None and kind.fabric.kind not in _UNTOLD else None


def _promised(sight: Sight, chips: Sequence[Pair], kind: InstanceType) -> bool:
    """Whether a matchAttribute lets only whole connected sets pass."""
    count = sight.wish.option.count
    offered = kind.fabric.connected_sets(count)
    for spec in sight.wish.constraints:
        groups: dict[object, list[int]] = {}
        for offer, _ in chips if spec.match_attribute is not None else ():
            number = chip(offer)
            if number is not None:
                groups.setdefault(value(offer, spec.match_attribute or ""), []).append(number)
        sizes = [tuple(sorted(members)) for members in groups.values() if len(members) >= count]
        if sizes and all(members in offered for members in sizes):
            return True
    return False


def _sentence(sight: Sight, kind: InstanceType, chosen: Allocation | None) -> str:
    count, fabric = sight.wish.option.count, kind.fabric
    what = f"{sight.wish.name} asks for {count} chips of a {kind.name}"
    sizes = listed([str(size) for size in fabric.set_sizes()])
    if fabric.connected_sets(count):
        text = f"{what}, but no constraint says that they have to be a connected set"
    else:
        text = (
            f"{what}, a {fabric.describe()}, where connected sets have {sizes} chips: the count is legal, but nothing "
            "promises that the chips are connected or have consecutive numbers"
        )
    return text + _got(sight, kind, chosen)


def _got(sight: Sight, kind: InstanceType, chosen: Allocation | None) -> str:
    """What this means for the devices that the claim gets now."""
    if chosen is None or chosen.node != sight.node.name:
        return ""
    numbers = {offer.id: chip(offer) for offer, _ in sight.pairs}
    got = sorted(
        number
        for result in chosen.results
        for item in result.devices.results
        if item.request == sight.wish.option.label
        and (number := numbers.get((item.driver, item.pool, item.device))) is not None
    )
    try:
        connected = bool(got) and kind.fabric.is_connected(got)
    except DriverError:
        return ""
    if not got:
        return ""
    names = listed([str(number) for number in got])
    return f"; it would get {names}, which are {'connected by chance' if connected else 'not connected'}"
