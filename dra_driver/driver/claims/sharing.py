"""Who sees which devices of a claim together: its containers, and other claims that these use.

Device numbers and cores both depend on it: what one container sees has to fit together. The claim's requests tell
something of it, the specs of its pods the rest; these are asked for only where it matters.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver.driver.claims.model import ClaimUse, Consumers, Needs, Plan, PreparedClaims, base_request
from dra_driver.driver.claims.situation import Situation
from dra_driver.kube.objects.core import Pod
from dra_driver.kube.objects.resource import (
    EXTENDED_RESOURCE_CLAIM,
    AllocatedClaim,
    DeviceRequestAllocationResult,
    PartialResourceClaim,
)

_CONTAINER_REQUEST: Final = re.compile(r"container-([0-9]{1,5})-request-[0-9]{1,5}")

Uses = Collection[tuple[str, str]]
"""What a container uses: names of ResourceClaims and of requests of them, "" for all of a claim."""

ContainerUses = tuple[tuple[str, Uses], ...]
"""What each container of some pods uses, by ``pod/container``."""

View = tuple[str, tuple[int, ...]]
"""A container, as ``pod/container``, and the devices of a claim that it uses, by index."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """Who sees which devices together; these are indexes into the claim's allocation results of this driver."""

    use: ClaimUse
    units: tuple[tuple[int, ...], ...]
    """Devices that a container sees together as far as the claim tells: all, for most claims."""
    for_extended_resources: bool
    """Whether the scheduler made the claim for the extended resources in a pod's limits."""
    together: tuple[Plan, ...]
    """Prepared claims that a pod of the claim is known to use too (in doubt: that it may use)."""
    companions: tuple[Plan, ...]
    """Prepared claims that its pods may use too; none if neither these nor the claim have cores."""
    consumers: Consumers
    """What is known newly of who uses prepared claims."""
    containers: ContainerUses | None
    """What the containers of its pods use; None: it does not matter, or cannot be read."""
    views: tuple[View, ...] | None
    """Devices that containers use together; (): each has its unit. None: it matters, and is not known."""


def sharing(
    situation: Situation,
    results: Sequence[DeviceRequestAllocationResult],
    prepared: PreparedClaims,
    *,
    cores: bool,
    alike: bool,
) -> Sharing | Needs:
    """Who sees the devices of a claim together, or what has to be known first.

    Args:
        situation: the claim and its pods.
        results: its allocation results of this driver.
        prepared: the claim itself may be among them, and does not count.
        cores: whether it has cores, and not only whole chips.
        alike: whether containers are told the same variables with each of its requests.
    """
    claim = situation.claim
    use = ClaimUse(claim.metadata.namespace, claim.metadata.uid, users(claim))
    units = container_units(claim, results)
    companions = prepared.companions(use.namespace, use.pods, exclude=use.uid, cores=cores)
    several = cores and len({base_request(result.request) for result in results}) > 1
    containers: ContainerUses | None = None
    views: tuple[View, ...] | None = ()
    if len(units) > 1 or not alike or companions or several:
        needs = pods_needed(situation, optional=alike and not cores and not companions)
        if needs is not None:
            return needs
        containers = uses_by_container(situation)
        views = views_of(situation, [result.request for result in results], containers)
    return Sharing(
        use,
        units,
        for_extended_resources(claim),
        tuple(prepared.co_used(use, situation.consumers)),
        tuple(companions),
        situation.consumers,
        containers,
        views,
    )


def pods_needed(situation: Situation, *, optional: bool) -> Needs | None:
    """The claim's pods that are not known yet; None: all are, or they cannot be."""
    claim, pods = situation.claim, situation.pods
    if pods is None or users(claim) is None:
        return None
    missing = tuple(pod for pod in claim.status.reserved_for if pod.uid not in pods)
    return Needs(pods=missing, optional=optional) if missing else None


def uses_by_container(situation: Situation) -> ContainerUses | None:
    """What each container of the claim's pods uses; None if the pods cannot be read."""
    pods, uids = situation.pods, users(situation.claim)
    if pods is None or uids is None:
        return None
    return tuple(
        (f"{pods[uid].metadata.name}/{container}", uses)
        for uid in sorted(uids)
        for container, uses in claims_of_containers(pods[uid])
    )


