"""What the placer keeps of the objects that it watches: tenants make as many, and as large ones, as they like."""

from __future__ import annotations

from typing import Final

import msgspec

from dra_driver.kube.api.codec import PODS, RESOURCE_SLICES, Resource
from dra_driver.kube.objects.core import NodeSelectorTerm, PartialNode, Pod
from dra_driver.kube.objects.meta import ApiObject, ObjectMeta, seconds
from dra_driver.kube.objects.resource import AllocatedClaim, ObjectIdentity, ResourcePool
from dra_driver.neuron.names import DRIVER_NAME, NODES_OF, WORKLOAD_UID, is_own_pool, is_uid
from dra_driver.neuron.topology.partitions import NODE_DEVICE
from dra_driver.ultraserver.placer.values import (
    GATE,
    GROUP_LABEL,
    LWS_GROUP_LABEL,
    LWS_SIZE,
    LWS_TOPOLOGY,
    LWS_WORKER_INDEX,
    MAX_DEMANDS,
    NODES_ANNOTATION,
    SINCE_ANNOTATION,
    STUCK_ANNOTATION,
    Demands,
    GroupPod,
)

LONGEST: Final = 256
"""Characters of a text that are kept; no value that means anything is as long."""
LONGEST_MESSAGE: Final = 1000
"""Characters of the scheduler's message, as in an Event."""


class Member(ApiObject, frozen=True):
    """A pod of a group, or one with the gate, as far as a decision may rest on it."""

    metadata: ObjectMeta
    """Who it is, and its version."""
    pod: GroupPod


def member_of(pod: Pod, _: str = "") -> Member:
    """What is kept of the pod. Times in its annotations that the placer cannot have written count as absent."""
    meta, spec = pod.metadata, pod.spec
    of_lws = LWS_GROUP_LABEL in meta.labels
    gated = any(gate.name == GATE for gate in spec.scheduling_gates)

    def note(key: str) -> str:
        return meta.annotations.get(key, "")[:LONGEST]

    return Member(
        meta.identity,
        GroupPod(
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            version=meta.resource_version,
            created=seconds(meta.creation_timestamp) or 0.0,
            group=meta.labels.get(LWS_GROUP_LABEL if of_lws else GROUP_LABEL, "")[:LONGEST],
            size=note(LWS_SIZE if of_lws else NODES_ANNOTATION),
            topology=note(LWS_TOPOLOGY) if of_lws else "",
            of_lws=of_lws,
            leader=of_lws and meta.labels.get(LWS_WORKER_INDEX) == "0",
            gated=gated,
            node=spec.node_name,
            owner=next((owner.kind[:LONGEST] for owner in meta.owner_references if owner.controller), ""),
            phase=pod.status.phase[:LONGEST],
            ending=meta.deletion_timestamp is not None,
            servers=tuple(
                f"{label}={spec.node_selector[label][:LONGEST]}" for label in NODES_OF if label in spec.node_selector
            ),
            since=seconds(note(SINCE_ANNOTATION)),
            stuck=seconds(note(STUCK_ANNOTATION)),
            unschedulable=_unschedulable(pod)[:LONGEST_MESSAGE],
            written_demands=_written_demands(pod) if gated else b"{}",
        ),
    )


def _written_demands(pod: Pod) -> bytes | None:
    spec = pod.spec
    gates = tuple(gate.name for gate in spec.scheduling_gates if gate.name != GATE)
    text = msgspec.json.encode(Demands(spec.node_selector, _terms(pod), spec.tolerations, gates))
    return text if len(text) <= MAX_DEMANDS else None


def _terms(pod: Pod) -> tuple[NodeSelectorTerm, ...]:
    affinity = pod.spec.affinity.node_affinity
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    return required.node_selector_terms if required is not None else ()


def _unschedulable(pod: Pod) -> str:
    """The scheduler's message about a pod for which it finds no node, or ""."""
    if pod.spec.node_name or pod.status.nominated_node_name:
        return ""
    found = (item for item in pod.status.conditions if item.type == "PodScheduled" and item.status == "False")
    return next((item.message or item.reason for item in found if item.reason == "Unschedulable"), "")


