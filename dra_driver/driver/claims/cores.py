"""Logical cores of a claim: which of them each container is to use, and whether they can be used together.

A device that is a core stands for physical NeuronCores of a chip. How many of them the runtime joins into a logical
core is decided at preparation: by the claim's ``NeuronConfig``, else as the core was offered. The containers see the
chips that their cores are on, and NEURON_RT_VISIBLE_CORES tells which cores to use: logical core ``c`` of the chip that
is ``/dev/neuron<n>`` in the container has the number ``n * cores of a chip + c``.

The variable stands in each CDI device, and a container that uses several devices sees it once. So it names the cores of
all devices that one container uses, also of several claims (``_seen_together``): the pod tells which ones those are. A
pod whose containers use a device together with different other ones cannot be told its cores, and is refused.

The chip itself knows nothing of logical cores, and which ones are in use is one table in the kernel driver, so all
processes on a chip use one size: the claim that is prepared first on a chip decides it for as long as it is held.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from dra_driver.driver.claims.model import ChipNode, Plan, PlanSettings, Pods, PreparedClaims, PrepareError
from dra_driver.kube.api.objects import (
    ClaimPod,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimConsumerReference,
)
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.names import DRIVER_NAME, VISIBLE_CORES
from dra_driver.neuron.topology.cuts import Part
from dra_driver.util.text import first_of, ranges, shorten

_NOT_PREPARED: Final = "the claim is not prepared"


def offered_sizes(cores: Iterable[tuple[DeviceRequestAllocationResult, Part]]) -> dict[str, int]:
    """Physical cores in a logical one by request, as its cores were offered; not of requests with several sizes."""
    found: dict[str, set[int]] = {}
    for result, part in cores:
        found.setdefault(result.request, set()).add(len(part.cores))
    return {request: next(iter(sizes)) for request, sizes in found.items() if len(sizes) == 1}


class PodsUnknown(PrepareError):  # noqa: N818 - a question, which is mostly answered
    """What a container gets depends on its pod: get these and plan again with ``pods``.

    ``optional``: without the right to read them it can be planned, too.
    """

    def __init__(
        self, namespace: str, pods: Sequence[ResourceClaimConsumerReference], *, optional: bool = False
    ) -> None:
        names = ", ".join(f"{namespace}/{pod.name}" for pod in pods)
        super().__init__(
            f"what a container gets depends on the containers of {names}, which the API server has not returned",
            consequence=_NOT_PREPARED,
            remedy="kubelet tries again",
        )
        self.namespace = namespace
        self.pods = tuple(pods)
        self.optional = optional


View = tuple[str, tuple[int, ...]]
"""A container, as ``pod/container``, and the devices of a claim that it uses, by index."""


def views_of(
    claim: ResourceClaim, requests: Sequence[str], users: Collection[str] | None, pods: Pods | None, *, optional: bool
) -> list[View] | None:
    """Which devices of a claim the containers of its pods use; None if that is not known.

    Args:
        claim: allocated.
        requests: that its devices were allocated for.
        users: UIDs of its pods, None if they cannot be known.
        pods: see ``planner.planned``. One without containers stands for a pod that cannot be read.
        optional: whether None will do.

    Raises:
        PodsUnknown: its pods have to be known.
    """
    if pods is None or users is None:
        return None
    _require(claim, pods, optional=optional)
    its_pods = [pods[uid] for uid in sorted(users)]
    if not all(pod.spec.containers for pod in its_pods):
        return None
    name = claim.metadata.name
    return [
        (
            f"{pod.metadata.name}/{container}",
            tuple(at for at, request in enumerate(requests) if {(name, ""), (name, _main(request))} & uses),
        )
        for pod in its_pods
        for container, uses in claims_of_containers(pod)
    ]


def _require(claim: ResourceClaim, pods: Pods, *, optional: bool) -> None:
    missing = [pod for pod in claim.status.reserved_for if pod.uid not in pods]
    if missing:
        raise PodsUnknown(claim.metadata.namespace, missing, optional=optional)


def check_sizes(plan: Plan, views: Sequence[View] | None) -> None:
    """PrepareError if a container would use devices of the claim for which it is told different logical core sizes."""
    sizes = {device.base_request: plan.core_size(device) for device in plan.devices}
    if len(set(sizes.values())) < 2:
        return
    if views is None:
        why = "and which containers use which of them is not known"
    else:
        both = next((name for name, at in views if len({plan.core_size(plan.devices[i]) for i in at}) > 1), None)
        if both is None:
            return
        why = f"and container {both} uses requests with different ones"
    listed = ", ".join(f"{request[:63]}: {size}" for request, size in sizes.items())
    raise PrepareError(
        f"the requests of the claim have different logicalNeuronCore values ({listed}), {why}",
        consequence=f"a container can be told only one of them, so {_NOT_PREPARED}",
        remedy="name in each container (resources.claims) the request that it uses, or use one value for all requests "
        "(one without a value has the node's)",
    )


_Member = tuple[str, int]
"""A device of a claim: the claim's UID and the index of the device."""


