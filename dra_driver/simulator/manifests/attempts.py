"""The allocations to attempt: for each pod its claims, and the claims that no pod uses."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

import msgspec

from dra_driver.kube.documents import ManifestError, Origin
from dra_driver.kube.objects.core import Container
from dra_driver.kube.objects.meta import ObjectMeta, OwnerReference
from dra_driver.kube.objects.resource import (
    EXTENDED_RESOURCE_CLAIM,
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from dra_driver.kube.quantity import UNIT
from dra_driver.neuron.names import is_own_class
from dra_driver.simulator.manifests.model import IMPLICIT, ClaimReference, Key, Manifests, PodWithClaims, of_container
from dra_driver.simulator.manifests.names import MAX_NAMES, generated, uid
from dra_driver.simulator.manifests.podgroups import mismatches
from dra_driver.simulator.manifests.unasked import NEURON_RESOURCES
from dra_driver.util.text import first_of

_NOT_YET = "9999"
"""Later than any timestamp: used for classes that have no creation time because they are only about to be applied."""


def offering(classes: Iterable[DeviceClass]) -> dict[str, str]:
    """The class behind each extended resource; of several the newest, then the first by name."""
    by_resource: dict[str, str] = {}
    by_name = sorted(classes, key=lambda item: item.metadata.name)
    for item in sorted(by_name, key=lambda item: item.metadata.creation_timestamp or _NOT_YET, reverse=True):
        by_resource[IMPLICIT + item.metadata.name] = item.metadata.name
        if item.spec.extended_resource_name is not None:
            by_resource.setdefault(item.spec.extended_resource_name, item.metadata.name)
    return by_resource


def special_claim(pod: PodWithClaims, wanted: Collection[str], classes: Mapping[str, str]) -> ResourceClaim:
    """The claim that kube-scheduler creates for the pod on a node.

    Args:
        pod: a pod that requests extended resources.
        wanted: those that a class offers and that the node itself does not.
        classes: the result of ``offering``.
    """
    device_requests = (
        DeviceRequest(name, ExactDeviceRequest(device_class_name=classes[resource], count=count))
        for resource in wanted
        for name, count in _requests(pod, resource)
    )
    requests = tuple(sorted(device_requests, key=lambda item: item.name))
    name = generated(f"{pod.name}-extended-resources-", pod.namespace)
    annotations = {EXTENDED_RESOURCE_CLAIM: "true"}
    return _claim_of(pod, ObjectMeta(name=name, annotations=annotations), ResourceClaimSpec(DeviceClaim(requests)))


def _claim_of(
    pod: PodWithClaims, meta: ObjectMeta, spec: ResourceClaimSpec, group: OwnerReference | None = None
) -> ResourceClaim:
    """A claim as Kubernetes creates it for the pod, or for its group."""
    owner = group or OwnerReference("v1", "Pod", pod.name, pod.uid, controller=True)
    metadata = msgspec.structs.replace(meta, namespace=pod.namespace, owner_references=(owner,))
    return with_uid(ResourceClaim(metadata, spec=spec))


def _requests(pod: PodWithClaims, resource: str) -> Iterator[tuple[str, int]]:
    """One per long-running container, and one for what init containers need beyond the share of later containers."""
    init = pod.spec.init_containers
    containers = (*init, *pod.spec.containers)
    lasting = [
        0 if place < len(init) and item.restart_policy != "Always" else requested(item, resource)
        for place, item in enumerate(containers)
    ]
    beside = [
        (max(requested(item, resource) - sum(lasting[place:]), 0), place)
        for place, item in enumerate(init)
        if item.restart_policy != "Always"
    ]
    most, place = max(beside, key=lambda pair: pair[0], default=(0, 0))
    if most:
        yield _name(place, containers[place], resource), most
    for place, count in enumerate(lasting):
        if count:
            yield _name(place, containers[place], resource), count


def requested(container: Container, resource: str) -> int:
    """The requested amount; zero if it is not an integer."""
    amount = of_container(container).get(resource, 0)
    return 0 if amount % UNIT else amount // UNIT


def _name(place: int, container: Container, resource: str) -> str:
    return f"container-{place}-request-{sorted(of_container(container)).index(resource)}"


_NO_ORIGIN = Origin("(no file)", "")


@dataclass(frozen=True, slots=True)
class Attempt:
    """Claims that are allocated together on one node; some may be allocated already, possibly by an earlier attempt."""

    pod: PodWithClaims | None
    """None for a claim that no pod uses."""
    claims: tuple[ResourceClaim, ...]
    """In the order of the pod's spec."""
    extended: Mapping[str, int] = field(default_factory=dict)
    """Requested amounts of the extended resources that a DeviceClass offers, or that are Neuron's."""


