"""What the node's driver would give the containers of a placed pod, computed with the driver's own code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from dra_driver.driver.claims.container_edits import cdi_spec, plan_document
from dra_driver.driver.claims.model import CheckpointEntry, PreparedClaims
from dra_driver.driver.claims.planner import ConsumersUnknown, Plan, PlanSettings, plan, users
from dra_driver.emulation.memory import emulated_inventory
from dra_driver.host.inventory import Membership, NodeInventory, ServerSet
from dra_driver.kube import types as published
from dra_driver.manifests import Manifests, with_uid
from dra_driver.manifests.names import uid
from dra_driver.manifests.objects import Device, ResourceClaim, ResourceSlice
from dra_driver.names import DRIVER_NAME
from dra_driver.simulator.hardware import Hardware
from dra_driver.simulator.placement import Outcome
from dra_driver.topology.instance_types import lookup
from dra_driver.topology.ultraserver import parse_modes
from dra_driver.util.errors import DriverError


@dataclass(frozen=True, slots=True)
class Prepared:
    """The result of the node's driver for one claim."""

    claim: str
    plan: Plan | None
    document: Mapping[str, Any] | None
    """In the format of ``dra-driver plan``."""
    problem: str
    """Why the driver would refuse; "" if it would not."""


class NodeDrivers:
    """The drivers of all nodes. Prepared claims stay prepared."""

    def __init__(self, manifests: Manifests) -> None:
        self._manifests = manifests
        self._inventories: dict[str, NodeInventory | None] = dict(manifests.inventories)
        self._held: dict[str, PreparedClaims] = {}
        self._users: dict[str, set[str]] = {}
        self._slices: dict[str, list[ResourceSlice]] = {}
        self._hardware: dict[str, Hardware] = {}
        for item in manifests.slices:
            if item.spec.driver == DRIVER_NAME and item.spec.node_name:
                self._slices.setdefault(item.spec.node_name, []).append(item)

    def inventory(self, node: str) -> NodeInventory | None:
        """The node's inventory. If only its slices are known: that of a healthy host of the type that they name."""
        if node not in self._inventories:
            self._inventories[node] = _assumed(self._slices.get(node, ()))
        return self._inventories[node]

    def hardware(self, node: str) -> Hardware:
        """What the devices of the node are made of."""
        if node not in self._hardware:
            devices = (device for item in self._slices.get(node, ()) for device in item.spec.devices)
            inventory = self.inventory(node)
            self._hardware[node] = Hardware.of(devices, inventory.instance_type if inventory is not None else None)
        return self._hardware[node]

    def prepare(self, outcome: Outcome) -> list[Prepared]:
        """The results for a placed pod's claims, in their order; claims without devices of this driver are omitted."""
        if outcome.node is None:
            return []
        inventory = self.inventory(outcome.node)
        if inventory is None:
            return []
        return [
            self._prepare(with_uid(claim), outcome, inventory) for claim in outcome.claims if _is_of_this_driver(claim)
        ]

    def _prepare(self, claim: ResourceClaim, outcome: Outcome, inventory: NodeInventory) -> Prepared:
        node, name = outcome.node or "", claim.metadata.name
        held = self._held.setdefault(node, PreparedClaims())
        try:
            stored = _as_stored(claim, outcome)
            sizes = self._core_sizes(node, inventory)
            made = self._planned(stored, inventory, held, PlanSettings(node), sizes)
        except DriverError as error:
            return Prepared(name, None, None, str(error))
        held.add(CheckpointEntry(made))
        return Prepared(name, made, plan_document(made, cdi_spec(made)), "")

    def _core_sizes(self, node: str, inventory: NodeInventory) -> Mapping[int, int]:
        """As the node's driver tells what prepares: for the chips whose cores do not have the node's default size."""
        offered = self.hardware(node).core_sizes
        return {chip: size for chip, size in offered.items() if size != inventory.core_size}

    def _planned(
        self,
        claim: published.ResourceClaim,
        inventory: NodeInventory,
        held: PreparedClaims,
        settings: PlanSettings,
        core_sizes: Mapping[int, int],
    ) -> Plan:
        uid_ = claim.metadata.uid
        self._users.setdefault(uid_, set()).update(users(claim) or ())
        before = held.entries.get(uid_)
        if before is not None:
            # Another pod uses the claim too; what is prepared does not change.
            return before.plan
        try:
            return plan(claim, inventory, held, settings, core_sizes=core_sizes)
        except ConsumersUnknown as unknown:
            consumers = {other.uid: frozenset(self._users.get(other.uid, ())) for other in unknown.claims}
            return plan(claim, inventory, held, settings, consumers, core_sizes=core_sizes)


def devices(prepared: Sequence[Prepared]) -> tuple[str, ...]:
    """Names of all devices that the driver would give, each once."""
    return tuple(
        dict.fromkeys(device.device for item in prepared if item.plan is not None for device in item.plan.devices)
    )


def _is_of_this_driver(claim: ResourceClaim) -> bool:
    allocation = claim.status.allocation
    return allocation is not None and any(item.driver == DRIVER_NAME for item in allocation.devices.results)


def _as_stored(claim: ResourceClaim, outcome: Outcome) -> published.ResourceClaim:
    """The claim as the node's driver reads it: allocated, and reserved for the pod."""
    pods: tuple[published.ResourceClaimConsumerReference, ...] = ()
    if outcome.pod is not None:
        name = outcome.pod.name
        pods = (published.ResourceClaimConsumerReference("pods", name, uid(f"Pod {outcome.pod.namespace}/{name}")),)
    status = published.ResourceClaimStatus(
        msgspec.convert(msgspec.to_builtins(claim.status.allocation), published.AllocationResult), pods
    )
    return published.ResourceClaim(claim.metadata, status)


def _assumed(slices: Sequence[ResourceSlice]) -> NodeInventory | None:
    """A healthy host of the type that the devices name; None if they name no known type."""
    names = {
        name: {
            attribute.string
            for item in slices
            for device in item.spec.devices
            if (attribute := device.attributes.get(name)) is not None and attribute.string is not None
        }
        for name in ("instanceType", "neuronDriverVersion")
    }
    kind = lookup(next(iter(names["instanceType"]))) if len(names["instanceType"]) == 1 else None
    if kind is None or kind.devices is None:
        return None
    host = emulated_inventory(kind)
    version = next(iter(names["neuronDriverVersion"]), host.driver_version)
    devices = [device for item in slices for device in item.spec.devices]
    member = None if host.ultraserver is None or not devices else _membership(devices[0], host.ultraserver)
    return replace(host, driver_version=version, ultraserver=member)


def _membership(device: Device, healthy: Membership) -> Membership:
    """The node's position in its UltraServer, according to the device's attributes."""
    sets = []
    for nodes in (2, 4):
        server = device.attributes.get(f"ultraserverServerId{nodes}")
        place = device.attributes.get(f"ultraserverNodeId{nodes}")
        if server is not None and server.string and place is not None and place.int_ is not None:
            sets.append(ServerSet(nodes, server.string, place.int_))
    told = device.attributes.get("ultraserverModes")
    try:
        modes = parse_modes(told.string or "") if told is not None else ()
    except DriverError:
        modes = ()  # such as "electing"
    return Membership(modes, tuple(sets), healthy.elected)