def views_of(
    situation: Situation, requests: Sequence[str], containers: ContainerUses | None
) -> tuple[View, ...] | None:
    """Which devices of the claim the containers of its pods use; None if that is not known of each pod.

    ``requests``: those that its devices were allocated for, in the order of the devices; ``containers``: see
    ``uses_by_container``.
    """
    name, pods = situation.claim.metadata.name, situation.pods or {}
    uids = users(situation.claim) or ()
    if containers is None or not all(pods[uid].spec.containers for uid in uids):
        return None
    return tuple((container, devices_in_use(name, requests, uses)) for container, uses in containers)


def devices_in_use(claim: str, requests: Sequence[str], uses: Uses) -> tuple[int, ...]:
    """Devices of a claim (by name) that a container uses: indexes into the requests that they were allocated for."""
    return tuple(
        at for at, request in enumerate(requests) if (claim, "") in uses or (claim, base_request(request)) in uses
    )


def claims_of_containers(pod: Pod) -> Iterator[tuple[str, set[tuple[str, str]]]]:
    """For each container, the ResourceClaims that it uses and the requests of them, "" for all."""
    names = {item.name: item.resource_claim_name for item in pod.status.resource_claim_statuses}
    name_of = {item.name: item.resource_claim_name or names.get(item.name) or "" for item in pod.spec.resource_claims}
    extended = pod.status.extended_resource_claim_status
    mappings: dict[str, set[tuple[str, str]]] = {}
    if extended is not None:
        for item in extended.request_mappings:
            mappings.setdefault(item.container_name, set()).add((extended.resource_claim_name, item.request_name))
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        uses = {(name_of.get(item.name, ""), item.request) for item in container.resources.claims}
        yield container.name, uses | mappings.get(container.name, set())


def container_units(
    claim: PartialResourceClaim, results: Sequence[DeviceRequestAllocationResult]
) -> tuple[tuple[int, ...], ...]:
    """Which of the results belong to one container as far as the claim tells: indexes into ``results``, ascending.

    All, for most claims. A request of a claim for extended resources is one container's, which its name tells:
    ``container-<i>-request-<j>``, init containers first (kube-scheduler, ``extendeddynamicresources.go``).
    """
    if not for_extended_resources(claim):
        return (tuple(range(len(results))),)
    units: dict[str, list[int]] = {}
    for index, result in enumerate(results):
        match = _CONTAINER_REQUEST.fullmatch(result.request)
        units.setdefault(match[1] if match else "", []).append(index)
    return tuple(map(tuple, units.values()))


def for_extended_resources(claim: PartialResourceClaim) -> bool:
    """Whether the scheduler made the claim for the extended resources in a pod's limits."""
    return claim.metadata.annotations.get(EXTENDED_RESOURCE_CLAIM) == "true"


def users(claim: PartialResourceClaim | AllocatedClaim) -> frozenset[str] | None:
    """UIDs of the pods that the claim is reserved for; None when it is reserved for something else than pods too."""
    consumers = claim.status.reserved_for
    if any(consumer.resource != "pods" or consumer.api_group for consumer in consumers):
        return None
    return frozenset(consumer.uid for consumer in consumers)


def consumers_of(claim: PartialResourceClaim | AllocatedClaim) -> tuple[tuple[str, str], ...]:
    """Names and UIDs of the pods that the claim is reserved for, in order."""
    consumers = claim.status.reserved_for
    return tuple(sorted((item.name, item.uid) for item in consumers if item.resource == "pods" and not item.api_group))


def own_pod(claim: PartialResourceClaim) -> str:
    """UID of the pod that a claim from a template was made for, when no other uses it; else ""."""
    owners = {owner.uid for owner in claim.metadata.owner_references if owner.kind == "Pod" and owner.controller}
    pods = users(claim)
    return next(iter(owners)) if len(owners) == 1 and pods is not None and pods <= owners else ""
