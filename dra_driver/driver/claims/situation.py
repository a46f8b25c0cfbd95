"""What a claim is planned from: the claim itself, what was found out about its pods, and what its node is like."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from dra_driver.driver.claims.model import Attributes, Consumers, Pods, Unhealthy
from dra_driver.driver.workload import Tenancy
from dra_driver.kube.objects.resource import (
    EXTENDED_RESOURCE_CLAIM,
    POD_CLAIM,
    AllocatedClaim,
    DeviceAllocationConfiguration,
    DeviceRequestAllocationResult,
    PartialResourceClaim,
    ResourceClaimConsumerReference,
    json_value,
)
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.partitions import chips_of

if TYPE_CHECKING:
    from dra_driver.neuron.exclusion import HeldBack  # asks kubelet and the API server: not for who only plans

_CONTAINER_REQUEST: Final = re.compile(r"container-([0-9]{1,5})-request-[0-9]{1,5}")
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

Units = tuple[tuple[int, ...], ...]
"""Devices (indexes into a claim's allocation results of this driver, ascending) that a container sees together."""


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """What planning needs to know of a claim."""

    namespace: str
    name: str
    uid: str
    is_allocated: bool
    results: tuple[DeviceRequestAllocationResult, ...]
    """Its allocation results of this driver."""
    chips: frozenset[int] | None
    """Host indexes of the chips that its devices are made of; None: any of the host's, as of a whole node."""
    config: Sequence[DeviceAllocationConfiguration]
    """The configuration in its allocation; () if none of it is for this driver."""
    parameters: str
    """Digest of the opaque parameters for this driver, from claim and class; "" without."""
    reserved_for: tuple[ResourceClaimConsumerReference, ...]
    consumers: tuple[tuple[str, str], ...]
    """Names and UIDs of the pods among these, in order."""
    pods: frozenset[str] | None
    """Their UIDs; None: it is reserved for something else than pods, too."""
    own_pod: str
    """UID of the pod that it was made for from a template, when no other uses it; else ""."""
    own_group: str
    """The same of a PodGroup."""
    pod_claim: str
    """What its pod calls it if it was made from a template, or ""."""
    for_extended_resources: bool
    """Whether the scheduler made it for the extended resources in a pod's limits."""
    units: Units
    """Devices that a container sees together as far as the claim tells: all, for most claims."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of the node's chips now beside what the host shows, as far as it matters to a preparation."""

    unhealthy: Unhealthy = field(default_factory=dict)
    held_back: HeldBack | None = None
    """Chips that no claim gets that has none yet."""
    core_sizes: Mapping[int, int] = field(default_factory=dict)
    """Physical cores in a logical one by chip, where they are offered at another size than the node's."""
    tenancy: Tenancy | None = None
    """Whose workload the node is allocated to; None: it may be anybody's."""
    attributes: Attributes | None = None
    """What containers are to be told of devices, by name; None: nothing."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A claim and all that its plan depends on, but what is prepared and what an administrator has set."""

    claim: ClaimFacts
    """The claim as the API server has it."""
    inventory: NodeInventory
    """The node as its host shows it."""
    facts: NodeFacts = field(default_factory=NodeFacts)
    consumers: Consumers = field(default_factory=dict)
    """Who uses other prepared claims now, as far as a plan needed it (``Needs.claims``)."""
    pods: Pods | None = None
    """The claim's pods, as far as a plan needed them (``Needs.pods``); None: they cannot be read. One without
    containers is gone, or may not be read."""


def claim_facts(claim: PartialResourceClaim) -> ClaimFacts:
    """What a claim says of itself."""
    meta, allocation, pods = claim.metadata, claim.status.allocation, users(claim)
    results = tuple(result for result in claim.status.results if result.driver == DRIVER_NAME)
    config = allocation.devices.config if allocation is not None else ()
    own_config = [entry for entry in config if entry.opaque is not None and entry.opaque.driver == DRIVER_NAME]
    owners = {owner.uid for owner in meta.owner_references if owner.kind == "Pod" and owner.controller}
    groups = {owner.uid for owner in meta.owner_references if owner.kind == "PodGroup" and owner.controller}
    reserved = {consumer.uid for consumer in claim.status.reserved_for}
    pod_claim = meta.annotations.get(POD_CLAIM, "")
    for_extended_resources = meta.annotations.get(EXTENDED_RESOURCE_CLAIM) == "true"
    return ClaimFacts(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        is_allocated=allocation is not None,
        results=results,
        chips=_chips(results),
        config=config if own_config else (),
        parameters=_digest(own_config),
        reserved_for=claim.status.reserved_for,
        consumers=consumers_of(claim),
        pods=pods,
        own_pod=next(iter(owners)) if len(owners) == 1 and pods is not None and pods <= owners else "",
        own_group=next(iter(groups)) if groups and groups == reserved else "",
        pod_claim=pod_claim if _LABEL.fullmatch(pod_claim) else "",
        for_extended_resources=for_extended_resources,
        units=_container_units(results) if for_extended_resources else (tuple(range(len(results))),),
    )


def users(claim: PartialResourceClaim | AllocatedClaim) -> frozenset[str] | None:
    """UIDs of the pods that the claim is reserved for; None when it is reserved for something else than pods too."""
    consumers = claim.status.reserved_for
    if not all(consumer.is_pod for consumer in consumers):
        return None
    return frozenset(consumer.uid for consumer in consumers)


def consumers_of(claim: PartialResourceClaim | AllocatedClaim) -> tuple[tuple[str, str], ...]:
    """Names and UIDs of the pods that the claim is reserved for, in order."""
    consumers = claim.status.reserved_for
    return tuple(sorted((item.name, item.uid) for item in consumers if item.is_pod))


def _chips(results: Sequence[DeviceRequestAllocationResult]) -> frozenset[int] | None:
    of_devices = [chips_of(result.device, ()) for result in results]
    return None if None in of_devices else frozenset(chip for chips in of_devices for chip in chips or ())


def _digest(config: Sequence[DeviceAllocationConfiguration]) -> str:
    # As a list, but one value at a time: decoded, somebody's parameters may take much memory.
    encoded = b",".join(msgspec.json.encode(_with_value(entry), order="deterministic") for entry in config)
    return hashlib.sha256(b"[%b]" % encoded).hexdigest() if config else ""


def _with_value(entry: DeviceAllocationConfiguration) -> DeviceAllocationConfiguration:
    opaque = entry.opaque
    return entry if opaque is None else replace(entry, opaque=replace(opaque, parameters=json_value(opaque.parameters)))


def _container_units(results: Sequence[DeviceRequestAllocationResult]) -> Units:
    """Devices of a claim for extended resources: a request is one container's, which its name tells.

    ``container-<i>-request-<j>``, init containers first (kube-scheduler, ``extendeddynamicresources.go``).
    """
    units: dict[str, list[int]] = {}
    for index, result in enumerate(results):
        match = _CONTAINER_REQUEST.fullmatch(result.request)
        units.setdefault(match[1] if match else "", []).append(index)
    return tuple(map(tuple, units.values()))
