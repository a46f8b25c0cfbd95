"""NeuronUltraServers and NeuronUltraServerWorkloads as values for a decision, and decisions as what these objects say.

Values in, values out. Workloads are tenants' objects: what cannot be read counts as absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dra_driver.kube.objects.meta import JsonObject, ObservedCondition, seconds, timestamp
from dra_driver.neuron.ultraserver_objects import (
    ACCEPTED_SPEC,
    BOUND,
    FINALIZER,
    LEFT_OUT,
    MAX_TEXT_CHARACTERS,
    OTHERS,
    RELEASED_MARKS,
    WORKLOAD_UIDS,
    Allocation,
    NeuronUltraServer,
    NeuronUltraServerWorkload,
    ServerMember,
    TemplateName,
    UltraServerSpec,
    UltraServerStatus,
    WorkloadConfig,
    WorkloadSpec,
    WorkloadStatus,
    left_out,
    released_marks,
    servers_in_short,
    workload_uids,
)
from dra_driver.ultraserver.placer.allot import SIZES
from dra_driver.ultraserver.placer.truth import WriteUids
from dra_driver.ultraserver.placer.workload import Description, Extent, Grant, ServerRecord, Verdict, Workload

# From objects


def record_of(server: NeuronUltraServer) -> ServerRecord:
    """Who has its nodes, and what it says of itself."""
    uids = workload_uids(server)
    grants = tuple(_grant(item, uids) for item in server.status.allocations)
    return ServerRecord(uids, grants, released_marks(server), left_out(server))


def _grant(item: Allocation, uids: dict[str, str]) -> Grant:
    return Grant(
        workload=item.workload_ref,
        uid=uids.get(item.workload_ref, ""),
        nodes=item.allocated_nodes,
        index=item.ultraserver_index,
        bound=item.phase == BOUND,
        at=seconds(item.allocated_at) or 0.0,
        leader=item.leader_node_name,
    )


class _Accepted(msgspec.Struct, rename="camel"):
    """The part of the annotation that servers are given by."""

    instance_type: str
    server_count: int
    topology_size: int
    resource_claim_template: TemplateName = TemplateName()
    config: WorkloadConfig = WorkloadConfig()


def _extent(spec: _Accepted | WorkloadSpec) -> Extent:
    return Extent(
        spec.instance_type,
        spec.server_count,
        spec.topology_size,
        spec.resource_claim_template.name,
        spec.config.logical_neuron_core,
    )


def workload_of(item: NeuronUltraServerWorkload) -> Workload:
    """What the placer needs of it."""
    meta, spec = item.metadata, item.spec
    return Workload(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        created=seconds(meta.creation_timestamp) or 0.0,
        extent=_extent(spec),
        accepted=_accepted(meta.annotations.get(ACCEPTED_SPEC, "")),
        ending=meta.deletion_timestamp is not None,
        # Where not all are kept, it cannot be given one: who changes some writes all of them.
        finalizer=not {FINALIZER, OTHERS}.isdisjoint(meta.finalizers),
        recorded=item.status.allocated_ultra_servers,
    )


def _accepted(text: str) -> Extent | None:
    try:
        spec = msgspec.json.decode(text, type=_Accepted)
    except (msgspec.DecodeError, RecursionError):
        return None
    extent = _extent(spec)
    # Who may write the workload may write this: what no spec can say says nothing.
    return extent if extent.servers >= 1 and extent.nodes in SIZES else None


def finalizers_patch(item: NeuronUltraServerWorkload, *, present: bool) -> JsonObject:
    """The operator's finalizer, or its end: a merge patch of exactly this state of the object."""
    before = item.metadata.finalizers
    others = [one for one in before if one != FINALIZER]
    wanted = [*others, FINALIZER] if present else others
    change = {} if OTHERS in before else {"finalizers": wanted}
    return {"metadata": {**_exactly(item), **change}}


def accepted_spec(extent: Extent) -> str:
    """The annotation that says what a workload was served with."""
    asked = TemplateName(extent.template), WorkloadConfig(extent.core_size)
    fields = _Accepted(extent.instance_type, extent.servers, extent.nodes, *asked)
    return msgspec.json.encode(fields).decode()


# To objects


def uids_patch(server: NeuronUltraServer, write: WriteUids) -> JsonObject:
    """The annotations, and the finalizer that goes with UIDs: a merge patch of exactly this state of the object."""
    others = [one for one in server.metadata.finalizers if one != FINALIZER]
    notes = {WORKLOAD_UIDS: _note(write.uids)}
    if write.released or RELEASED_MARKS in server.metadata.annotations:
        notes[RELEASED_MARKS] = _note(write.released)
    return {
        "metadata": {
            **_exactly(server),
            "annotations": notes,
            "finalizers": [*others, FINALIZER] if write.uids else others,
        }
    }


def left_out_patch(server: NeuronUltraServer, nodes: Mapping[str, str]) -> JsonObject:
    """Nodes that get nothing any more: a merge patch of exactly this state of the object."""
    return {"metadata": {**_exactly(server), "annotations": {LEFT_OUT: _note({**left_out(server), **nodes})}}}


def _note(values: Mapping[str, object]) -> str | None:
    return msgspec.json.encode(values, order="deterministic").decode() if values else None


def status_patch(item: NeuronUltraServer | NeuronUltraServerWorkload, status: object) -> JsonObject:
    """The status: a merge patch of exactly this state of the object."""
    return {"metadata": _exactly(item), "status": msgspec.to_builtins(status)}