def with_cores(
    plan: Plan,
    claim: ResourceClaim,
    units: Sequence[Sequence[int]],
    companions: Sequence[Plan],
    pods: Pods | None,
    inventory: NodeInventory,
    held: PreparedClaims,
    settings: PlanSettings,
    *,
    as_ranges: bool,
) -> tuple[Plan, tuple[Plan, ...]]:
    """The plan with what its containers are told of cores, and the plans of its companions that change with it.

    Args:
        plan: without that.
        claim: whose plan it is.
        units: devices (indexes) that a container sees together as far as the claim tells.
        companions: claims that its pods may use too; the plan or one of these has cores.
        pods: see ``planner.planned``.
        inventory: the node.
        held: claims that are prepared; the claim itself may be among them.
        settings: the administrator's choices.
        as_ranges: whether cores are written as ``4-7``, else as ``4,5,6,7``.

    Raises:
        PrepareError: the cores cannot be used with the claim's logical core size, or (by the settings) not together.
        PodsUnknown: its pods have to be known.
    """
    _check_size(plan, held)
    _check_one_size(plan)
    plans = {item.uid: item for item in (plan, *companions)}
    groups, notes = _seen_together(plan, claim, units, companions, pods)
    warnings = [*plan.warnings, *notes]
    env: dict[_Member, dict[str, str]] = {}
    for group in groups:
        nodes = [node for uid, at in group for node in plans[uid].devices[at].nodes]
        if not any(node.cores for node in nodes):
            continue
        users = [plans[uid] for uid in dict.fromkeys(uid for uid, _ in group)]
        sizes = sorted({plans[uid].core_size(plans[uid].devices[at]) for uid, at in group})
        if len(users) > 1:
            warnings += _joinable(users, sizes, nodes, settings)
        _check_filled(nodes, sizes[0])
        ids = core_numbers(nodes, sizes[0], inventory)
        warnings += _contiguity(ids, settings)
        told = {VISIBLE_CORES: ranges(ids) if as_ranges else ",".join(map(str, ids))}
        env.update(dict.fromkeys(group, told))
    changed = [_told(item, env) for item in companions]
    return (
        replace(_told(plan, env), warnings=tuple(warnings)),
        tuple(now for now, before in zip(changed, companions, strict=True) if now != before),
    )


def _told(plan: Plan, env: Mapping[_Member, dict[str, str]]) -> Plan:
    devices = tuple(
        replace(device, env=device.env | env.get((plan.uid, at), {})) for at, device in enumerate(plan.devices)
    )
    return replace(plan, devices=devices)


def _seen_together(
    plan: Plan, claim: ResourceClaim, units: Sequence[Sequence[int]], companions: Sequence[Plan], pods: Pods | None
) -> tuple[list[tuple[_Member, ...]], list[str]]:
    """Devices that a container uses together, with some of the plan's, and warnings where that is not known.

    Those with admin access do not count: they are for looking at chips.
    """
    own = {(plan.uid, at) for at, device in enumerate(plan.devices) if not device.admin}
    alone = [tuple((plan.uid, at) for at in unit if (plan.uid, at) in own) for unit in units]
    requests = {_main(plan.devices[at].request) for _, at in own}
    if not companions and len(requests) == 1:
        return alone, []
    users = plan.pods
    if pods is not None and users is not None:
        _require(claim, pods, optional=False)
    if pods is None or users is None:
        known = [other for other in companions if set(other.pods or ()).intersection(users or ())]
        doubtful = known or (plan.has_cores and len(requests) > 1)
        return alone, [_unread(plan, known)] if doubtful else []
    seen, notes = _views(plan, units, companions, [pods[uid] for uid in users])
    plans = {item.uid: item for item in (plan, *companions)}
    groups: list[tuple[_Member, ...]] = []
    for container, view in seen:
        if own.isdisjoint(view) or view in groups:
            continue
        other = next((found for found in seen if found[1] != view and not set(view).isdisjoint(found[1])), None)
        both = {*view, *(other[1] if other is not None else ())}
        if other is not None and any(node.cores for uid, at in both for node in plans[uid].devices[at].nodes):
            raise PrepareError(
                f"containers {container} and {other[0]} both use {_named(set(view) & set(other[1]), plans)}, one of "
                f"them with {_named(set(view) ^ set(other[1]), plans)}",
                consequence=f"a device can carry only one set of cores, so {_NOT_PREPARED}",
                remedy="let containers that share a device use the same claims and requests; "
                "or give each container a request of its own for cores",
            )
        groups.append(view)
    left = own.difference(*groups) if groups else own
    return [*groups, *(rest for unit in alone if (rest := tuple(item for item in unit if item in left)))], notes


