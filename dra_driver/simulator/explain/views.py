"""From what is found device by device to sentences about groups of devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dra_driver.simulator.allocator.requests import Option
from dra_driver.simulator.explain.findings import Finding, State
from dra_driver.simulator.explain.values import DeviceGroup, RequestView
from dra_driver.simulator.explain.wording import are, choice, named, of_all
from dra_driver.util.text import shorten

_WANTS: dict[State, Callable[[str, str, Finding], str]] = {
    "free": lambda devices, verb, _: f"{devices} {verb} free and match",
    "in use": lambda devices, verb, _: f"{devices} would match, but {verb} in use",
    "node": lambda devices, verb, _: f"{devices} would match, but {verb} for other nodes",
    "attribute": lambda devices, _, found: f"{devices} would match, but: {found.why}",
    "capacity": lambda devices, _, found: f"{devices} would match, but: {found.why}",
    "counters": lambda devices, _, found: f"{devices} would match, but: {found.why}",
    "taint": lambda devices, _, found: f"{devices} would match, but: {found.why}",
}


def request_view(claim: str, option: Option, found: Sequence[Finding]) -> RequestView:
    """What is to be said of the devices of one node for a request; devices that can be had come first."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for item in found:
        groups.setdefault((item.state, item.why, item.failed), []).append(item)
    ordered = sorted(groups.values(), key=lambda members: members[0].state != "free")
    return RequestView(
        claim=claim,
        request=option.label,
        wanted=None if option.all_devices else option.count,
        free=sum(item.state == "free" for item in found),
        total=len(found),
        groups=tuple(_group(members, len(found)) for members in ordered),
    )


def _group(members: Sequence[Finding], total: int) -> DeviceGroup:
    first = members[0]
    names = tuple(item.device for item in members)
    devices = of_all(len(members), total)
    if 1 < total != len(members):
        devices += f" ({named(names)})"
    if first.failed is None:
        return DeviceGroup(names, first.state, _WANTS[first.state](devices, are(len(members)), first))
    read = saw(members)
    values = "; ".join(f"{text} is {choice(values)}" for text, values in read)
    busy = sum(item.in_use for item in members)
    clause, whose = clause_text(first.failed.clause), owner(first.failed.place)
    if first.failed.error:
        sentence = f"on {devices} {clause} fails ({first.failed.error})"
        extra = f"; {busy} of them {are(busy)} in use, on which the search does not try it" if busy else ""
    else:
        sentence = f"{devices} {are(len(members), 'does', 'do')} not match: {clause} is false"
        extra = f"; {busy} of them {are(busy)} in use besides" if busy else ""
    sentence += (f", as {values}" if values else "") + f" ({whose})" + extra
    return DeviceGroup(names, first.state, sentence, first.failed.expression, first.failed.clause, read)


def saw(members: Sequence[Finding]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Everything that was read, with its different values in the order of the devices."""
    merged: dict[str, dict[str, None]] = {}
    for item in members:
        for text, value in item.saw:
            merged.setdefault(text, {})[value] = None
    return tuple((text, tuple(values)) for text, values in merged.items())


def clause_text(clause: str) -> str:
    """A clause within a sentence."""
    return f"`{shorten(' '.join(clause.split()), _LONGEST_CLAUSE, keep=_LONGEST_CLAUSE)}`"


_LONGEST_CLAUSE = 160


def owner(place: str) -> str:
    """Whose selector it is, in words: of ``class a: selector #1``, or of the request that is spoken of."""
    holder, _, number = place.rpartition(": selector #")
    return f"selector {int(number) + 1} of {holder if holder.startswith('class ') else 'the request'}"