def spec_patch(server: NeuronUltraServer, spec: UltraServerSpec) -> JsonObject:
    """The nodes of a server: a merge patch of exactly this state of the object."""
    return {"metadata": _exactly(server), "spec": msgspec.to_builtins(spec)}


def _exactly(item: NeuronUltraServer | NeuronUltraServerWorkload) -> JsonObject:
    return {"uid": item.metadata.uid, "resourceVersion": item.metadata.resource_version}


def spec_of(description: Description) -> UltraServerSpec:
    """The nodes of a server."""
    members = (
        ServerMember(one.node, one.place, _link(up=one.horizontal), _link(up=one.vertical))
        for one in description.members
    )
    return UltraServerSpec(description.instance_type, tuple(members))


def _link(*, up: bool) -> str:
    return "up" if up else "down"


def server_status(
    before: NeuronUltraServer, description: Description | None, grants: Sequence[Grant], now: float
) -> UltraServerStatus:
    """The status of a server with these grants.

    Args:
        before: the object as it is.
        description: of its nodes; None: none is there.
        grants: who has them.
        now: seconds since the epoch, for conditions that change.
    """
    trouble = description.trouble if description is not None else "none of its nodes is there"
    holders = "; ".join(f"{grant.workload}: {', '.join(grant.nodes)}" for grant in grants)
    conditions = (
        ("Ready", not trouble, "Degraded" if trouble else "AllNodes", trouble or "all its nodes are in order"),
        ("Degraded", bool(trouble), "Nodes" if trouble else "AllNodes", trouble or "all its nodes are in order"),
        ("Allocated", bool(grants), "Workloads" if grants else "Free", holders or "no workload has nodes of it"),
    )
    return UltraServerStatus(
        state="Degraded" if trouble else "Ready",
        observed_generation=before.metadata.generation,
        conditions=_conditions(conditions, before.status.conditions, before.metadata.generation, now),
        allocations=tuple(map(_allocation, grants)),
    )


def _allocation(grant: Grant) -> Allocation:
    return Allocation(
        workload_ref=grant.workload,
        allocated_nodes=grant.nodes,
        node_count=len(grant.nodes),
        leader_node_name=grant.leader,
        ultraserver_index=grant.index,
        phase=BOUND if grant.bound else "Pending",
        allocated_at=timestamp(grant.at),
    )


def workload_status(before: NeuronUltraServerWorkload, verdict: Verdict, now: float) -> WorkloadStatus:
    """The status of a workload of which this was decided."""
    ready = verdict.state == "Allocated" and verdict.obstacle is None
    reason, message = verdict.obstacle or (verdict.reason, verdict.message)
    under_way = verdict.state in ("Pending", "Allocating", "Deallocating")
    failed = verdict.message if verdict.state in ("PartiallyAllocated", "Failed") else ""
    kept_out = verdict.obstacle[1] if verdict.obstacle is not None else ""
    degraded = verdict.trouble or failed or kept_out or "nothing is wrong"
    conditions = [
        ("Ready", ready, reason, message),
        ("Progressing", under_way, verdict.reason, verdict.message),
        (
            "Degraded",
            bool(verdict.trouble or failed or kept_out),
            "Nodes" if verdict.trouble else verdict.reason if failed else reason,
            degraded,
        ),
    ]
    if verdict.gaps:
        trouble = "pods of others may get in, or its own may not"
        remedy = "Install DeviceClasses and policies as this release has them"
        conditions.append(("Fenced", False, "NotInstalled", f"{trouble}: {verdict.gaps}. {remedy}"))
    if verdict.impostors:
        conditions.append(("MarksCredible", False, "ForeignMark", verdict.impostors))
    workload = workload_of(before)
    if workload.accepted is not None and workload.accepted != workload.extent:
        accepted = workload.accepted
        text = (
            "spec was changed after servers were allocated; what it had first counts: "
            f"{accepted.servers} UltraServers of {accepted.instance_type} with {accepted.nodes} nodes each, logical "
            f"cores of {accepted.core_size}, template {accepted.template or workload.name}. Delete the workload and "
            "make another one to change that"
        )
        conditions.append(("SpecFollowed", False, "SpecChanged", text))
    strategy = before.spec.allocation_policy.failure_strategy
    if strategy != "NoOp":
        text = f"failureStrategy {strategy[:60]} acts as NoOp: conditions say what is wrong, and no pod is evicted"
        conditions.append(("FailureStrategyFollowed", False, "ActsAsNoOp", text))
    same = before.status.allocated_ultra_servers == servers_in_short(verdict.servers)
    at = before.status.allocated_at if same else None
    return WorkloadStatus(
        state=verdict.state,
        allocated_ultra_servers=verdict.servers,
        allocated_at=(at or timestamp(now)) if verdict.servers else None,
        observed_generation=before.metadata.generation,
        conditions=_conditions(conditions, before.status.conditions, before.metadata.generation, now),
    )


def _conditions(
    wanted: Iterable[tuple[str, bool, str, str]],
    before: Iterable[ObservedCondition],
    generation: int,
    now: float,
) -> tuple[ObservedCondition, ...]:
    """Conditions by type, status, reason and message; the time is that of the last change of the status."""
    former = {condition.type: condition for condition in before}
    conditions = []
    for kind, is_so, reason, message in wanted:
        status = "True" if is_so else "False"
        same = kind in former and former[kind].status == status and former[kind].last_transition_time
        conditions.append(
            ObservedCondition(
                type=kind,
                status=status,
                reason=reason,
                message=message[:MAX_TEXT_CHARACTERS],
                last_transition_time=former[kind].last_transition_time if same else timestamp(now),
                observed_generation=generation,
            )
        )
    return tuple(conditions)
