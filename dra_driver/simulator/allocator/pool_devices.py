"""Devices as the search uses them: parsed once, read often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from dra_driver.kube.objects.resource import Device, DeviceAttribute, ResourceSliceSpec
from dra_driver.kube.quantity import nanos
from dra_driver.util.errors import DriverError

PoolKey = tuple[str, str]
"""Driver and pool name."""
DeviceId = tuple[str, str, str]
"""Driver, pool and device name: identifies a device in the whole cluster."""
CounterKey = tuple[str, str]
"""Names of counter set and counter."""


class Selector(Protocol):
    """A compiled selector."""

    def matches(self, device: Any) -> bool:
        """Whether the device is selected; raises DriverError if the expression fails on it."""


MayGoOn = Callable[[], bool]
"""Whether there is time left; the clock is the caller's."""
Deadline = Callable[[str], MayGoOn]
"""Begins the time for a question about one node, on behalf of a namespace."""


def unlimited(_namespace: str) -> MayGoOn:
    """A deadline that never comes."""
    return lambda: True


class TimeOver(Exception):  # noqa: N818 - control flow; no DriverError, which would count as one of the expression
    """There is no time left to go on."""


@dataclass(frozen=True, slots=True)
class TimedSelector:
    """A selector that is evaluated only while there is time."""

    selector: Selector
    may_go_on: MayGoOn

    def matches(self, device: Any) -> bool:
        """As the selector; raises TimeOver."""
        if not self.may_go_on():
            raise TimeOver
        return self.selector.matches(device)


class BrokenSelector:
    """Stands for an expression that cannot be compiled: Kubernetes, too, reports it only at the first device."""

    def __init__(self, text: str) -> None:
        self.text = text

    def matches(self, device: Any) -> bool:  # noqa: ARG002 - required by the protocol
        """Always raises DriverError."""
        raise DriverError(self.text)


@dataclass(frozen=True, slots=True)
class Selectors:
    """How expressions are compiled, and what they are evaluated on."""

    compile: Callable[[str], Selector]
    """Raises DriverError for an invalid expression."""
    view: Callable[[str, Device], Any]
    """Converts driver and device for ``Selector.matches``; raises DriverError if selectors cannot read the device."""


@dataclass(frozen=True, slots=True)
class SelectorFailure:
    """The selector at ``place`` failed on a device."""

    place: int
    text: str


@dataclass(eq=False, slots=True)
class SelectorView:
    """What selectors can read of a device, and their results. Shared by equal devices of all nodes."""

    verdicts: dict[tuple[str, ...], bool | SelectorFailure] = field(default_factory=dict)
    """Results by expressions: selected or not, or the failure."""
    view: Any = None


class Contents:
    """Deduplicates views."""

    def __init__(self) -> None:
        self._by_content: dict[bytes, SelectorView] = {}
        self._by_id: dict[int, tuple[Device, SelectorView]] = {}

    def of(self, driver: str, device: Device) -> SelectorView:
        """The view that is shared by all devices that selectors cannot distinguish."""
        entry = self._by_id.get(id(device))
        if entry is None:
            # Selectors can read neither the name nor nodes and counters.
            seen = (driver, device.attributes, device.capacity, device.allow_multiple_allocations)
            content = self._by_content.setdefault(_ENCODER.encode(seen), SelectorView())
            # Keeping a reference to the device ensures that its id() is not reused.
            entry = self._by_id[id(device)] = (device, content)
        return entry[1]


_ENCODER = msgspec.json.Encoder()


@dataclass(eq=False, slots=True)
class PoolDevice:
    """One device of a pool's current generation."""

    driver: str
    pool: str
    device: Device
    spec: ResourceSliceSpec
    content: SelectorView = field(default_factory=SelectorView)
    id: DeviceId = field(init=False)
    shareable: bool = field(init=False)
    consumes: tuple[tuple[CounterKey, int], ...] = field(init=False)
    """Consumed amounts in units of 10^-9."""

    def __post_init__(self) -> None:
        self.id = (self.driver, self.pool, self.device.name)
        self.shareable = bool(self.device.allow_multiple_allocations)
        self.consumes = _consumption(self.device) if self.device.consumes_counters else ()

    @property
    def view(self) -> Any:
        """The object that selectors are evaluated on; None before the first evaluation."""
        return self.content.view

    def attribute(self, name: str) -> DeviceAttribute | None:
        """An attribute by its qualified name; one without a domain belongs to the driver's domain."""
        attribute = self.device.attributes.get(name)
        if attribute is None and name.startswith(f"{self.driver}/"):
            return self.device.attributes.get(name[len(self.driver) + 1 :])
        return attribute


@dataclass(eq=False, slots=True)
class Pool:
    """A pool from the viewpoint of one node. Devices are in the order in which they are tried."""

    key: PoolKey
    offers: Sequence[PoolDevice] = ()
    elsewhere: Sequence[PoolDevice] = ()
    """Devices of the pool that are not for this node; those in use consume the same counters."""
    counters: dict[CounterKey, int] = field(default_factory=dict)
    incomplete: bool = False
    grouped: bool = False
    """Whether it is incomplete because slices of it have compatibility groups."""
    invalid: str = ""

    @property
    def usable(self) -> bool:
        """Whether devices may be allocated from it."""
        return not self.incomplete and not self.invalid


def _consumption(device: Device) -> tuple[tuple[CounterKey, int], ...]:
    total: dict[CounterKey, int] = {}
    for entry in device.consumes_counters:
        for name, counter in entry.counters.items():
            key = (entry.counter_set, name)
            total[key] = total.get(key, 0) + nanos(counter.value)
    return tuple(total.items())


def verdict(
    offer: PoolDevice, selectors: Sequence[Selector], key: tuple[str, ...], view: Any
) -> bool | SelectorFailure:
    """Whether all selectors match, or the first failure; evaluated once per view and list of selectors."""
    verdicts = offer.content.verdicts
    outcome = verdicts.get(key)
    if outcome is None:
        outcome = verdicts[key] = _verdict(offer, selectors, view) if selectors else True
    return outcome


def _verdict(offer: PoolDevice, selectors: Sequence[Selector], view: Any) -> bool | SelectorFailure:
    for place, selector in enumerate(selectors):
        broken = isinstance(selector, BrokenSelector)
        try:
            if offer.content.view is None and not broken:
                offer.content.view = view(offer.driver, offer.device)
            if not selector.matches(offer.content.view):
                return False
        except DriverError as error:
            return SelectorFailure(place, f"CEL {'compile' if broken else 'runtime'} error: {error.what}")
    return True
