"""The pods and claims of outcomes as the API server would have them: what kube-scheduler and controllers write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from dra_driver.kube.objects.resource import EXTENDED_RESOURCE_CLAIM, DeviceRequest, ResourceClaim
from dra_driver.simulator.manifests import PodWithClaims, with_uid
from dra_driver.simulator.manifests.attempts import requested
from dra_driver.simulator.manifests.model import of_container
from dra_driver.simulator.manifests.podgroups import consumer_of
from dra_driver.simulator.placement import Outcome

Object = dict[str, Any]


def objects(outcomes: Sequence[Outcome]) -> list[Object]:
    """Each pod, followed by those of its claims that no earlier pod has; then the claims that no pod uses."""
    claims = {claim.metadata.key: claim for outcome in outcomes for claim in outcome.claims if _exists(claim)}
    reserved = {name: [*claim.status.reserved_for] for name, claim in claims.items()}
    for outcome in outcomes:
        if outcome.pod is not None and outcome.placed:
            for claim in outcome.claims:
                consumer = consumer_of(outcome.pod, claim)
                if consumer not in reserved[claim.metadata.key]:
                    reserved[claim.metadata.key].append(consumer)
    listing: list[Object] = []
    for outcome in outcomes:
        if outcome.pod is not None:
            listing.append(_pod(outcome.pod, outcome))
        own = ((claim.metadata.key, claims.pop(claim.metadata.key, None)) for claim in outcome.claims)
        listing += (_claim(claim, msgspec.to_builtins(reserved[name])) for name, claim in own if claim is not None)
    return listing


def _exists(claim: ResourceClaim) -> bool:
    """Whether the API server has it: kube-scheduler makes a claim for extended resources when it has devices for it."""
    return claim.status.allocation is not None or EXTENDED_RESOURCE_CLAIM not in claim.metadata.annotations


def _claim(claim: ResourceClaim, reserved: list[Object]) -> Object:
    fields = msgspec.to_builtins(with_uid(claim))
    status = {**fields.pop("status", {}), **({"reservedFor": reserved} if reserved else {})}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        **fields,
        **({"status": status} if status else {}),
    }


def _pod(pod: PodWithClaims, outcome: Outcome) -> Object:
    written = without_nulls(dict(pod.written))
    meta = {**written.get("metadata", {}), "name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
    spec = {**written.get("spec", {}), **({"nodeName": outcome.node} if outcome.node is not None else {})}
    status = {"phase": "Pending", **written.get("status", {})}
    scheduled = {"type": "PodScheduled", "status": "True"}
    if not outcome.placed:
        scheduled |= {"status": "False", "reason": "Unschedulable", "message": outcome.reason}
    others = (item for item in status.get("conditions", ()) if item.get("type") != "PodScheduled")
    status["conditions"] = [*others, scheduled]
    if statuses := list(_claim_statuses(pod)):
        status["resourceClaimStatuses"] = statuses
    referred = {reference.claim for reference in pod.claims}
    for claim in outcome.claims:
        if claim.metadata.name not in referred and _exists(claim):
            status["extendedResourceClaimStatus"] = {
                "resourceClaimName": claim.metadata.name,
                "requestMappings": list(_mappings(pod, claim)),
            }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def without_nulls(value: Any) -> Any:
    """A copy without fields that are null, which means the same as no field."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def _claim_statuses(pod: PodWithClaims) -> Iterator[Object]:
    """``resourceClaimStatuses``: the claims that the pod has of templates."""
    claims = {reference.name: reference.claim for reference in pod.claims}
    for entry in pod.spec.resource_claims:
        if entry.resource_claim_template_name is not None:
            name_field = {"resourceClaimName": claims[entry.name]} if entry.name in claims else {}
            yield {"name": entry.name, **name_field}


def _mappings(pod: PodWithClaims, claim: ResourceClaim) -> Iterator[Object]:
    """``requestMappings``; a request's name has the places of container and resource.

    An init container that ends uses requests of the containers after it, in their order, before one of its own, which
    all such containers share (kube-scheduler, ``extendeddynamicresources.go``).
    """
    init = pod.spec.init_containers
    containers = (*init, *pod.spec.containers)
    ending = {place for place, container in enumerate(init) if container.restart_policy != "Always"}
    by_resource: dict[str, dict[int, DeviceRequest]] = {}
    for request in claim.spec.devices.requests:
        place, which = map(int, request.name.split("-")[1::2])
        by_resource.setdefault(sorted(of_container(containers[place]))[which], {})[place] = request
    for resource, requests in sorted(by_resource.items()):
        lasting = {place: requests[place] for place in sorted(requests) if place not in ending}
        beside = [request for place, request in requests.items() if place in ending]
        uses = list(lasting.items())
        for place in sorted(ending):
            left = requested(containers[place], resource)
            for later in (request for at, request in lasting.items() if at > place):
                if left > 0:
                    uses.append((place, later))
                    left -= later.exactly.count if later.exactly is not None else 0
            uses += [(place, request) for request in beside if left > 0]
        for place, request in uses:
            yield {"containerName": containers[place].name, "resourceName": resource, "requestName": request.name}
