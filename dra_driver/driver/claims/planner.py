"""From an allocated claim to what its containers get: values in, values out, for kubelet and command line alike.

Checks come in the order in which a reader would look: is there an allocation, is it ours, is it this node's, do the
devices exist, are they free, is the configuration legal, does their set make sense, are they healthy. What containers
are told in variables: ``environment``; who sees what together: ``sharing``; which numbers chips have: ``numbering``;
which cores containers are to use: ``cores``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from dra_driver.driver.claims.container_edits import cdi_device_name
from dra_driver.driver.claims.cores import check_sizes, offered_sizes, with_cores
from dra_driver.driver.claims.environment import environment, parameters, shared_pod_warnings
from dra_driver.driver.claims.model import (
    NOT_PREPARED,
    ChipNode,
    Needs,
    Plan,
    PlannedDevice,
    PlanSettings,
    PreparedClaims,
    PrepareError,
    Unhealthy,
)
from dra_driver.driver.claims.numbering import number_chips
from dra_driver.driver.claims.sharing import (
    consumers_of,
    own_pod,
    pods_needed,
    sharing,
    users,
    uses_by_container,
    views_of,
)
from dra_driver.driver.claims.situation import Situation
from dra_driver.kube.matching import tolerates
from dra_driver.kube.objects.resource import DeviceRequestAllocationResult, PartialResourceClaim
from dra_driver.neuron.health.policy import Blocking
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.names import DRIVER_NAME, LOGICAL_CORE_VARIABLES, VISIBLE_CORES
from dra_driver.neuron.topology.partitions import HardwarePart, chips_of, device_name, parts_of
from dra_driver.util.files import is_uuid
from dra_driver.util.text import shorten

if TYPE_CHECKING:
    from dra_driver.neuron.exclusion import HeldBack

_NUMBERED_AS_ONE: Final = (
    "it is not known which containers use which of its requests, because its pod cannot be read here; so its chips are "
    "numbered as one set, and not from 0 in each container"
)
_BETA_NAME: Final = re.compile(r"neurondevice(0|[1-9][0-9]{0,2})")
"""Chips in the claims that AWS's guide of the beta shows (aws-neuron-sdk, ``dra.rst``)."""


def plan(situation: Situation, prepared: PreparedClaims, settings: PlanSettings) -> Plan | Needs:
    """What a claim gets on this node, or what has to be known first.

    Args:
        situation: the claim, its pods and the node; chips may be sick although the scheduler did not know it yet.
        prepared: the claim itself may be among them, and does not stand in its own way.
        settings: the administrator's choices.

    Raises:
        PrepareError: why the claim cannot be prepared.
    """
    claim, inventory = situation.claim, situation.inventory
    uid = claim.metadata.uid
    _check_uid(uid)
    results = own_results(claim)
    _check_held_back(results, situation.facts.held_back)

    def offered_size(chip: int) -> int:
        """Physical cores in a logical one, as the chip's cores are offered: cores that are held keep their size."""
        return prepared.core_size(chip, exclude=uid) or situation.facts.core_sizes.get(chip) or inventory.core_size

    pairs = [(result, _parts(result, inventory, settings, offered_size)) for result in results]
    present = {part.chip: _chip_node(inventory, part.chip, result.device) for result, parts in pairs for part in parts}
    cores = [(result, part) for result, parts in pairs for part in parts if part.cores and not result.admin_access]
    _check_exclusive(pairs, uid, prepared)
    variables = environment(claim, results, inventory, offered_sizes(cores) if cores else {})
    alike = len({frozenset(values.items()) for values in variables.values()}) == 1
    shared = sharing(situation, results, prepared, cores=bool(cores), alike=alike)
    if isinstance(shared, Needs):
        return shared
    admin = {at for at, result in enumerate(results) if result.admin_access}
    numbers = number_chips([[part.chip for part in parts] for _, parts in pairs], admin, shared, prepared, settings)
    if isinstance(numbers, Needs):
        return numbers
    warnings = (
        *numbers.gaps,
        *_health(pairs, situation.facts.unhealthy, settings),
        *([_NUMBERED_AS_ONE] if numbers.as_one else []),
        *shared_pod_warnings(variables, shared.together),
    )
    devices = [
        (
            result,
            tuple(replace(present[part.chip], number=by_chip[part.chip], cores=part.cores) for part in parts),
        )
        for (result, parts), by_chip in zip(pairs, numbers.at, strict=True)
    ]
    without_cores = _without_cores(claim, devices, variables, warnings)
    check_sizes(without_cores, shared.views)
    if not cores and not shared.companions:
        return without_cores
    return with_cores(without_cores, shared, inventory, prepared, settings)


