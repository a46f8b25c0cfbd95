"""Who holds which physical NeuronCore, by what the slices say of each device; and what would still fit.

Made for nodes that offer one hardware in several partitions. It knows no names of devices and no counters: what a
device is made of follows from its attributes, and how many cores a chip has, from AWS's documentation. So it can be
compared with a scheduler that goes by counters, and with a driver that goes by names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

Json = dict[str, Any]

CHIPS_AND_CORES: Mapping[str, tuple[int, int]] = {
    "inf2.48xlarge": (12, 2),
    "trn1.32xlarge": (16, 2),
    "trn2.48xlarge": (16, 8),
    "trn2u.48xlarge": (16, 8),
}
"""Chips of an instance, and physical NeuronCores of a chip (aws-neuron-sdk, ``about-neuron/arch``)."""

DOMAIN = "neuron.aws.com/"

Core = tuple[str, int, int]
"""Pool, which is the node; chip; physical core of the chip."""
DeviceId = tuple[str, str]
"""Pool and device."""


@dataclass(frozen=True)
class Want:
    """A request in words that need no CEL: ``count`` devices of a kind, all with one value of an attribute."""

    kind: str
    """Value of ``resourceType``; "" for chips and nodes, as the first DeviceClass selects."""
    count: int = 1
    size: int | None = None
    """Chips of a group; None: any."""
    same: str = ""
    """Name of an attribute, with its domain unless that is the driver's; "": none."""


@dataclass(frozen=True)
class Device:
    """A device as its slice has it."""

    pool: str
    name: str
    kind: str
    attributes: Mapping[str, Any]
    """Without the driver's domain."""
    cores: frozenset[Core]
    taints: frozenset[str] = frozenset()
    """Keys of the taints that keep it from new claims."""

    def is_wanted(self, want: Want) -> bool:
        kinds = (want.kind,) if want.kind else ("neuron_device", "neuron_node")
        return self.kind in kinds and want.size in (None, self.attributes.get("size"))


@dataclass
class Ledger:
    """All devices of some slices, and the claims that hold some of them."""

    devices: dict[DeviceId, Device] = field(default_factory=dict)
    holders: dict[Core, str] = field(default_factory=dict)
    """UID of the claim by core."""

    @classmethod
    def of(cls, slices: Sequence[Json]) -> Ledger:
        """A ledger of what these slices offer, nothing being held. AssertionError for a device that is unclear."""
        found = cls()
        for item in slices:
            pool = item["spec"]["pool"]["name"]
            for device in item["spec"].get("devices") or ():
                made = _device(pool, device)
                assert (pool, made.name) not in found.devices, f"{made.name} is twice in {pool}"
                found.devices[pool, made.name] = made
        return found

    def cores_of(self, results: Sequence[Json]) -> frozenset[Core]:
        """Physical cores of an allocation."""
        return frozenset().union(*(self.devices[item["pool"], item["device"]].cores for item in results))

    def take(self, uid: str, results: Sequence[Json]) -> None:
        """Enter an allocation of a claim. AssertionError when any of its cores is held already, also by itself."""
        for item in results:
            device = self.devices[item["pool"], item["device"]]
            twice = {core: self.holders[core] for core in sorted(device.cores) if core in self.holders}
            assert not twice, f"{device.name} goes to claim {uid}, but cores are held: {twice}"
            self.holders |= dict.fromkeys(device.cores, uid)

    def release(self, uid: str) -> None:
        """Remove a claim."""
        self.holders = {core: holder for core, holder in self.holders.items() if holder != uid}

    def held(self, uid: str) -> frozenset[Core]:
        """The cores of a claim."""
        return frozenset(core for core, holder in self.holders.items() if holder == uid)

    def total(self) -> frozenset[Core]:
        """All hardware that is offered in any partition."""
        return frozenset().union(*(device.cores for device in self.devices.values()))

    def fits(self, pool: str, alternatives: Sequence[Sequence[Want]], own: Sequence[str] = ()) -> bool:
        """Whether one of the alternatives, all its wants together, can be had in a pool; tries everything.

        What claims with the UIDs ``own`` hold counts as free.
        """
        held = {core for core, holder in self.holders.items() if holder not in own}
        offered = [device for device in self.devices.values() if device.pool == pool and not device.taints]
        free = [device for device in offered if held.isdisjoint(device.cores)]
        # What has few choices, and takes much, first; single cores disturb nobody, so they come last.
        return any(_place(sorted(wants, key=_turn), free) for wants in alternatives)


_TURNS = ("neuron_node", "neuron_group", "", "neuron_device", "neuron_core")


def _turn(want: Want) -> tuple[int, int, bool]:
    return _TURNS.index(want.kind), -(want.size or 0), not want.same


def _place(wants: Sequence[Want], free: Sequence[Device]) -> bool:
    if not wants:
        return True
    for picked in _choices(wants[0], free):
        taken = frozenset().union(*(device.cores for device in picked))
        if _place(wants[1:], [device for device in free if device.cores.isdisjoint(taken)]):
            return True
    return False


def _choices(want: Want, free: Sequence[Device]) -> Iterator[Sequence[Device]]:
    """Disjoint devices as they are wanted."""
    groups: dict[Any, list[Device]] = {}
    for device in free:
        if device.is_wanted(want) and (not want.same or want.same in device.attributes):
            groups.setdefault(device.attributes.get(want.same), []).append(device)
    for group in groups.values():
        for picked in combinations(group, want.count):
            if sum(len(device.cores) for device in picked) == len(frozenset().union(*(one.cores for one in picked))):
                yield picked


def _device(pool: str, device: Json) -> Device:
    values = {name.removeprefix(DOMAIN): _value(entry) for name, entry in device["attributes"].items()}
    kind = values["resourceType"]
    chips, cores = CHIPS_AND_CORES[values["instanceType"]]
    every = range(cores)
    if kind == "neuron_node":
        parts = [(chip, core) for chip in range(chips) for core in every]
    elif kind == "neuron_group":
        first = values["firstDeviceId"]
        parts = [(chip, core) for chip in range(first, first + values["size"]) for core in every]
    elif kind == "neuron_core":
        size, number = values["logicalCoreSize"], values["coreId"]
        parts = [(values["deviceId"], core) for core in every[number * size : (number + 1) * size]]
        assert len(parts) == size, f"{device['name']} is more than its chip has: {values}"
    else:
        assert kind == "neuron_device", f"{device['name']} is of an unknown kind: {values}"
        parts = [(values["deviceId"], core) for core in every]
    assert all(0 <= chip < chips for chip, _ in parts), f"{device['name']} is more than the node has: {values}"
    taints = frozenset(item["key"] for item in device.get("taints") or () if item["effect"] != "None")
    return Device(pool, device["name"], kind, values, frozenset((pool, chip, core) for chip, core in parts), taints)


def _value(entry: Json) -> Any:
    (found,) = entry.values()
    return found