def _views(
    plan: Plan, units: Sequence[Sequence[int]], companions: Sequence[Plan], pods: Iterable[ClaimPod]
) -> tuple[list[tuple[str, tuple[_Member, ...]]], list[str]]:
    """What each container uses of the plans; warnings about those that cannot be told all of it.

    These are init containers with what the scheduler allocated for others, which are told their own.
    """
    unit_of = {(plan.uid, at): place for place, unit in enumerate(units) for at in unit}
    seen, notes = [], []
    for pod in pods:
        for container, names in claims_of_containers(pod):
            view, name = _view(names, (plan, *companions)), f"{pod.metadata.name}/{container}"
            if len({unit_of[member] for member in view if member in unit_of}) > 1:
                notes += [_told_less(name, plan)] if plan.has_cores else []
            elif view:
                seen.append((name, view))
    return seen, notes


def _view(names: Collection[tuple[str, str]], plans: Sequence[Plan]) -> tuple[_Member, ...]:
    """Devices of the plans that a container uses, by names of claims and requests."""
    return tuple(
        (plan.uid, at)
        for plan in sorted(plans, key=lambda item: item.uid)
        for at, device in enumerate(plan.devices)
        if not device.admin and ((plan.name, "") in names or (plan.name, _main(device.request)) in names)
    )


def claims_of_containers(pod: ClaimPod) -> Iterator[tuple[str, set[tuple[str, str]]]]:
    """For each container, the ResourceClaims that it uses and the requests of them, "" for all."""
    made = {item.name: item.resource_claim_name for item in pod.status.resource_claim_statuses}
    name_of = {item.name: item.resource_claim_name or made.get(item.name, "") for item in pod.spec.resource_claims}
    extended = pod.status.extended_resource_claim_status
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        uses = {(name_of.get(item.name, ""), item.request) for item in container.resources.claims}
        for mapped in extended.request_mappings if extended is not None else ():
            if extended is not None and mapped.container_name == container.name:
                uses.add((extended.resource_claim_name, mapped.request_name))
        yield container.name, uses


def _joinable(
    users: Sequence[Plan], sizes: Sequence[int], nodes: Sequence[ChipNode], settings: PlanSettings
) -> list[str]:
    """Warnings about claims that one container uses. PrepareError when it cannot."""
    names = " and ".join(plan.reference for plan in users)
    shared = [plan.reference for plan in users if not plan.own_pod]
    problem = remedy = ""
    if shared:
        problem = f"{shared[0]} is not the pod's own, so other pods would be given cores that are not theirs"
        remedy = "make both claims from templates (resourceClaimTemplateName), or one claim with both requests"
    elif len(sizes) > 1:
        problem = f"they are for logical cores of different sizes ({', '.join(map(str, sizes))})"
        remedy = "set the same logicalNeuronCore in both, or use them in different containers"
    elif len({(node.chip, node.number) for node in nodes}) > len({node.chip for node in nodes}):
        problem = "they show a chip under different numbers"
        remedy = "use one claim with both requests"
    if problem:
        raise PrepareError(
            f"a container uses claims {names}, and {problem}",
            consequence=f"it cannot be given the cores of both, so {_NOT_PREPARED}",
            remedy=remedy,
        )
    if settings.contiguity == "allow" or len({node.chip - node.number for node in nodes}) == 1:
        return []
    chips = ", ".join(str(node.chip) for node in sorted({n.number: n for n in nodes}.values(), key=lambda n: n.number))
    what = f"a container uses claims {names}, whose chips {chips} are, in this order, no contiguous run of host ids"
    consequence = "the Neuron runtime may fail in it, or use cores of other claims"
    remedy = "use one claim with both requests"
    if settings.contiguity == "refuse":
        raise PrepareError(what, consequence=f"{consequence}, so {_NOT_PREPARED}", remedy=remedy)
    return [f"{what}; {consequence}; {remedy}"]


