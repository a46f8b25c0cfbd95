"""Constraints that cannot be satisfied: how many devices each group lacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dra_driver.kube.objects.resource import DeviceConstraint
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.simulator.allocator.constraints import Value, alternatives, value
from dra_driver.simulator.allocator.pool_devices import DeviceId, PoolDevice
from dra_driver.simulator.explain.findings import DeviceFinding
from dra_driver.simulator.explain.values import ConstraintView, Kind, Share
from dra_driver.util.wording import are, counted, listed, named

ROW = f"{DRIVER_NAME}/topology_x"
"""The attribute for the row of the torus in which a chip is."""

Pair = tuple[PoolDevice, DeviceFinding]


def constraint_view(
    constraint: DeviceConstraint,
    labels: Sequence[str],
    wanted: int,
    pairs: Sequence[Sequence[Pair]],
    counts: Sequence[int],
) -> ConstraintView:
    """The devices from which a constraint has to choose on one node.

    Args:
        constraint: of the claim.
        labels: names of the requests that it concerns.
        wanted: the total number of devices that they request.
        pairs: for each of these requests, every device and the finding about it.
        counts: for each of these requests, the minimum number of devices that it needs.
    """
    matching = constraint.match_attribute is not None
    attribute = constraint.match_attribute or constraint.distinct_attribute or ""
    devices = {offer.id: offer for rows in pairs for offer, _ in rows}
    suitable = {offer.id for rows in pairs for offer, finding in rows if finding.failed is None}
    free_for = [{offer.id for offer, finding in rows if finding.state == "free"} for rows in pairs]
    free = set[DeviceId]().union(*free_for)
    by_value: dict[Value, list[PoolDevice]] = {}
    for offer in devices.values():
        if offer.id in suitable and (content := value(offer, attribute)) is not None:
            for one in alternatives(content) or (content,):
                by_value.setdefault(one, []).append(offer)
    shares = tuple(
        Share(
            label=_label(one, attribute, members, devices.values()),
            devices=tuple(offer.device.name for offer in members),
            free=tuple(offer.device.name for offer in members if offer.id in free),
            short=_short(members, [(free, wanted), *zip(free_for, counts, strict=True)]) if matching else 0,
        )
        for one, members in by_value.items()
    )
    kind: Kind = "matchAttribute" if matching else "distinctAttribute"
    return ConstraintView(kind, attribute, tuple(labels), wanted, tuple(sorted(shares, key=lambda item: item.short)))


def _short(members: Sequence[PoolDevice], needs: Sequence[tuple[set[DeviceId], int]]) -> int:
    """The number of missing devices in the group, for the request that lacks most."""
    return max(max(count - sum(offer.id in free for offer in members), 0) for free, count in needs)


def _label(shared: Value, attribute: str, members: Sequence[PoolDevice], devices: Iterable[PoolDevice]) -> str:
    """A description of the group: its rows in the torus if no other group shares them, otherwise its devices."""
    rows = {row: None for offer in members if (row := value(offer, ROW)) is not None}
    others = [offer for offer in devices if offer not in members]
    if rows and all(value(offer, ROW) is not None for offer in members):
        numbers = sorted(str(content) for _, content in rows)
        if len(rows) <= 2 and not any(value(offer, ROW) in rows for offer in others):  # one row or two
            return f"row {numbers[0]}" if len(numbers) == 1 else f"rows {numbers[0]} and {numbers[1]}"
    if len(members) == 1:
        return members[0].device.name
    name = attribute.rpartition("/")[2]
    return f"{named(offer.device.name for offer in members)} ({name} {shared[1]})"


def share_sentence(view: ConstraintView) -> str:
    """The number of free devices by group; groups that lack the fewest devices come first."""
    if view.kind == "distinctAttribute":
        values = sum(bool(share.free) for share in view.shares)
        return f"the free ones have {counted(values, 'different value')}"
    if not view.shares:
        return "no device that matches has that attribute"
    by_count: dict[int, list[str]] = {}
    for share in view.shares:
        by_count.setdefault(len(share.free), []).append(share.label)
    parts = [_part(labels, count) for count, labels in sorted(by_count.items(), reverse=True)]
    return "; ".join(parts)


_MAX_LABELS = 4


def _part(labels: Sequence[str], count: int) -> str:
    free = f"{count} free" if count else "none free"
    if count and len(labels) > 1:
        free += " each"
    if len(labels) > _MAX_LABELS:
        return f"{len(labels)} groups have {free}"
    return f"{_joined(labels)} {are(len(labels), 'has', 'have')} {free}"


def _joined(labels: Sequence[str]) -> str:
    """``rows 0 and 2`` for row 0 and row 2."""
    if len(labels) > 1 and all(label.startswith("row ") for label in labels):
        return f"rows {listed(sorted(label.removeprefix('row ') for label in labels))}"
    return ", ".join(labels)
