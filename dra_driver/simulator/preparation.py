"""What a node's driver would give the containers of pods for allocated claims, computed with the driver's own code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import Final

import msgspec

from dra_driver.driver.claims.container_edits import cdi_spec, plan_document
from dra_driver.driver.claims.model import CheckpointEntry, Needs, Plan, PlanSettings, PreparedClaims
from dra_driver.driver.claims.planner import plan
from dra_driver.driver.claims.sharing import claims_of_containers
from dra_driver.driver.claims.situation import NodeFacts, Situation, claim_facts, users
from dra_driver.driver.workload import Seat, Tenancy, published_workload
from dra_driver.kube.cdi import CdiDevice, Spec
from dra_driver.kube.objects.core import Pod
from dra_driver.kube.objects.resource import (
    Device,
    PartialResourceClaim,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.neuron.emulation.memory import emulated_inventory
from dra_driver.neuron.host.inventory import Membership, NodeInventory, ServerSet
from dra_driver.neuron.names import CDI_KIND, DRIVER_NAME
from dra_driver.neuron.topology.node_hardware import Hardware, number_of, text_of
from dra_driver.neuron.topology.ultraserver import parse_modes
from dra_driver.simulator.manifests import Manifests
from dra_driver.simulator.objects import objects
from dra_driver.simulator.placement import Outcome
from dra_driver.util.envelope import Document, Reference
from dra_driver.util.errors import DriverError
from dra_driver.util.text import first_of

NO_SEAT: Final = Seat(None, 0, 1)
"""Of a node that its slices say is a workload's: they do not say its rank."""


class PlannedClaim(Reference, frozen=True):
    """The claim of a plan."""

    uid: str


class DeviceNode(Document, frozen=True):
    """A device node in a container."""

    container_path: str
    host_path: str


class PlannedNode(Document, frozen=True, omit_defaults=True):
    """A device node that containers with the claim get for a device."""

    request: str
    device: str
    host_path: str
    container_path: str
    cores: tuple[int, ...] = ()
    """The physical ones, of a device that is cores of the chip."""
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    """What only the containers that use this request get."""


class PlanDocument(Document, frozen=True):
    """What a node's driver makes of a claim, as ``dra-driver plan`` prints it."""

    claim: PlannedClaim
    device_nodes: tuple[PlannedNode, ...]
    environment: dict[str, str]
    cdi: Spec
    warnings: tuple[str, ...]


class Container(Document, frozen=True):
    """What a container gets."""

    name: str
    device_nodes: tuple[DeviceNode, ...]
    environment: dict[str, str]
    cdi_devices: tuple[str, ...]


@dataclass(frozen=True)
class Prepared:
    """What a node's driver makes of one claim."""

    claim: PartialResourceClaim
    plan: Plan | None
    problem: str
    """Why the driver refuses; "" if it does not."""

    @cached_property
    def spec(self) -> Spec | None:
        """Its CDI spec."""
        return None if self.plan is None else cdi_spec(self.plan)

    @cached_property
    def document(self) -> PlanDocument | None:
        """As ``dra-driver plan`` prints it; None if the driver refuses."""
        if self.plan is None or self.spec is None:
            return None
        return msgspec.convert(plan_document(self.plan, self.spec) | {"warnings": self.plan.warnings}, PlanDocument)


