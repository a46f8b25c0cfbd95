"""The report of a simulation, which ``-o json`` prints, and of which the text is made.

The names and the order of the fields are those of the JSON, in which a field is always there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from dra_driver.kube.objects.core import Pod
from dra_driver.kube.objects.resource import AllocationResult, Device, DeviceRequestAllocationResult
from dra_driver.neuron.health.taints import lines as taint_lines
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.node_hardware import MEANINGS, number_of, resource_of
from dra_driver.simulator.allocator import Choice, NodeView
from dra_driver.simulator.allocator.capacity import left
from dra_driver.simulator.binding import waits
from dra_driver.simulator.explain import Explanation, plain
from dra_driver.simulator.manifests import Manifests
from dra_driver.simulator.own_variables import own_variables
from dra_driver.simulator.placement import Outcome, Simulation, free_devices
from dra_driver.simulator.preparation import (
    Container,
    NodeDrivers,
    PlanDocument,
    Prepared,
    StoredObjects,
    containers,
    prepared_on_nodes,
    unused,
)
from dra_driver.util.envelope import API_VERSION, ApiVersion, Document, Reference

Key = tuple[str, str]


class Summary(Document, frozen=True):
    """How much was placed."""

    result: Literal["placed", "refused", "partly placed", "not placed"]
    placed: int
    total: int
    refused_claims: int


class Item(Document, frozen=True, kw_only=True):
    """A pod, or a claim that no pod uses."""

    pod: Reference | None
    node: str | None
    node_choice: Choice | None
    reason: str | None
    claims: tuple[Reference, ...]
    controller: str | None = None
    containers: tuple[Container, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The pod or claim that it is about."""
        if self.pod is None:
            return f"ResourceClaim {self.claims[0].full_name}"
        return f"Pod {self.pod.full_name} ({self.controller})" if self.controller else f"Pod {self.pod.full_name}"


class Claim(Document, frozen=True, kw_only=True):
    """A claim, and what the driver of its node makes of it."""

    namespace: str
    name: str
    node: str | None
    allocation: AllocationResult | None
    node_choice: Choice | None
    reason: str | None
    plan: PlanDocument | None = None
    refusal: str | None = None

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, self.name

    @property
    def results(self) -> tuple[DeviceRequestAllocationResult, ...]:
        """The devices that it has, or would have."""
        return self.allocation.devices.results if self.allocation is not None else ()

    @property
    def refused(self) -> str:
        """That the node's driver would refuse it, as a sentence."""
        return f"the node's driver would refuse claim {self.name}: {self.refusal}"


class Offer(Document, frozen=True):
    """One kind of the devices of a pool."""

    description: str
    total: int
    free_devices: tuple[str, ...]


class Shared(Document, frozen=True):
    """A device of which several claims have a share."""

    device: str
    left: dict[str, str]
    """Quantities by capacity."""


class Pool(Document, frozen=True):
    """What is left of a pool of devices."""

    driver: str
    pool: str
    total: int
    free_devices: tuple[str, ...]
    offers: tuple[Offer, ...]
    shared: tuple[Shared, ...]


class NodeLeft(Document, frozen=True):
    """What is left on a node, which devices of this driver claims hold, and what taints say."""

    node: str
    instance_type: str | None
    pools: tuple[Pool, ...]
    allocated_devices: tuple[str, ...]
    taints: tuple[str, ...]