MEMBERS: Final = Resource(Member, PODS.kind, PODS.plural, PODS.versions, member_of, None, Pod)
"""Pods of groups, and those with the gate."""


def is_member(member: Member) -> bool:
    """Whether the pod is of a group, or waits for the placer: of all others, nobody here asks."""
    return member.pod.gated or bool(member.pod.group)


class Offer(ApiObject, frozen=True):
    """A slice of this driver: whether the whole-node device is in it."""

    metadata: ObjectIdentity
    node: str
    pool: str
    generation: int
    of_whole_node: bool
    modes: str = ""
    """Of the whole-node device: in which it can work with other nodes, such as ``X4,X2V,X1``."""
    slices: int = 1
    """Of the pool in that generation."""
    marks: tuple[str, ...] = ()
    """UIDs of the workloads that its devices say they are of; "" for devices that say nothing, or what is no UID."""


class _Value(ApiObject, frozen=True):
    """The value of an attribute, if it is a text."""

    string: str = ""


class _Attributes(ApiObject, frozen=True):
    """The attributes that are read; in v1beta1, ``basic`` has them."""

    ultraserver_modes: _Value = _Value()
    workload: _Value = msgspec.field(default=_Value(), name=WORKLOAD_UID)


_ATTRIBUTES: Final = msgspec.json.Decoder(_Attributes)


class _Basic(ApiObject, frozen=True):
    attributes: msgspec.Raw = msgspec.Raw(b"{}")


class _Device(ApiObject, frozen=True):
    """A device, of whose attributes only those are kept that matter: a slice has many."""

    name: str
    attributes: msgspec.Raw = msgspec.Raw(b"{}")
    basic: _Basic = _Basic()


class _OfferSpec(ApiObject, frozen=True):
    driver: str
    pool: ResourcePool
    node_name: str | None = None
    devices: tuple[_Device, ...] | None = ()
    """None: there are none, on a server before 1.35."""


class _OfferSlice(ApiObject, frozen=True):
    metadata: ObjectIdentity
    spec: _OfferSpec


def offer_of(item: _OfferSlice, _: str = "") -> Offer:
    """What is kept of the slice, whoever wrote it."""
    spec = item.spec
    attributes = {device.name: _attributes(device) for device in spec.devices or ()}
    whole = attributes.get(NODE_DEVICE)
    return Offer(
        item.metadata,
        spec.node_name or "",
        spec.pool.name,
        spec.pool.generation,
        whole is not None,
        whole.ultraserver_modes.string[:LONGEST] if whole is not None else "",
        spec.pool.resource_slice_count,
        tuple(sorted({uid if is_uid(uid := one.workload.string) else "" for one in attributes.values()})),
    )


def _attributes(device: _Device) -> _Attributes:
    """Of one of the two places, whoever wrote them."""
    for attributes in (device.attributes, device.basic.attributes):
        try:
            there = _ATTRIBUTES.decode(attributes)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # null, or what no driver writes
            continue
        if there != _Attributes():
            return there
    return _Attributes()


OFFERS: Final = Resource(
    Offer, RESOURCE_SLICES.kind, RESOURCE_SLICES.plural, RESOURCE_SLICES.versions, offer_of, None, _OfferSlice
)
"""Slices, of which one may have 128 devices, and annotations of 256 KiB."""


def of_its_node(offer: Offer) -> bool:
    """Whether the slice is in a pool of its own node: with another one, a node could hide what others offer."""
    return is_own_pool(offer.pool, offer.node)


def of_a_server(node: PartialNode) -> bool:
    """Whether the Node names an UltraServer."""
    return any(node.metadata.labels.get(label) for label in NODES_OF)


def has_our_devices(claim: AllocatedClaim) -> bool:
    """Whether the claim has devices of this driver."""
    return claim.has_devices(DRIVER_NAME)