def prepared(
    claims: Iterable[PartialResourceClaim],
    pods: Iterable[Pod],
    inventory: NodeInventory,
    settings: PlanSettings,
    core_sizes: Mapping[int, int] = MappingProxyType({}),
    tenancy: Tenancy | None = None,
) -> list[Prepared]:
    """What the node's driver makes of allocated claims, in their order.

    Args:
        claims: of one node.
        pods: those that are known.
        inventory: the node.
        settings: its name and its administrator's choices.
        core_sizes: physical cores in a logical one by chip, where the node offers them at another size than its own.
        tenancy: whose workload the node is allocated to; None: nobody asks.
    """
    facts = NodeFacts(core_sizes=core_sizes, tenancy=tenancy)
    wanted = list(claims)
    pods_by_uid = {pod.metadata.uid: pod for pod in pods}
    consumers = {claim.metadata.uid: users(claim) for claim in wanted}
    prepared_claims = PreparedClaims()
    problems: dict[str, str] = {}
    for claim in wanted:
        reserved = [consumer.uid for consumer in claim.status.reserved_for]
        its_pods = pods_by_uid if reserved and pods_by_uid.keys() >= {*reserved} else None
        try:
            situation = Situation(claim_facts(claim), inventory, facts, consumers, its_pods)
            outcome = plan(situation, prepared_claims, settings)
            if isinstance(outcome, Needs):
                raise outcome.unmet(claim.metadata.namespace)
        except DriverError as error:
            problems[claim.metadata.uid] = str(error)
            continue
        prepared_claims.add(CheckpointEntry(outcome))
    plans = {uid: entry.plan for uid, entry in prepared_claims.entries.items()}
    return [Prepared(claim, plans.get(claim.metadata.uid), problems.get(claim.metadata.uid, "")) for claim in wanted]


def containers(pod: Pod, preparations: Sequence[Prepared]) -> tuple[Container, ...]:
    """What each container of the pod gets of the prepared claims.

    Later ones replace what has the same name, as container runtimes do it. Containers that get nothing are left out.
    """
    uses_of = list(claims_of_containers(pod))
    names = {(pod.metadata.namespace, claim) for _, uses in uses_of for claim, _ in uses}
    own = [
        (item.plan, item.spec)
        for item in preparations
        if item.plan is not None and (item.plan.namespace, item.plan.name) in names and item.spec is not None
    ]
    rows = []
    for name, uses in uses_of:
        given: dict[str, CdiDevice] = {}
        for mine, spec in own:
            used = {one.cdi_name for one in mine.devices if {(mine.name, ""), (mine.name, one.base_request)} & uses}
            given |= {device.name: device for device in spec.devices if device.name in used}
        if given:
            edits = [device.container_edits for device in given.values()]
            nodes = {node.path: node.host_path or node.path for edit in edits for node in edit.device_nodes}
            rows.append(
                Container(
                    name,
                    tuple(DeviceNode(path, host) for path, host in nodes.items()),
                    dict(text.split("=", 1) for edit in edits for text in edit.env),
                    tuple(f"{CDI_KIND}={device}" for device in given),
                )
            )
    return tuple(rows)


def unused(pod: Pod, claims: Iterable[PartialResourceClaim]) -> Iterator[str]:
    """The claims of a pod of which no container gets any devices, a sentence each."""
    uses = [use for _, uses in claims_of_containers(pod) for use in uses]
    extended = pod.status.extended_resource_claim_status  # for whichever containers ask for these
    for claim in (item for item in claims if extended is None or item.metadata.name != extended.resource_claim_name):
        name, requests = claim.metadata.name, [request for own, request in uses if own == claim.metadata.name]
        if pod.spec.containers and not requests:
            yield (
                f"no container gets the devices of claim {name}: the one that needs them has to name it in its "
                "resources.claims"
            )
        there = [request.name for request in claim.spec.devices.requests] if isinstance(claim, ResourceClaim) else []
        wrong = sorted({*requests} - {"", *there}) if there else []
        if wrong:
            yield (
                f"a container asks for request {first_of(wrong, 3)} of claim {name}, which has {first_of(there, 3)} "
                "and no other: it gets no devices for it"
            )


class NodeDrivers:
    """The drivers of all nodes."""

    def __init__(self, manifests: Manifests) -> None:
        self._inventories: dict[str, NodeInventory | None] = dict(manifests.inventories)
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

    def prepared(self, node: str, claims: Iterable[PartialResourceClaim], pods: Iterable[Pod]) -> list[Prepared]:
        """What the node's driver makes of claims that are allocated there.

        Where its host is not known, only whether it would refuse their parameters.
        """
        inventory = self.inventory(node)
        if inventory is None:
            return [Prepared(claim, None, _illegal_parameters(claim)) for claim in claims]
        # As the node's driver tells what prepares: for the chips whose cores do not have the node's default size.
        offered = self.hardware(node).core_sizes
        sizes = {chip: size for chip, size in offered.items() if size != inventory.core_size}
        return prepared(claims, pods, inventory, PlanSettings(node), sizes, self._tenancy(node))

    def _tenancy(self, node: str) -> Tenancy | None:
        """Whose node it is, if its slices say that it is somebody's. Others may have claims there no more."""
        workload = published_workload(device for item in self._slices.get(node, ()) for device in item.spec.devices)
        return None if workload is None else Tenancy(replace(workload, bound=True, seat=NO_SEAT), certain=True)