def _unread(plan: Plan, companions: Sequence[Plan]) -> str:
    which = f"claim {plan.reference}" + "".join(f" and {other.reference}" for other in companions[:3])
    return (
        f"which containers use {which} is not known here; a container that uses "
        "several claims or one of several requests may get the wrong cores"
    )


def _told_less(container: str, plan: Plan) -> str:
    return (
        f"container {container} has devices of several requests of claim {plan.reference}; "
        "it sees all their chips, but is told only the cores of one request; "
        "let an init container ask for at most as many cores as one of the containers after it"
    )


def _named(members: Collection[_Member], plans: Mapping[str, Plan]) -> str:
    names = [f"{shorten(plans[uid].name, 63)}/{plans[uid].devices[at].request[:63]}" for uid, at in sorted(members)]
    return first_of(list(dict.fromkeys(names)), 2)


def _main(request: str) -> str:
    """The name of a request without that of its subrequest."""
    return request.partition("/")[0]


def core_numbers(nodes: Iterable[ChipNode], size: int, inventory: NodeInventory) -> list[int]:
    """Numbers of the logical cores that a container with these chips is to use, ascending. ``size``: physical cores."""
    found: set[int] = set()
    for node in nodes:
        physical = inventory.physical_cores(node.chip) or 0
        first = node.number * (physical // size)
        found.update(first + core // size for core in node.cores or range(physical // size * size))
    return sorted(found)


def _check_size(plan: Plan, held: PreparedClaims) -> None:
    for chip, size in plan.core_sizes.items():
        for holder in held.core_holders(chip, exclude=plan.uid):
            theirs = holder.core_sizes[chip]
            if theirs != size:
                raise PrepareError(
                    f"claim {holder.reference} ({holder.uid}) uses chip {chip} with logical cores of "
                    f"{_physical(theirs)}, and this one is for logical cores of {size}",
                    consequence=f"all cores of a chip are used with one size, so {_NOT_PREPARED}",
                    remedy=f"set logicalNeuronCore {theirs} in the claim's NeuronConfig, or delete the pod "
                    "to get cores of another chip; kubelet tries again, and the size is free once no claim holds "
                    "cores of the chip",
                )


def _check_one_size(plan: Plan) -> None:
    """PrepareError if requests of the claim have cores of one chip at different sizes."""
    sizes = plan.core_sizes
    for device in plan.devices:
        for node in device.nodes:
            if node.cores and not device.admin and sizes[node.chip] != plan.core_size(device):
                raise PrepareError(
                    f"requests of the claim have cores of chip {node.chip} with logical cores of "
                    f"{plan.core_size(device)} and of {sizes[node.chip]}",
                    consequence=f"all cores of a chip are used with one size, so {_NOT_PREPARED}",
                    remedy="use one logicalNeuronCore for all requests for cores",
                )


def _check_filled(nodes: Sequence[ChipNode], size: int) -> None:
    by_chip: dict[int, set[int]] = {}
    for node in nodes:
        by_chip.setdefault(node.chip, set()).update(node.cores)
    for chip, cores in sorted(by_chip.items()):
        if any(core // size * size + rest not in cores for core in cores for rest in range(size)):
            raise PrepareError(
                f"the claim is for logical cores of {_physical(size)}, but its physical cores "
                f"{ranges(sorted(cores))} of chip {chip} do not make up whole ones",
                consequence=_NOT_PREPARED,
                remedy="leave logicalNeuronCore out to use the cores as they are offered (logicalCoreSize in the "
                f"ResourceSlice), or ask for aligned ones with matchAttribute {DRIVER_NAME}/coreRun{size}_id",
            )


def _contiguity(ids: Sequence[int], settings: PlanSettings) -> list[str]:
    if settings.contiguity == "allow" or ids[-1] - ids[0] + 1 == len(ids):
        return []
    what = f"cores {ranges(ids)} (numbers in the container) are not one contiguous run"
    consequence = 'the Neuron runtime may fail in this container ("Neuron cores are not contiguous")'
    remedy = (
        "ask for all cores of a chip, or for consecutive ones with a matchAttribute constraint on "
        f"{DRIVER_NAME}/coreRun2_id or {DRIVER_NAME}/coreRun4_id"
    )
    if settings.contiguity == "refuse":
        raise PrepareError(what, consequence=f"{consequence}, so {_NOT_PREPARED}", remedy=remedy)
    return [f"{what}; {consequence}; {remedy}"]


def _physical(size: int) -> str:
    return f"{size} physical NeuronCore{'s' * (size > 1)}"
