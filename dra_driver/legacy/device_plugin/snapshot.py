"""Everything known about a node at one moment, and what is taken of it.

There are five sources for the devices of a pod. What this process has handed out is certain, once kubelet's checkpoint
tells of no other pod that has it. That checkpoint also has what another process handed out, with its answers, and tells
of init containers. The annotations say what was chosen, but anybody who may edit the pod may edit them. kubelet lists
ids (PodResources), which are the ones handed out unless kubelet did not follow the preference. And the pod's requests
say how many devices there must be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dra_driver.kube.api.codec import Resource as ApiResource
from dra_driver.kube.kubelet.devicecheckpoint import AllocatedContainer
from dra_driver.kube.kubelet.podresources import PodDevices
from dra_driver.kube.objects.meta import ApiObject, ObjectMeta
from dra_driver.legacy.annotations import (
    OF,
    ContainerShare,
    PodAnnotations,
    RecordedAllocation,
    copied,
    from_mapping,
    in_short,
    read,
)
from dra_driver.legacy.device_plugin.devices import PluginOffer, ids_in
from dra_driver.legacy.placement import union
from dra_driver.legacy.resource_requests import ENDED, LimitsPodSpec, LimitsPodStatus, PodRequest, Role, pod_request
from dra_driver.legacy.rules import NeuronResource, NodeHardware
from dra_driver.legacy.usage import Holding, held_by, held_if_there, holding
from dra_driver.util.errors import DriverError

CHOSEN_BY: Final = "neuron.aws.com/chosen-by"
"""Pod annotation: who chose the devices, if it was not an extender, and for which pod, as its UID."""
DEVICE_PLUGIN: Final = "device-plugin"


class StoredPod(ApiObject, frozen=True):
    """A pod as the API server sends it."""

    metadata: ObjectMeta
    spec: LimitsPodSpec = LimitsPodSpec()
    status: LimitsPodStatus = LimitsPodStatus()


@dataclass(frozen=True, slots=True)
class BoundPod:
    """A pod of this node that has not ended.

    Attributes:
        namespace: of the pod.
        name: of the pod.
        uid: of the pod.
        created: RFC 3339.
        running: whether kubelet has started it, and thus allocated devices for all its containers.
        requests: of its containers; None if they cannot be parsed.
        trouble: why they cannot be parsed, or "".
        annotations: those in use.
        by_plugin: whether this plugin chose the devices in them.
    """

    namespace: str
    name: str
    uid: str
    created: str
    running: bool
    requests: PodRequest | None
    trouble: str
    annotations: PodAnnotations
    by_plugin: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class PluginPod:
    """What is kept of a pod of this node.

    kubelet keeps thousands of pods that have failed, and their users write what they like into all of them: no
    container stays that asks for nothing, and no annotation that is longer than it must be.

    Attributes:
        metadata: its names, and which version this is.
        phase: of its status.
        bound: the pod; None if it has ended or requests no Neuron resources.
    """

    metadata: ObjectMeta
    phase: str
    bound: BoundPod | None


def _kept(pod: StoredPod, _: str) -> PluginPod:
    meta = pod.metadata
    return PluginPod(meta.identity, pod.status.phase, _bound(pod))


PODS: Final = ApiResource(PluginPod, "Pod", "pods", ("v1",), _kept, None, StoredPod)


def _bound(pod: StoredPod) -> BoundPod | None:
    if pod.status.phase in ENDED:
        return None
    requests: PodRequest | None
    try:
        requests, trouble = pod_request(pod.spec.init_containers, pod.spec.containers), ""
    except DriverError as error:
        requests, trouble = None, str(error)
    if requests == ():
        return None
    meta = pod.metadata
    return BoundPod(
        meta.namespace,
        meta.name,
        meta.uid,
        meta.creation_timestamp or "",
        pod.status.phase == "Running",
        requests,
        trouble,
        in_short(from_mapping(meta.annotations or {}), {request.resource for request in requests or ()}),
        _by_plugin(meta.annotations or {}, meta.uid),
    )


def _by_plugin(annotations: Mapping[str, str], uid: str) -> bool:
    """Whether a device plugin chose for this pod, not for one that it is a copy of. Older versions gave no UID."""
    who, _, of = annotations.get(CHOSEN_BY, "").partition(" ")
    return who == DEVICE_PLUGIN and (of == uid or not (of or OF in annotations))


Listed = Mapping[tuple[str, str], PodDevices]
"""Pods that kubelet lists, by namespace and name."""
Handed = Mapping[str, Mapping[str, ContainerShare]]
"""What this process has handed out, by pod UID and container."""


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """The node at one moment.

    Attributes:
        offer: the node's devices.
        pods: those of the node that have not ended and request Neuron resources (or whose requests cannot be parsed).
        listed: None if kubelet cannot be asked.
        handed: what this process has handed out.
        unknown_pods: pods that kubelet lists and that are not known from the API server.
        placed: UIDs of pods to which this process handed out devices chosen by an extender, even if their annotations
            have changed since.
    """

    offer: PluginOffer
    pods: Sequence[BoundPod]
    listed: Listed | None
    handed: Handed = field(default_factory=dict)
    unknown_pods: Sequence[PodDevices] = ()
    placed: frozenset[str] = frozenset()

    def counted(self, pod: BoundPod, container: str, resource: NeuronResource) -> frozenset[int] | None:
        """Ids that kubelet lists for a container; None if it does not list the pod or the container."""
        found = (self.listed or {}).get(pod.key)
        if found is None or container not in found.containers:
            return None
        return numbers(found.containers[container].get(resource.value, frozenset()))


@dataclass(frozen=True, slots=True)
class Taken:
    """What a pod holds.

    Attributes:
        mask: of the cores.
        trouble: why it may hold more, or "".
        waits: whether it certainly holds nothing yet, so that the mask is only what was chosen for it.
    """

    mask: int = 0
    trouble: str = ""
    waits: bool = False


def numbers(ids: frozenset[str]) -> frozenset[int]:
    """Device ids as numbers; ids that are not ours are ignored."""
    return frozenset(int(text) for text in ids if text.isascii() and text.isdecimal() and len(text) <= 4)


def taken_by_others(world: NodeSnapshot, pod: BoundPod) -> list[tuple[str, Taken]]:
    """What each other pod holds or is about to get, with what the owner of ``pod`` may know of that one."""
    found = [(known_to(pod, other.key), taken_by(world, other)) for other in world.pods if other.uid != pod.uid]
    machine = world.offer.hardware
    for unknown in world.unknown_pods:
        mask = 0
        for resource in NeuronResource:
            mask |= counted_mask(machine, resource, numbers(unknown.devices(resource.value)))
        found.append((known_to(pod, (unknown.namespace, unknown.name)), Taken(mask)))
    return found


def known_to(pod: BoundPod, other: tuple[str, str]) -> str:
    """Another pod, by namespace and name, in texts that the owner of ``pod`` reads."""
    return f"pod {'/'.join(other)}" if other[0] == pod.namespace else "a pod of another namespace"


def taken_by(world: NodeSnapshot, pod: BoundPod) -> Taken:
    """What one pod holds."""
    mask, idle = handed_mask(world, pod) | _unexplained(world, pod), waits(world, pod)
    known = _holding(pod)
    if known is None:
        return Taken(mask, waits=idle)
    said, trouble = held_by(world.offer.hardware, known)
    # For what is not recorded anywhere, kubelet's list counts, if kubelet lists the pod.
    told = idle or pod.key in (world.listed or {}) or all_handed(world, pod)
    return Taken(mask | said, "" if told else trouble, idle)


def _holding(pod: BoundPod) -> Holding | None:
    of_another = copied(pod.annotations, pod.uid, pod.created)
    return holding(str(pod), pod.annotations, pod.requests, of_another=of_another)


def _unexplained(world: NodeSnapshot, pod: BoundPod) -> int:
    """Cores that kubelet lists for containers whose devices this process has not handed out itself."""
    found, handed = (world.listed or {}).get(pod.key), world.handed.get(pod.uid, {})
    return union(
        counted_mask(world.offer.hardware, resource, numbers(ids.get(resource.value, frozenset())))
        for container, ids in (found.containers if found is not None else {}).items()
        if container not in handed
        for resource in NeuronResource
    )


def waits(world: NodeSnapshot, pod: BoundPod) -> bool:
    """Whether a pod certainly holds nothing yet, whatever was chosen for it."""
    if world.listed is None or pod.running or world.handed.get(pod.uid):
        return False
    found = world.listed.get(pod.key)
    return found is None or not any(found.devices(resource.value) for resource in NeuronResource)


def handed_mask(world: NodeSnapshot, pod: BoundPod, but: str = "") -> int:
    """Cores that this process has handed to a pod's containers, except to container ``but``."""
    mask = 0
    for container, share in world.handed.get(pod.uid, {}).items():
        if container != but:
            mask |= counted_mask(world.offer.hardware, share.resource, frozenset(share.ids))
    return mask


