"""From the picks of one claim to its ``status.allocation``."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

from dra_driver.simulator.allocator.progress import Pick
from dra_driver.simulator.allocator.release import Release
from dra_driver.simulator.allocator.requests import AllocationError, Option, PreparedClaim
from dra_driver.simulator.objects import (
    AllocatedConfiguration,
    AllocatedDevice,
    AllocatedDevices,
    AllocationResult,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
)

_SHARES = uuid.UUID("6d0cfb5e-9a55-4d0b-8f0c-2f6f7f5f0c1d")
"""Kubernetes makes share ids at random; here the same input gives the same id."""


def allocation(prepared: PreparedClaim, picks: Sequence[Pick], node: str, release: Release) -> AllocationResult:
    """The allocation as kube-scheduler would write it. AllocationError for a node selector of several terms."""
    return AllocationResult(
        devices=AllocatedDevices(
            results=tuple(_device(prepared, place, pick) for place, pick in enumerate(picks)),
            config=tuple(_config(prepared, picks, release)),
        ),
        node_selector=_node_selector(picks, node),
    )


def _device(prepared: PreparedClaim, place: int, pick: Pick) -> AllocatedDevice:
    offer = pick.candidate.offer
    share, consumed = None, {}
    if offer.shareable:
        meta = prepared.claim.metadata
        share = str(uuid.uuid5(_SHARES, "/".join((meta.namespace, meta.name, meta.uid, str(place), *offer.id))))
        consumed = {name: amount.text for name, amount in (pick.candidate.amounts or {}).items()}
    return AllocatedDevice(
        request=pick.option.label,
        driver=offer.driver,
        pool=offer.pool,
        device=offer.device.name,
        admin_access=pick.option.admin or None,
        tolerations=pick.option.tolerations,
        binding_conditions=offer.device.binding_conditions or (),
        binding_failure_conditions=offer.device.binding_failure_conditions or (),
        share_id=share,
        consumed_capacity=consumed,
    )


def _chosen(prepared: PreparedClaim, picks: Sequence[Pick]) -> list[Option]:
    """For each request the option that was taken; the first for a request for no devices."""
    taken = {pick.option for pick in picks}
    return [
        next((option for option in request.options if option in taken), request.options[0])
        for request in prepared.requests
    ]


def _config(prepared: PreparedClaim, picks: Sequence[Pick], release: Release) -> Iterator[AllocatedConfiguration]:
    """First of the classes, each once, then of the claim.

    Up to 1.36 an entry of the claim comes once for each request that it names. From 1.37 on it comes once, and what is
    for all requests names none.
    """
    options = _chosen(prepared, picks)
    entries: list[AllocatedConfiguration] = []
    users: dict[str, list[Option]] = {}
    for option in options:
        users.setdefault(option.device_class.metadata.name, []).append(option)
    for using in users.values():
        labels = tuple(option.label for option in using)
        entries += [
            AllocatedConfiguration("FromClass", labels, item.opaque) for item in using[0].device_class.spec.config
        ]
    for item in prepared.claim.spec.devices.config:
        named = [option for option in options if {option.label, option.names[0]} & set(item.requests)]
        times = 1 if not item.requests else len(named) if release.keeps_config_requests else min(len(named), 1)
        entries += [AllocatedConfiguration("FromClaim", item.requests, item.opaque)] * times
    for entry in entries:
        for_all = all({option.label, option.names[0]} & set(entry.requests) for option in options)
        if for_all and not release.keeps_config_requests:
            yield AllocatedConfiguration(entry.source, (), entry.opaque)
        else:
            yield entry


def _node_selector(picks: Sequence[Pick], node: str) -> NodeSelector | None:
    """Where the allocation can be used: this node, or the nodes that all devices are for, or (None) anywhere."""
    fields: list[NodeSelectorRequirement] = []
    expressions: list[NodeSelectorRequirement] = []
    for pick in picks:
        spec, device = pick.candidate.offer.spec, pick.candidate.offer.device
        source = device if spec.per_device_node_selection else spec
        if source.node_name is not None or device.binds_to_node:
            this = NodeSelectorRequirement("metadata.name", "In", (node,))
            return NodeSelector((NodeSelectorTerm(match_fields=(this,)),))
        terms = source.node_selector.node_selector_terms if source.node_selector is not None else ()
        if len(terms) > 1:
            raise AllocationError(f"unsupported ResourceSlice.NodeSelector with {len(terms)} terms")
        for term in terms:
            # Kubernetes keeps all fields before all expressions, and each requirement once.
            _add_new(term.match_fields, fields)
            _add_new(term.match_expressions, expressions)
    if not fields and not expressions:
        return None
    return NodeSelector((NodeSelectorTerm(tuple(expressions), tuple(fields)),))


def _add_new(found: Sequence[NodeSelectorRequirement], to: list[NodeSelectorRequirement]) -> None:
    known = {(item.key, item.operator, frozenset(item.values)) for item in to}
    for item in found:
        identity = (item.key, item.operator, frozenset(item.values))
        if identity not in known:
            known.add(identity)
            to.append(item)