def _without_cores(
    claim: PartialResourceClaim,
    devices: Sequence[tuple[DeviceRequestAllocationResult, tuple[ChipNode, ...]]],
    variables: Mapping[str, Mapping[str, str]],
    warnings: tuple[str, ...],
) -> Plan:
    """The plan without what its containers are told of cores.

    ``devices``: its results, each with its chips; ``variables``: by request.
    """
    meta, pods, consumers, digest = claim.metadata, users(claim), consumers_of(claim), parameters(claim)
    common, own = _common(variables)
    return Plan(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        devices=tuple(
            PlannedDevice(
                request=result.request,
                pool=result.pool,
                device=result.device,
                nodes=nodes,
                cdi_name=cdi_device_name(meta.uid, result.device, nodes, digest),
                admin=bool(result.admin_access),
                env=own[result.request],
            )
            for result, nodes in devices
        ),
        env=common,
        pods=None if pods is None else tuple(sorted(pods)),
        consumers=tuple(name for name, _ in consumers),
        consumer_uids=tuple(uid for _, uid in consumers),
        own_pod=own_pod(claim),
        warnings=warnings,
        parameters=digest,
    )


def _common(variables: Mapping[str, Mapping[str, str]]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """The variables that all requests have, and by request the others."""
    # In their order, so that equal claims give equal files.
    first, *others = variables.values()
    common = {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}
    own = {
        request: {name: value for name, value in values.items() if name not in common}
        for request, values in variables.items()
    }
    return common, own


def refresh(prepared: Plan, inventory: NodeInventory) -> Plan:
    """The same plan with the device numbers that the kernel gives the chips now.

    Everything else stays: containers may have been given it. The kernel hands out the major number anew whenever its
    driver is loaded, so after a reboot the old one may belong to other hardware.

    Raises:
        PrepareError: a chip of the plan is no longer there.
    """
    devices = tuple(
        replace(
            device,
            nodes=tuple(
                replace(_chip_node(inventory, node.chip, device.device), number=node.number, cores=node.cores)
                for node in device.nodes
            ),
        )
        for device in prepared.devices
    )
    return replace(prepared, devices=devices)


def after_reboot(prepared: Plan, situation: Situation) -> Plan | Needs:
    """The same plan with the variables of now (no container runs that was told the former ones), or what it needs.

    Cores keep the logical size that they were given at: which ones a container is to use, depends on it.

    Args:
        prepared: before the node was booted.
        situation: the claim with the same allocation, and the node.

    Raises:
        PrepareError: see ``plan``.
    """
    claim = situation.claim
    has_cores = any(VISIBLE_CORES in device.env for device in prepared.devices)
    sizes = {device.request: prepared.core_size(device) for device in prepared.devices} if has_cores else {}
    common, own = _common(environment(claim, own_results(claim), situation.inventory, sizes))
    devices = tuple(
        replace(
            device,
            env={name: value for name, value in device.env.items() if name not in LOGICAL_CORE_VARIABLES}
            | own[device.request],
        )
        for device in prepared.devices
    )
    current = replace(prepared, env=common, devices=devices)
    if len({current.core_size(device) for device in devices}) > 1:
        needs = pods_needed(situation, optional=False)
        if needs is not None:
            return needs
        requests = [device.request for device in devices]
        check_sizes(current, views_of(situation, requests, uses_by_container(situation)))
    return current


def own_results(claim: PartialResourceClaim) -> list[DeviceRequestAllocationResult]:
    """The claim's allocation results of this driver. PrepareError when there are none."""
    allocation = claim.status.allocation
    if allocation is None:
        raise PrepareError(
            "the claim is not allocated",
            consequence=NOT_PREPARED,
            remedy="kubelet tries again; if this persists, check the events of the pod and the scheduler",
        )
    results = [result for result in allocation.devices.results if result.driver == DRIVER_NAME]
    if not results:
        raise PrepareError(
            f"the claim's allocation has no device of {DRIVER_NAME}",
            consequence="there is nothing to prepare",
            remedy="select the DeviceClass of the Neuron driver in the claim if it needs Neuron devices",
        )
    return results


def same_allocation(prepared: Plan, claim: PartialResourceClaim) -> bool:
    """Whether the claim has the devices and parameters that were prepared. PrepareError: it has no device of ours."""
    devices = [(device.request, device.pool, device.device, device.admin) for device in prepared.devices]
    allocated = [(item.request, item.pool, item.device, bool(item.admin_access)) for item in own_results(claim)]
    return devices == allocated and prepared.parameters == parameters(claim)


def _parts(
    result: DeviceRequestAllocationResult,
    inventory: NodeInventory,
    settings: PlanSettings,
    core_size: Callable[[int], int],
) -> tuple[HardwarePart, ...]:
    if result.pool != settings.node_name:
        raise PrepareError(
            f"device {_clip(result.device)} is allocated from pool {_clip(result.pool)}, not from this node's pool "
            f"{settings.node_name}",
            consequence=NOT_PREPARED,
            remedy="delete the pod so that it is scheduled again",
            reason="UnknownDevice",
        )
    if result.share_id is not None:
        raise PrepareError(
            f"device {_clip(result.device)} is allocated as a share, but Neuron devices cannot be shared that way",
            consequence=NOT_PREPARED,
            remedy="remove capacity requests from the claim; pods can share a whole claim instead",
            reason="UnknownDevice",
        )
    parts = parts_of(result.device, inventory.chip_indexes, core_size)
    if parts is None or any(
        part.cores and part.cores[-1] >= (inventory.physical_cores(part.chip) or 0) for part in parts
    ):
        beta = _BETA_NAME.fullmatch(result.device)
        if beta is not None:
            raise PrepareError(
                f"device {result.device} is a name of beta releases of AWS's DRA driver; this driver publishes it as "
                f"{device_name(int(beta[1]))}",
                consequence=NOT_PREPARED,
                remedy="delete the pods that use this claim; it is then allocated again under the current names (see "
                "docs/operate/move.md, From AWS's DRA driver)",
                reason="UnknownDevice",
            )
        raise PrepareError(
            f"device {_clip(result.device)} is not one that this driver publishes",
            consequence=NOT_PREPARED,
            remedy="delete the pod so that it is scheduled again; check that one version of the driver runs",
            reason="UnknownDevice",
        )
    return parts


def _chip_node(inventory: NodeInventory, chip: int, name: str) -> ChipNode:
    """The chip under its host number. PrepareError when a container could not open it."""
    device = inventory.device(chip)
    if device is None:
        problem = f"there is no chip {chip} on this host now"
    elif not device.major or device.minor is None:
        # A runtime takes major 0 as "not given" and would look for a node on the host.
        problem = f"the kernel driver does not report the device number of chip {chip}"
    elif device.node_present is False:
        problem = f"/dev/neuron{chip} is missing on the host"
    else:
        return ChipNode(chip=chip, number=chip, major=device.major, minor=device.minor)
    raise PrepareError(
        f"device {_clip(name)} cannot be used: {problem}",
        consequence="the pod cannot start on this node with this claim",
        remedy="check the Neuron kernel driver (dmesg, lsmod) and the instance; delete the pod to get other devices",
        reason="DeviceMissing",
    )


def _check_uid(uid: str) -> None:
    if not is_uuid(uid):
        raise PrepareError(
            f"the claim's UID {_clip(uid)!r} is not a UID",
            consequence=NOT_PREPARED,
            remedy="pass the claim as it is in the API server",
        )


def _check_held_back(results: Sequence[DeviceRequestAllocationResult], held_back: HeldBack | None) -> None:
    """PrepareError if the claim is to get chips that a device plugin may have given to others."""
    if held_back is None:
        return
    for result in results if held_back.chips else ():
        chips = chips_of(result.device, held_back.chips) or ()
        if not result.admin_access and held_back.chips.intersection(chips):
            raise PrepareError(
                f"device {result.device} may be in use already: {held_back.problem}",
                consequence="the claim is not prepared",
                remedy="kubelet tries again; delete the pod to get other devices",
                reason="DeviceHeldBack",
                passing=True,  # a pod of the device plugin ends
            )


def _check_exclusive(
    pairs: Sequence[tuple[DeviceRequestAllocationResult, tuple[HardwarePart, ...]]], uid: str, prepared: PreparedClaims
) -> None:
    """PrepareError when something that the claim is to have for itself is not free, or allocated twice."""
    taken: dict[int, list[tuple[HardwarePart, DeviceRequestAllocationResult]]] = {}
    for result, parts in pairs:
        for part in () if result.admin_access else parts:
            _check_free(part, result.device, uid, prepared)
            _check_once(part, result, taken.setdefault(part.chip, []))
            taken[part.chip].append((part, result))


def _check_free(part: HardwarePart, device: str, uid: str, prepared: PreparedClaims) -> None:
    holder = prepared.holder(part, exclude=uid)
    if holder is not None:
        raise PrepareError(
            f"device {device} is still prepared for claim {holder.reference} ({holder.uid})",
            consequence="it is not given to a second claim",
            remedy="kubelet tries again; the device is free once the pods of that claim have ended on this node",
            reason="DeviceInUse",
            passing=True,  # a pod was deleted by force, and kubelet is about to unprepare its claim
        )
    doubt = prepared.quarantined_holder(part.chip, exclude=uid)
    if doubt is None:
        return
    if doubt.chips is None:
        what = f"it is not known what claim {doubt.uid} holds: its checkpoint file cannot be read ({doubt.problem})"
    else:
        what = f"device {device} is held by claim {doubt.uid}, whose checkpoint file cannot be read ({doubt.problem})"
    raise PrepareError(
        what,
        consequence=f"device {device} is held back",
        remedy="it is released when kubelet unprepares that claim, or when the API server says that it is gone and no "
        "container can be using it; see the driver's log",
        reason="DeviceInUse",
    )


def _check_once(
    part: HardwarePart,
    result: DeviceRequestAllocationResult,
    taken: Sequence[tuple[HardwarePart, DeviceRequestAllocationResult]],
) -> None:
    other = next((other for has, other in taken if has.overlaps(part)), None)
    if other is None:
        return
    if other.device == result.device:
        raise PrepareError(
            f"device {result.device} is allocated twice in this claim, for requests {_clip(other.request)} and "
            f"{_clip(result.request)}",
            consequence=NOT_PREPARED,
            remedy="delete the pod so that the claim is allocated again",
            reason="ConflictingDevices",
        )
    raise PrepareError(
        f"devices {other.device} and {result.device} are both allocated to this claim, but share chip {part.chip}",
        consequence=NOT_PREPARED,
        remedy="select resourceType 'neuron_node' or 'neuron_device' ('neuron_group', 'neuron_core') in each request; "
        "allocationMode All without it takes the hardware more than once",
        reason="ConflictingDevices",
    )


def _health(
    pairs: Sequence[tuple[DeviceRequestAllocationResult, tuple[HardwarePart, ...]]],
    unhealthy: Unhealthy,
    settings: PlanSettings,
) -> tuple[str, ...]:
    """One warning for each chip with a fault whose taint the claim does not tolerate."""
    warnings = []
    for result, parts in pairs if unhealthy else ():
        for chip in (part.chip for part in parts):
            fault = next((item for item in unhealthy.get(chip, ()) if not _tolerates(result, item)), None)
            if fault is None:
                continue
            what = f"device {result.device} is not healthy: neuron{chip}: {fault.text}"
            taint = f"{fault.taint.key}:{fault.taint.effect}"
            if settings.unhealthy == "refuse":
                raise PrepareError(
                    what,
                    consequence=f"the claim does not tolerate the taint {taint}, so it is not prepared",
                    remedy="delete the pod to get other devices, or tolerate the taint in the claim's request",
                    reason="DeviceUnhealthy",
                )
            warnings.append(f"{what}; the claim does not tolerate the taint {taint}, and is prepared anyway")
    return tuple(warnings)


def _tolerates(result: DeviceRequestAllocationResult, fault: Blocking) -> bool:
    return any(tolerates(toleration, fault.taint) for toleration in result.tolerations)


def _clip(name: str) -> str:
    """A name from an API object, short enough for an event."""
    return shorten(name, 63)