def left_out(manifests: Manifests) -> tuple[str, ...]:
    """Lines for ``not_considered``: extended resources neither offered by a class nor Neuron's; claims of no group."""
    offered = offering(manifests.classes)
    users: dict[str, list[str]] = {}
    for pod in manifests.pods:
        others = set(pod.extended_resources) - set(_extended(pod, offered))
        for name in () if pod.spec.node_name else sorted(others):
            users.setdefault(f"resources: {name}", []).append(f"{pod.namespace}/{pod.name}")
    for text, pod in mismatches(manifests):
        users.setdefault(text, []).append(f"{pod.namespace}/{pod.name}")
    return tuple(f"{text}: {first_of(pods, MAX_NAMES)}" for text, pods in users.items())


def _extended(pod: PodWithClaims, offered: Collection[str]) -> dict[str, int]:
    """Empty for a pod that is on a node already, or whose claim for extended resources exists already."""
    if pod.spec.node_name or any(not reference.name for reference in pod.claims):
        return {}
    return {
        name: count
        for name, count in pod.extended_resources.items()
        if name in offered or name.startswith(NEURON_RESOURCES)
    }


def attempts(manifests: Manifests) -> tuple[Attempt, ...]:
    """The pods in their order, then the claims that no pod uses. Pods that need no devices are omitted.

    Raises ManifestError if a pod refers to a missing claim or template, or a claim to a missing class.
    """
    return tuple(_Resolver(manifests).attempts())


def of_known_classes(manifests: Manifests) -> Manifests:
    """Without pods and claims that ask for devices of other drivers, whose DeviceClass is not there.

    They are named in what is not considered. What asks for known classes too is kept, so that ``attempts`` refuses it,
    and so is a class that looks misspelt. Of what a cluster holds, whatever needs something that is not there is left
    out: that never stops a command. An operator's pods may have claims of templates that the operator makes.
    """
    resolver = _Resolver(manifests)
    omissions: dict[str, list[str]] = {}
    pods, running, standby = [], list(manifests.running), set(manifests.standby)
    for pod in manifests.pods:
        if missing := resolver.missing_of_pod(pod):
            omissions.setdefault(missing, []).append(f"{pod.namespace}/{pod.name}")
            standby |= {(pod.namespace, reference.claim) for reference in pod.claims}
            running += [pod] if pod.spec.node_name else []
        else:
            pods.append(pod)
    used = {(pod.namespace, reference.claim) for pod in pods for reference in pod.claims}
    standby -= used - manifests.standby
    for claim in manifests.claims:
        name = claim.metadata.key
        if name not in used | standby and (missing := resolver.missing_of_claim(claim)):
            omissions.setdefault(missing, []).append("/".join(name))
            standby.add(name)
    notes = [f"{missing}: {first_of(names, MAX_NAMES)}" for missing, names in omissions.items()]
    return replace(
        manifests,
        pods=tuple(pods),
        running=tuple(running),
        standby=frozenset(standby),
        not_considered=(*manifests.not_considered, *notes),
    )


_SLIP = 0.8
"""Similarity (``difflib``) from which a DeviceClass that is not there is a known one, misspelt."""


class MissingObjectError(ManifestError):
    """What a pod of a cluster needs is not there: the pod waits for it."""