def counted_mask(machine: NodeHardware, resource: NeuronResource, ids: frozenset[int]) -> int:
    """The cores of some ids; ids that the node does not have are ignored."""
    return machine.mask(resource, [number for number in ids if number < machine.units(resource)])


def all_handed(world: NodeSnapshot, pod: BoundPod) -> bool:
    """Whether this process has handed out the devices of all containers of a pod."""
    shares = world.handed.get(pod.uid, {})
    return bool(pod.requests) and all(request.container in shares for request in pod.requests or ())


def withheld(world: NodeSnapshot, resource: NeuronResource) -> frozenset[int]:
    """Ids of a resource that are in use through the other resource, so that kubelet must not count them as free.

    kubelet counts the two resources separately although they are the same hardware. Only pods that got their devices
    without an extender matter: an extender keeps its pods apart by itself, and immediately reuses what a pod leaves,
    before kubelet knows that it is free; kubelet would then fail the new pod. Ids that kubelet counts as allocated are
    left alone: it would consider them failed devices of running pods.
    """
    machine, mask = world.offer.hardware, 0
    other = NeuronResource.CORE if resource is NeuronResource.DEVICE else NeuronResource.DEVICE
    kept_apart = {pod.key for pod in world.pods if pod.uid in world.placed or _chosen_by_extender(pod)}
    counted: frozenset[int] = frozenset()
    for key, found in (world.listed or {}).items():
        counted |= numbers(found.devices(resource.value))
        if key not in kept_apart:
            mask |= counted_mask(machine, other, numbers(found.devices(other.value)))
    for pod in world.pods:
        if pod.key in kept_apart:
            continue
        known = _holding(pod)
        allocations = known.allocations if known is not None else ()
        shares = [RecordedAllocation((share,), said.cores_per_device) for said in allocations for share in said.shares]
        shares += [RecordedAllocation((share,)) for share in world.handed.get(pod.uid, {}).values()]
        for alone in shares:
            if alone.shares[0].resource is other:
                mask |= held_if_there(machine, alone)
    return frozenset(machine.ids(resource, mask)) - counted