class Report(Document, frozen=True, kw_only=True):
    """The whole."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["Simulation"] = "Simulation"
    items: tuple[Item, ...]
    summary: Summary
    claims: tuple[Claim, ...]
    nodes: tuple[NodeLeft, ...]
    explanation: dict[str, Any] | None
    """An item of ``explain``: of what was to be placed first, if it was not."""
    not_considered: tuple[str, ...]

    @property
    def rows(self) -> dict[Key, Claim]:
        """The claims by namespace and name."""
        return {row.key: row for row in self.claims}


def report(
    simulation: Simulation, manifests: Manifests, drivers: NodeDrivers, explained: Explanation | None = None
) -> Report:
    """Pods, and claims that no pod uses, as ``items``; ``summary``, ``claims``, ``nodes`` and so on beside them.

    Args:
        simulation: that is reported.
        manifests: what was simulated.
        drivers: of its nodes.
        explained: of what was to be placed first, if it was not.
    """
    stored = StoredObjects.of(simulation.outcomes)
    prepared = prepared_on_nodes(simulation.outcomes, stored, drivers)
    placed = sum(outcome.placed for outcome in simulation.outcomes)
    refused = sum(bool(item.problem) for item in prepared.values())
    return Report(
        items=tuple(
            _item(outcome, stored.pods, prepared, drivers)
            for outcome in sorted(simulation.outcomes, key=lambda outcome: outcome.pod is None)
        ),
        summary=Summary(_result(placed, len(simulation.outcomes), refused), placed, len(simulation.outcomes), refused),
        claims=tuple(
            claim
            if (item := prepared.get(claim.key)) is None
            else replace(claim, plan=item.document, refusal=item.problem or None)
            for claim in claims(simulation)
        ),
        nodes=tuple(_node(simulation, node, drivers) for node in simulation.nodes),
        explanation=None if explained is None else plain(explained),
        not_considered=manifests.not_considered,
    )


def _result(placed: int, total: int, refused: int) -> Literal["placed", "refused", "partly placed", "not placed"]:
    if placed < total:
        return "partly placed" if placed else "not placed"
    return "refused" if refused else "placed"


def claims(simulation: Simulation) -> list[Claim]:
    """One entry each, in the order in which they were tried.

    A claim shared by several pods appears where it was allocated, whatever the outcome for the other pods.
    """
    rows: dict[Key, Claim] = {}
    for outcome in simulation.outcomes:
        for claim in outcome.claims:
            allocation = claim.status.allocation
            before = rows.get(claim.metadata.key)
            if before is not None and before.node is not None:
                continue
            rows[claim.metadata.key] = Claim(
                namespace=claim.metadata.namespace,
                name=claim.metadata.name,
                node=outcome.node if allocation is not None else None,
                allocation=allocation,
                node_choice=outcome.choice if allocation is not None else None,
                reason=outcome.reason or None,
            )
    return list(rows.values())


def _item(outcome: Outcome, pods: Mapping[Key, Pod], prepared: Mapping[Key, Prepared], drivers: NodeDrivers) -> Item:
    pod = outcome.pod
    item = Item(
        pod=None,
        node=outcome.node,
        node_choice=outcome.choice,
        reason=outcome.reason or None,
        claims=tuple(Reference(*claim.metadata.key) for claim in outcome.claims),
    )
    if pod is None:
        return item
    own = [prepared[claim.metadata.key] for claim in outcome.claims if claim.metadata.key in prepared]
    rows = containers(pods[pod.namespace, pod.name], own) if outcome.placed else ()
    kind = drivers.hardware(outcome.node).kind if outcome.node is not None else None
    return replace(
        item,
        pod=Reference(pod.namespace, pod.name),
        controller=pod.controller or None,
        containers=rows,
        warnings=(
            *unused(pods[pod.namespace, pod.name], outcome.claims),
            *own_variables(pod.written.get("spec") or {}, rows, kind),
            *waits(outcome.claims),
        ),
    )


def _node(simulation: Simulation, node: NodeView, drivers: NodeDrivers) -> NodeLeft:
    world = simulation.world
    pools = world.pools.pools(node)
    free = free_devices(simulation, node)
    offers = [offer for pool in pools for offer in pool.offers if offer.driver == DRIVER_NAME]
    own = [offer.device for offer in offers]
    kind = drivers.hardware(node.name).kind
    return NodeLeft(
        node=node.name,
        instance_type=kind.name if kind is not None else None,
        pools=tuple(
            Pool(
                *pool.key,
                total=len(pool.offers),
                free_devices=tuple(free[pool.key]),
                offers=tuple(_offers(own, free[pool.key])) if pool.key[0] == DRIVER_NAME else (),
                shared=tuple(
                    Shared(offer.device.name, left(offer.device, world.usage.consumed(offer.id)))
                    for offer in pool.offers
                    if world.usage.shared(offer.id)
                ),
            )
            for pool in pools
        ),
        allocated_devices=tuple(offer.device.name for offer in offers if world.usage.exclusive(offer.id)),
        taints=tuple(taint_lines(own)),
    )


def _offers(devices: Sequence[Device], free: Sequence[str]) -> Iterator[Offer]:
    """Where a node offers several kinds of devices: what each is called, how many there are, and which are free."""
    names: dict[tuple[str, str], list[str]] = {}
    for device in devices:
        kind = resource_of(device)
        one, several = MEANINGS[kind] if kind is not None else ("other device", "other devices")
        of_size = f" of {number_of(device, 'size')}" if kind == "neuron_group" else ""
        names.setdefault((f"{one}{of_size}", f"{several}{of_size}"), []).append(device.name)
    available = set(free)
    for (one, several), members in names.items() if len(names) > 1 else ():
        yield Offer(
            one if len(members) == 1 else several, len(members), tuple(name for name in members if name in available)
        )
