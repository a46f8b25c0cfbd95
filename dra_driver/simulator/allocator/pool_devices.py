"""Devices as the search sees them: parsed once, asked often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from dra_driver.kube.types import DeviceAttribute
from dra_driver.manifests.objects import Device, ResourceSliceSpec
from dra_driver.quantity import nanos
from dra_driver.util.errors import DriverError

PoolKey = tuple[str, str]
"""Driver and pool name."""
DeviceId = tuple[str, str, str]
"""Driver, pool and device name: what "in use" is about, in the whole cluster."""
CounterKey = tuple[str, str]
"""Counter set and counter."""


class Selector(Protocol):
    """A compiled selector."""

    def matches(self, device: Any) -> bool:
        """Whether the device is selected; a DriverError when the expression fails on it."""


class BrokenSelector:
    """Stands for an expression that cannot be compiled: Kubernetes, too, says so at the first device only."""

    def __init__(self, text: str) -> None:
        self.text = text

    def matches(self, device: Any) -> bool:  # noqa: ARG002 - of the protocol
        """Always a DriverError."""
        raise DriverError(self.text)


@dataclass(frozen=True, slots=True)
class Selectors:
    """How expressions are compiled, and what they are asked about."""

    compile: Callable[[str], Selector]
    """A DriverError when the expression is not legal."""
    view: Callable[[str, Device], Any]
    """Driver and device to what ``Selector.matches`` takes; a DriverError when selectors cannot read the device."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The selector at ``place`` failed on a device."""

    place: int
    text: str


@dataclass(eq=False, slots=True)
class SelectorView:
    """What selectors can see of a device, and what they said of it. Equal devices of many nodes share it."""

    verdicts: dict[tuple[str, ...], bool | Failure] = field(default_factory=dict)
    """By expressions: selected or not, or how they failed."""
    view: Any = None


class Contents:
    """Each content once."""

    def __init__(self) -> None:
        self._known: dict[bytes, SelectorView] = {}
        self._by_id: dict[int, tuple[Device, SelectorView]] = {}

    def of(self, driver: str, device: Device) -> SelectorView:
        """The content that all devices share that are alike for selectors."""
        found = self._by_id.get(id(device))
        if found is None:
            # The name is not visible to selectors, and nodes and counters neither.
            seen = (driver, device.attributes, device.capacity, device.allow_multiple_allocations)
            content = self._known.setdefault(_ENCODER.encode(seen), SelectorView())
            # The device is kept, so its id stays its own.
            found = self._by_id[id(device)] = (device, content)
        return found[1]


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
    """Amounts in units of 10^-9."""

    def __post_init__(self) -> None:
        self.id = (self.driver, self.pool, self.device.name)
        self.shareable = bool(self.device.allow_multiple_allocations)
        self.consumes = _consumption(self.device) if self.device.consumes_counters else ()

    @property
    def view(self) -> Any:
        """What selectors are asked about; None until one was."""
        return self.content.view

    def attribute(self, name: str) -> DeviceAttribute | None:
        """An attribute by its qualified name; one without a domain belongs to the driver's."""
        found = self.device.attributes.get(name)
        if found is None and name.startswith(f"{self.driver}/"):
            return self.device.attributes.get(name[len(self.driver) + 1 :])
        return found


@dataclass(eq=False, slots=True)
class Pool:
    """A pool as one node sees it. Devices in the order in which they are tried."""

    key: PoolKey
    offers: Sequence[PoolDevice] = ()
    elsewhere: Sequence[PoolDevice] = ()
    """Devices of the pool that are not for this node; those in use count against the counters."""
    counters: dict[CounterKey, int] = field(default_factory=dict)
    incomplete: bool = False
    invalid: str = ""

    @property
    def usable(self) -> bool:
        """Whether devices may be taken from it."""
        return not self.incomplete and not self.invalid


def _consumption(device: Device) -> tuple[tuple[CounterKey, int], ...]:
    total: dict[CounterKey, int] = {}
    for entry in device.consumes_counters:
        for name, counter in entry.counters.items():
            key = (entry.counter_set, name)
            total[key] = total.get(key, 0) + nanos(counter.value)
    return tuple(total.items())


def verdict(offer: PoolDevice, selectors: Sequence[Selector], key: tuple[str, ...], view: Any) -> bool | Failure:
    """Whether all selectors match, or the first failure; asked once for each content and list of selectors."""
    verdicts = offer.content.verdicts
    known = verdicts.get(key)
    if known is None:
        known = verdicts[key] = _verdict(offer, selectors, view) if selectors else True
    return known


def _verdict(offer: PoolDevice, selectors: Sequence[Selector], view: Any) -> bool | Failure:
    for place, selector in enumerate(selectors):
        broken = isinstance(selector, BrokenSelector)
        try:
            if offer.content.view is None and not broken:
                offer.content.view = view(offer.driver, offer.device)
            if not selector.matches(offer.content.view):
                return False
        except DriverError as error:
            return Failure(place, f"CEL {'compile' if broken else 'runtime'} error: {error.what}")
    return True