def learn(
    handed: dict[str, dict[str, ContainerShare]], offer: PluginOffer, allocations: Iterable[AllocatedContainer]
) -> None:
    """Complete what this process knows of what it has handed out by what kubelet's checkpoint says.

    Another process may have handed it out, and while kubelet lists no pods, this one may have taken one for another.

    Args:
        handed: see ``NodeSnapshot``; changed.
        offer: the node's devices.
        allocations: to pods that are known.
    """
    by_container = {(allocation.pod, allocation.container): allocation for allocation in allocations}
    for (uid, container), allocation in by_container.items():
        if container in handed.get(uid, {}):
            continue
        resource, answer = NeuronResource(allocation.resource), allocation.answer
        ids = ids_in(answer, offer, resource) if answer is not None else None
        counted = tuple(sorted(id_ for id_ in numbers(allocation.ids) if id_ < offer.hardware.units(resource)))
        share = ContainerShare(container, resource, counted if ids is None else ids)
        for other, shares in handed.items():
            for name, its in list(shares.items()):
                if (other, name) not in by_container and (its.resource, its.ids) == (share.resource, share.ids):
                    del shares[name]
        handed.setdefault(uid, {})[container] = share


def _chosen_by_extender(pod: BoundPod) -> bool:
    return not pod.by_plugin and isinstance(allocation_of(pod), RecordedAllocation)


def share_of(pod: BoundPod, allocation: RecordedAllocation, container: str) -> ContainerShare | None:
    """The ids that the annotations assign to one container, or None.

    Annotations that do not name containers (the vendor's, and HAMi's) assign ids to the pod as a whole: containers that
    run together get them one after the other, init containers from the beginning or after the sidecars beside them.
    """
    named = allocation.of(container)
    if named is not None:
        return named
    request = next((request for request in pod.requests or () if request.container == container), None)
    whole = next((share for share in allocation.shares if not share.container), None)
    if request is None or whole is None or whole.resource is not request.resource:
        return None
    start = 0
    for other in pod.requests or ():
        if other.container == container:
            break
        start += other.count if other.role is not Role.INIT and other.resource is request.resource else 0
    return ContainerShare(container, request.resource, whole.ids[start : start + request.count])


def allocation_of(pod: BoundPod) -> RecordedAllocation | DriverError | None:
    """The allocation in the annotations, why they cannot be parsed, or None if there is none for this pod."""
    if copied(pod.annotations, pod.uid, pod.created):
        return None
    try:
        return read(pod.annotations, {request.resource for request in pod.requests or ()})
    except DriverError as error:
        return error