class _Resolver:
    def __init__(self, manifests: Manifests) -> None:
        self._manifests = manifests
        self._origins: Mapping[Key, Origin] = manifests.origins
        self._claims = {item.metadata.key: item for item in manifests.claims}
        self._templates = {item.metadata.key: item for item in manifests.templates}
        self._classes = {item.metadata.name for item in manifests.classes}

    def attempts(self) -> Iterator[Attempt]:
        used: set[tuple[str, str]] = set()
        offered = offering(self._manifests.classes)
        for pod in self._manifests.pods:
            # The claim for extended resources is deleted together with its pod, which may be terminating.
            there = (item for item in pod.claims if item.name or (pod.namespace, item.claim) in self._claims)
            claims = tuple(self._claim(pod, reference) for reference in there)
            used |= {item.metadata.key for item in claims}
            extended = _extended(pod, offered)
            if claims or extended:
                yield Attempt(pod, claims, extended)
        for name, claim in self._claims.items():
            if name not in used | self._manifests.standby:
                self._check_claim(claim)
                yield Attempt(None, (claim,))

    def _claim(self, pod: PodWithClaims, reference: ClaimReference) -> ResourceClaim:
        claim = self._claims.get((pod.namespace, reference.claim))
        if claim is not None:
            self._check_claim(claim)
            return claim
        if not reference.template:
            raise self._missing(pod, reference, "ResourceClaim", reference.claim)
        template = self._templates.get((pod.namespace, reference.template))
        if template is None:
            raise self._missing(pod, reference, "ResourceClaimTemplate", reference.template)
        if not template.metadata.uid:
            origin = self._origin("ResourceClaimTemplate", pod.namespace, reference.template)
            self._check_classes(template.spec.spec.devices, origin, ("spec", "spec"))
        given = template.spec.metadata
        annotations = {**given.annotations, "resource.kubernetes.io/pod-claim-name": reference.name}
        meta = ObjectMeta(name=reference.claim, labels=given.labels, annotations=annotations)
        return _claim_of(pod, meta, template.spec.spec, reference.group)

    def missing_of_pod(self, pod: PodWithClaims) -> str:
        """What is not there for the devices that the pod asks for, if it is to be left out; else ""."""
        in_cluster = _in_cluster(pod)
        devices: list[DeviceClaim] = []
        for reference in pod.claims:
            claim = self._claims.get((pod.namespace, reference.claim))
            template = self._templates.get((pod.namespace, reference.template))
            if claim is not None and claim.status.allocation is None:
                devices.append(claim.spec.devices)
            elif claim is None and template is not None:
                devices.append(template.spec.spec.devices)
            elif claim is None and reference.name and (in_cluster or pod.by_operator):
                kind = "ResourceClaimTemplate" if reference.template else "ResourceClaim"
                return f"{kind} {reference.template or reference.claim}, which does not exist"
        asks_here = any(name.startswith(NEURON_RESOURCES) for name in pod.extended_resources)
        return self._missing_classes(devices, in_cluster=in_cluster, asks_here=asks_here)

    def missing_of_claim(self, claim: ResourceClaim) -> str:
        """The same of a claim."""
        devices = [claim.spec.devices] if claim.status.allocation is None else []
        return self._missing_classes(devices, in_cluster=bool(claim.metadata.uid), asks_here=False)

    def _missing_classes(self, devices: Iterable[DeviceClaim], *, in_cluster: bool, asks_here: bool) -> str:
        names = {name for item in devices for request in item.requests for _, name in _class_names(request)}
        missing = sorted(names - self._classes)
        is_of_others = missing and not asks_here and names.isdisjoint(self._classes)
        is_slip = any(get_close_matches(name, self._classes, n=1, cutoff=_SLIP) for name in missing)
        if any(map(is_own_class, missing)):
            return ""
        if missing and (in_cluster or (is_of_others and not is_slip)):
            return f"DeviceClass {' and '.join(missing)}, which does not exist"
        return ""

    def _missing(self, pod: PodWithClaims, reference: ClaimReference, kind: str, name: str) -> ManifestError:
        elsewhere = self._claims if kind == "ResourceClaim" else self._templates
        others = sorted(namespace for namespace, other in elsewhere if other == name)
        beside = get_close_matches(name, [other for space, other in elsewhere if space == pod.namespace], n=1)
        where = f"; there is one in namespace {others[0]}" if others else f" ({beside[0]} is)" if beside else ""
        field = "resourceClaimName" if kind == "ResourceClaim" else "resourceClaimTemplateName"
        what = f"pod {pod.namespace}/{pod.name} needs the {kind} {pod.namespace}/{name}, which does not exist{where}"
        if _in_cluster(pod):
            return MissingObjectError(what, remedy="create it; or correct the name, and recreate the pod")
        remedy = "also give the file that has it, or correct the name"
        return (pod.origin or _NO_ORIGIN).error((*reference.path, field), what, remedy=remedy)

    def _origin(self, kind: str, namespace: str, name: str) -> Origin:
        origin = self._origins.get((kind, namespace, name))
        return origin if origin is not None else Origin("the cluster", "", subject=f"{kind} {namespace}/{name}")

    def _check_claim(self, claim: ResourceClaim) -> None:
        """An allocated claim needs its classes no more; of a stored one, the scheduler says that they are missing."""
        if claim.status.allocation is None and not claim.metadata.uid:
            origin = self._origin("ResourceClaim", *claim.metadata.key)
            self._check_classes(claim.spec.devices, origin, ("spec",))

    def _check_classes(self, devices: DeviceClaim, origin: Origin, path: tuple[str | int, ...]) -> None:
        for place, request in enumerate(devices.requests):
            for below, name in _class_names(request):
                if name not in self._classes:
                    names = ", ".join(sorted(self._classes)[:10]) or "none"
                    raise origin.error(
                        (*path, "devices", "requests", place, *below, "deviceClassName"),
                        f"there is no DeviceClass {name} (there are: {names})",
                        remedy="also give the file that has it, or correct the name",
                    )


