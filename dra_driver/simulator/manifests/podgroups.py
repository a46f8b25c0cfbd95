"""Claims of groups of pods (KEP-5729): one for all pods of a PodGroup whose entry is equal to the group's.

Source: ``BindTo`` of ``k8s.io/dynamic-resource-allocation/resourceclaim``, and ``handlePodGroupClaim`` of Kubernetes'
``pkg/controller/resourceclaim`` 1.37.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from dra_driver.kube.objects.meta import OwnerReference
from dra_driver.kube.objects.resource import ResourceClaim, ResourceClaimConsumerReference
from dra_driver.kube.objects.scheduling import GROUP, POD_GROUPS, VERSIONS, PodGroup
from dra_driver.simulator.manifests.model import ClaimReference, Manifests, PodWithClaims
from dra_driver.simulator.manifests.names import generated, uid

_KIND: Final = "PodGroup"


def in_groups(manifests: Manifests) -> Manifests:
    """With the claims of PodGroups in place of those that their pods would have of their own."""
    groups = {group.metadata.key: group for group in manifests.pod_groups}
    if not groups:
        return manifests
    pods, running = (tuple(_in_group(pod, groups) for pod in some) for some in (manifests.pods, manifests.running))
    return replace(manifests, pods=pods, running=running)


def _in_group(pod: PodWithClaims, groups: Mapping[tuple[str, str], PodGroup]) -> PodWithClaims:
    group = groups.get((pod.namespace, pod.spec.pod_group))
    if group is None:
        return pod
    return replace(pod, claims=tuple(_reference(pod, reference, group) for reference in pod.claims))


def _reference(pod: PodWithClaims, reference: ClaimReference, group: PodGroup) -> ClaimReference:
    entry = next((entry for entry in pod.spec.resource_claims if entry.name == reference.name), None)
    if entry is None or entry not in group.spec.resource_claims:
        return reference
    meta = group.metadata
    owner = OwnerReference(
        f"{GROUP}/{VERSIONS[0]}", _KIND, meta.name, meta.uid or uid(f"{_KIND} {meta.full_name}"), controller=True
    )
    if not reference.template:
        return replace(reference, group=owner)
    statuses = {item.name: item.resource_claim_name for item in group.status.resource_claim_statuses}
    name = statuses.get(entry.name) or generated(f"{meta.name}-{entry.name}-", meta.namespace)
    return replace(reference, claim=name, group=owner)


def consumer_of(pod: PodWithClaims, claim: ResourceClaim) -> ResourceClaimConsumerReference:
    """For what kube-scheduler reserves the claim when it places the pod: the pod, or its group."""
    referred = [item.group for item in pod.claims if item.group is not None and item.claim == claim.metadata.name]
    owners = [owner for owner in claim.metadata.owner_references if owner.controller]
    owner = next(iter((*owners, *referred)), None)
    if owner is None or owner.kind != _KIND:
        return ResourceClaimConsumerReference("pods", pod.name, pod.uid)
    return ResourceClaimConsumerReference(POD_GROUPS, owner.name, owner.uid, GROUP)


def mismatches(manifests: Manifests) -> Iterator[tuple[str, PodWithClaims]]:
    """Pods with claims of their own that their group may have been meant to have, after what is to be said of them."""
    groups = {group.metadata.key: group for group in manifests.pod_groups}
    for pod in manifests.pods:
        name, group = pod.spec.pod_group, groups.get((pod.namespace, pod.spec.pod_group))
        own = {item.name for item in pod.claims if item.template and item.group is None}
        if not name or not own or pod.spec.node_name:
            continue
        if group is None:
            yield f"the claims of PodGroup {name}, which is not given (its pods are taken to have their own)", pod
        for entry in group.spec.resource_claims if group is not None else ():
            if entry.name in own:
                text = f"resourceClaims: {entry.name} differs from that of PodGroup {name}, so the pod has its own"
                yield text, pod