@dataclass(frozen=True)
class StoredObjects:
    """The pods and claims of outcomes as the API server would give them to drivers, by namespace and name."""

    pods: Mapping[tuple[str, str], Pod]
    claims: Mapping[tuple[str, str], PartialResourceClaim]

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> StoredObjects:
        """Those of these outcomes.

        Through JSON: a CDI device's name has a digest of a claim's parameters, from which msgspec omits defaults that
        are the very objects of the declaration.
        """
        pods, claims = {}, {}
        for item in objects(outcomes):
            name, sent = (item["metadata"]["namespace"], item["metadata"]["name"]), msgspec.json.encode(item)
            if item["kind"] == "Pod":
                pods[name] = msgspec.json.decode(sent, type=Pod)
            else:
                claims[name] = msgspec.json.decode(sent, type=PartialResourceClaim)
        return cls(pods, claims)


def prepared_on_nodes(
    outcomes: Iterable[Outcome], stored: StoredObjects, drivers: NodeDrivers
) -> dict[tuple[str, str], Prepared]:
    """What the nodes' drivers make of the claims with devices of this driver, by namespace and name."""
    on: dict[str, dict[tuple[str, str], PartialResourceClaim]] = {}
    pods_on: dict[str, list[Pod]] = {}
    for outcome in outcomes:
        if outcome.node is None:
            continue
        if outcome.pod is not None:
            pods_on.setdefault(outcome.node, []).append(stored.pods[outcome.pod.namespace, outcome.pod.name])
        for claim in outcome.claims:
            name = claim.metadata.key
            if name in stored.claims and node_of(stored.claims[name]) is not None:
                on.setdefault(outcome.node, {})[name] = stored.claims[name]
    return {
        item.claim.metadata.key: item
        for node, node_claims in on.items()
        for item in drivers.prepared(node, node_claims.values(), pods_on.get(node, ()))
    }


def _illegal_parameters(claim: PartialResourceClaim) -> str:
    """Why a driver would refuse the claim's parameters on any hardware; "" if it would not."""
    from dra_driver.neuron.opaque_config import effective  # pydantic

    try:
        effective(claim.status.allocation.devices.config if claim.status.allocation else (), (), DRIVER_NAME)
    except DriverError as error:
        return str(error)
    return ""


def node_of(claim: PartialResourceClaim) -> str | None:
    """The pool of the claim's first device of this driver, which has the name of the node; None without one."""
    return next((result.pool for result in claim.status.results if result.driver == DRIVER_NAME), None)


_healthy = cache(emulated_inventory)


def _assumed(slices: Sequence[ResourceSlice]) -> NodeInventory | None:
    """A healthy host of the type that the devices name; None if they name no known type."""
    devices = [device for item in slices for device in item.spec.devices]
    kind = Hardware.of(devices).kind
    if kind is None or kind.devices is None:
        return None
    host = _healthy(kind)
    versions = (text_of(device, "neuronDriverVersion") for device in devices)
    version = next(filter(None, versions), host.driver_version)
    member = None if host.ultraserver is None else _membership(devices[0], host.ultraserver)
    return replace(host, driver_version=version, ultraserver=member)


def _membership(device: Device, healthy: Membership) -> Membership:
    """The node's position in its UltraServer, according to the device's attributes."""
    sets = []
    for nodes in (2, 4):
        server = text_of(device, f"ultraserverServerId{nodes}")
        place = number_of(device, f"ultraserverNodeId{nodes}")
        if server and place is not None:
            sets.append(ServerSet(nodes, server, place))
    try:
        modes = parse_modes(text_of(device, "ultraserverModes"))
    except DriverError:
        modes = ()  # such as "electing"
    return Membership(modes, tuple(sets), healthy.elected)