def _in_cluster(pod: PodWithClaims) -> bool:
    """Whether a cluster holds the pod."""
    return bool((pod.written.get("metadata") or {}).get("uid"))


def _class_names(request: DeviceRequest) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The DeviceClasses of a request, each after its path in the request."""
    for number, sub in enumerate(request.first_available):
        yield ("firstAvailable", number), sub.device_class_name
    if request.exactly is not None:
        yield ("exactly",), request.exactly.device_class_name


def of_templates(manifests: Manifests) -> Manifests:
    """With a claim of each template where there is no pod; that it was assumed is among what is not considered."""
    if manifests.pods or manifests.running or not manifests.templates:
        return manifests
    claims, origins = list(manifests.claims), dict(manifests.origins)
    for template in manifests.templates:
        meta = template.metadata
        name = generated(f"{meta.name}-", meta.namespace)
        origin = origins["ResourceClaimTemplate", *meta.key]
        origins["ResourceClaim", meta.namespace, name] = origin.at((*origin.path, "spec"), origin.subject)
        of_claim = msgspec.structs.replace(template.spec.metadata, name=name, namespace=meta.namespace)
        claims.append(ResourceClaim(of_claim, spec=template.spec.spec))
    names = [template.metadata.full_name for template in manifests.templates]
    note = f"how many pods use a ResourceClaimTemplate (one claim is taken of each): {first_of(names, MAX_NAMES)}"
    return replace(manifests, claims=tuple(claims), origins=origins, not_considered=(*manifests.not_considered, note))


def with_uid(claim: ResourceClaim) -> ResourceClaim:
    """The claim with a UID, for code that needs one."""
    meta = claim.metadata
    if meta.uid:
        return claim
    placeholder = uid(f"ResourceClaim {meta.namespace}/{meta.name}")
    return msgspec.structs.replace(claim, metadata=msgspec.structs.replace(meta, uid=placeholder))
