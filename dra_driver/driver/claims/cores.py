"""Logical cores of a claim: which of them each container is to use, and whether they can be used together.

A device that is a core stands for physical NeuronCores of a chip. How many of them the runtime joins into a logical
core is decided at preparation: by the claim's ``NeuronConfig``, else as the core was offered. The containers see the
chips that their cores are on, and NEURON_RT_VISIBLE_CORES tells which cores to use: logical core ``c`` of the chip that
is ``/dev/neuron<n>`` in the container has the number ``n * cores of a chip + c``.

The variable stands in each CDI device, and a container that uses several devices sees it once. So it names the cores of
all devices of the claim that one container uses (``_groups``): the pod tells which ones those are. A claim is
refused whose containers use a device together with different other ones, or together with devices of another claim.

The chip itself knows nothing of logical cores, and which ones are in use is one table in the kernel driver, so all
processes on a chip use one size: the claim that is prepared first on a chip decides it for as long as it is held.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from dra_driver.driver.claims.model import (
    NOT_PREPARED,
    ChipNode,
    Plan,
    PlanSettings,
    PreparedClaims,
    PrepareError,
)
from dra_driver.driver.claims.sharing import ContainerUses, Sharing, Uses, View, devices_in_use
from dra_driver.driver.claims.situation import Situation, Units
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.names import DRIVER_NAME, VISIBLE_CORES
from dra_driver.util.text import first_of, ranges, shorten


def check_sizes(plan: Plan, views: Sequence[View] | None) -> None:
    """PrepareError if a container would use devices of the claim for which it is told different logical core sizes."""
    sizes = {device.base_request: plan.core_size(device) for device in plan.devices}
    if len(set(sizes.values())) < 2:
        return
    if views is None:
        why = "and it is not known which containers use which of them"
    else:
        both = next((name for name, at in views if len({plan.core_size(plan.devices[i]) for i in at}) > 1), None)
        if both is None:
            return
        why = f"and container {both} uses requests with different ones"
    values = ", ".join(f"{request[:63]}: {size}" for request, size in sizes.items())
    raise PrepareError(
        f"the requests of the claim have different logicalNeuronCore values ({values}), {why}",
        consequence=f"a container can use only one of them, so {NOT_PREPARED}",
        remedy="name in each container (resources.claims) the request that it uses, or use one value for all requests "
        "(one without a value has the node's)",
        reason="InvalidParameters",
    )


def with_cores(
    plan: Plan, sharing: Sharing, situation: Situation, prepared: PreparedClaims, settings: PlanSettings
) -> Plan:
    """The plan with what its containers are told of cores.

    Args:
        plan: without that.
        sharing: who sees its devices together.
        situation: the claim and the node.
        prepared: the claim itself may be among them.
        settings: the administrator's choices.

    Raises:
        PrepareError: the cores cannot be used with the claim's logical core size, or (by the settings) not together;
            or a container would use them together with devices of another claim.
    """
    check_sizes(plan, sharing.views)
    if not plan.has_cores and not sharing.companions:
        return plan
    _check_size(plan, prepared)
    _check_one_size(plan)
    groups, notes = _groups(plan, sharing, situation.claim.units)
    warnings = [*plan.warnings, *notes]
    env: dict[int, dict[str, str]] = {}
    for group in groups:
        nodes = [node for at in group for node in plan.devices[at].nodes]
        if not any(node.cores for node in nodes):
            continue
        size = min(plan.core_size(plan.devices[at]) for at in group)
        _check_filled(nodes, size)
        ids = core_numbers(nodes, size, situation.inventory)
        warnings += _contiguity(ids, settings)
        # As the device plugin writes them, for whom the pod may have been made: programs split the value at commas.
        numbers = ",".join(map(str, ids)) if situation.claim.for_extended_resources else ranges(ids)
        env |= {at: {VISIBLE_CORES: numbers} for at in group}
    devices = tuple(replace(device, env=device.env | env.get(at, {})) for at, device in enumerate(plan.devices))
    return replace(plan, devices=devices, warnings=tuple(warnings))


def _groups(plan: Plan, sharing: Sharing, all_units: Units) -> tuple[list[tuple[int, ...]], list[str]]:
    """Devices (indexes) that a container uses together, and warnings where that is not known.

    Those with admin access do not count: they are for looking at chips.
    """
    own = {at for at, device in enumerate(plan.devices) if not device.admin}
    units = [tuple(at for at in unit if at in own) for unit in all_units]
    requests = {plan.devices[at].base_request for at in own}
    if not sharing.companions and len(requests) == 1:
        return units, []
    if sharing.containers is None:
        others = [other for other in sharing.companions if set(other.pods or ()).intersection(plan.pods or ())]
        doubtful = others or (plan.has_cores and len(requests) > 1)
        return units, [_doubt_warning(plan, others)] if doubtful else []
    views, notes = _own_views(plan, sharing.companions, sharing.containers, all_units)
    groups: list[tuple[int, ...]] = []
    for container, view in views:
        if view in groups:
            continue
        other = next((item for item in views if item[1] != view and not set(view).isdisjoint(item[1])), None)
        if other is not None and any(plan.devices[at].has_cores for at in (*view, *other[1])):
            raise PrepareError(
                f"containers {container} and {other[0]} both use {_names(plan, set(view) & set(other[1]))}, one of "
                f"them with {_names(plan, set(view) ^ set(other[1]))}",
                consequence=f"a device can carry only one set of cores, so {NOT_PREPARED}",
                remedy="use the same requests in containers that share a "
                "device, or give each container its own request for cores",
                reason="ConflictingDevices",
            )
        groups.append(view)
    remainder = own.difference(*groups) if groups else own
    return [*groups, *(rest for unit in units if (rest := tuple(at for at in unit if at in remainder)))], notes


def _own_views(
    plan: Plan, companions: Sequence[Plan], containers: ContainerUses, units: Units
) -> tuple[list[View], list[str]]:
    """What each container uses of the plan; warnings about those that cannot be told all of it.

    These are init containers with what the scheduler allocated for others, which are told their own.
    """
    unit_of = {at: place for place, unit in enumerate(units) for at in unit}
    views: list[View] = []
    init_containers: list[str] = []
    for container, uses in containers:
        view = _devices(plan, uses)
        for other in companions if view else ():
            _check_apart(container, (plan, view), (other, _devices(other, uses)))
        if len({unit_of[at] for at in view}) > 1:
            init_containers.append(container)
        elif view:
            views.append((container, view))
    return views, [_init_container_warning(init_containers, plan)] if init_containers and plan.has_cores else []


def _devices(plan: Plan, uses: Uses) -> tuple[int, ...]:
    """Devices of the plan that a container uses; not those with admin access."""
    return tuple(at for at in devices_in_use(plan, uses) if not plan.devices[at].admin)


def _check_apart(container: str, *claims: tuple[Plan, Sequence[int]]) -> None:
    """PrepareError if a container would use devices of both plans, cores among them.

    Each claim is told to a container in one variable, of which the last one counts.
    """
    if all(view for _, view in claims) and any(plan.devices[at].has_cores for plan, view in claims for at in view):
        names = " and ".join(plan.reference for plan, _ in claims)
        raise PrepareError(
            f"container {container} uses devices of the claims {names}, cores among them",
            consequence=f"a container can use the cores of only one claim, so {NOT_PREPARED}",
            remedy="use one claim with both requests, or use the claims in different containers",
            reason="ConflictingDevices",
        )


def _doubt_warning(plan: Plan, companions: Sequence[Plan]) -> str:
    which = f"claim {plan.reference}" + "".join(f" and {other.reference}" for other in companions[:3])
    return (
        f"it is not known here which containers use {which}; a container that uses "
        "several claims or one of several requests may get the wrong cores"
    )


def _init_container_warning(containers: Sequence[str], plan: Plan) -> str:
    several = len(containers) > 1
    have, each = ("s {} have", "each") if several else (" {} has", "it")
    return (
        f"container{have.format(first_of(containers, 2))} devices of several requests of claim {plan.reference}; "
        f"{each} sees all their chips, but can use the cores of only one request; "
        "request at most as many cores in an init container as in one of the containers after it"
    )


def _names(plan: Plan, devices: Iterable[int]) -> str:
    names = [f"{shorten(plan.name, 63)}/{plan.devices[at].request[:63]}" for at in sorted(devices)]
    return first_of(list(dict.fromkeys(names)), 2)


def core_numbers(nodes: Iterable[ChipNode], size: int, inventory: NodeInventory) -> list[int]:
    """Numbers of the logical cores that a container with these chips is to use, ascending. ``size``: physical cores."""
    numbers: set[int] = set()
    for node in nodes:
        physical = inventory.physical_cores(node.chip) or 0
        first = node.number * (physical // size)
        numbers.update(first + core // size for core in node.cores or range(physical // size * size))
    return sorted(numbers)


def _check_size(plan: Plan, prepared: PreparedClaims) -> None:
    for chip, size in plan.core_sizes.items():
        for holder in prepared.core_holders(chip, exclude=plan.uid):
            theirs = holder.core_sizes[chip]
            if theirs != size:
                raise PrepareError(
                    f"claim {holder.known_to(plan.namespace)} uses chip {chip} with logical cores of "
                    f"{_physical(theirs)}, and this one is for logical cores of {size}",
                    consequence=f"all cores of a chip have the same size, so {NOT_PREPARED}",
                    remedy=f"set logicalNeuronCore {theirs} in the claim's NeuronConfig, select another chip in its "
                    f"request (device.attributes['{DRIVER_NAME}'].deviceId != {chip}), or have the pods of each size "
                    "select nodes of their own; a pod that is only made anew gets the first free cores again; kubelet "
                    "tries again, and the size is free once no claim holds cores of the chip",
                    reason="CoreSize",
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
                    consequence=f"all cores of a chip have the same size, so {NOT_PREPARED}",
                    remedy="use one logicalNeuronCore for all requests for cores",
                    reason="CoreSize",
                )


def _check_filled(nodes: Sequence[ChipNode], size: int) -> None:
    by_chip: dict[int, set[int]] = {}
    for node in nodes:
        by_chip.setdefault(node.chip, set()).update(node.cores)
    for chip, cores in sorted(by_chip.items()):
        if any(core // size * size + rest not in cores for core in cores for rest in range(size)):
            raise PrepareError(
                f"the claim is for logical cores of {_physical(size)}, but its physical cores "
                f"{ranges(sorted(cores))} of chip {chip} do not form whole ones",
                consequence=NOT_PREPARED,
                remedy="leave logicalNeuronCore out to use the cores as they are offered (logicalCoreSize in the "
                f"ResourceSlice), or ask for aligned ones with matchAttribute {DRIVER_NAME}/coreRun{size}_id",
                reason="CoreSize",
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
        raise PrepareError(what, consequence=f"{consequence}, so {NOT_PREPARED}", remedy=remedy, reason="NotContiguous")
    return [f"{what}; {consequence}; {remedy}"]


def _physical(size: int) -> str:
    return f"{size} physical NeuronCore{'s' * (size > 1)}"
