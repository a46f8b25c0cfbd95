"""From an allocated claim to what its containers get: values in, values out, for kubelet and command line alike.

Checks come in the order in which a reader would look: is there an allocation, is it ours, is it this node's, do the
devices exist, are they free, are they healthy, is the configuration legal, does their set make sense. The variables of
containers: ``environment``; who sees what together: ``sharing``; which numbers chips have: ``numbering``; which cores
containers are to use: ``cores``; what runtimes call it all: ``container_edits``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from dra_driver.driver.claims.container_edits import with_names
from dra_driver.driver.claims.cores import check_sizes, with_cores
from dra_driver.driver.claims.environment import with_environment
from dra_driver.driver.claims.model import (
    NOT_PREPARED,
    ChipNode,
    Needs,
    Plan,
    PlannedDevice,
    PlanSettings,
    PreparedClaims,
    PrepareError,
)
from dra_driver.driver.claims.numbering import with_numbers
from dra_driver.driver.claims.ranks import rank_variables, workloads_of
from dra_driver.driver.claims.sharing import check_values, sharing
from dra_driver.driver.claims.situation import ClaimFacts, Situation
from dra_driver.driver.workload import NodeWorkload, Tenancy
from dra_driver.kube.matching import tolerates
from dra_driver.kube.objects.resource import DeviceRequestAllocationResult
from dra_driver.neuron.health.policy import Blocking
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.partitions import HardwarePart, chips_of, device_name, parts_of
from dra_driver.util.files import is_uuid
from dra_driver.util.text import shorten

if TYPE_CHECKING:
    from dra_driver.neuron.exclusion import HeldBack

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
    hardware = _hardware(situation, prepared, settings)
    sizes = _offered_sizes(hardware)
    bare = with_environment(hardware, situation, sizes, rank_variables(situation))
    shared = sharing(bare, situation, prepared)
    if isinstance(shared, Needs):
        return shared
    numbered = with_numbers(bare, shared, situation, prepared, settings)
    if isinstance(numbered, Needs):
        return numbered
    warnings = (*numbered.warnings, *check_values(numbered, shared))
    complete = with_cores(replace(numbered, warnings=warnings), shared, situation, prepared, settings)
    return with_names(complete)


def _hardware(situation: Situation, prepared: PreparedClaims, settings: PlanSettings) -> Plan:
    """The plan with the claim's hardware alone, under the host's numbers. PrepareError when it cannot be had."""
    claim, inventory, facts = situation.claim, situation.inventory, situation.facts
    _check_uid(claim.uid)
    _check_allocated(claim)
    _check_workload(claim, facts.tenancy)
    _check_held_back(claim.results, facts.held_back)

    def offered_size(chip: int) -> int:
        """Physical cores in a logical one, as the chip's cores are offered: cores that are held keep their size."""
        return prepared.core_size(chip, exclude=claim.uid) or facts.core_sizes.get(chip) or inventory.core_size

    parts = [_parts(result, inventory, settings, offered_size) for result in claim.results]
    devices = tuple(
        PlannedDevice(
            request=result.request,
            pool=result.pool,
            device=result.device,
            nodes=tuple(_chip_node(inventory, part, result.device) for part in of_device),
            cdi_name="",
            admin=bool(result.admin_access),
        )
        for result, of_device in zip(claim.results, parts, strict=True)
    )
    _check_exclusive(devices, claim, prepared)
    return Plan(
        namespace=claim.namespace,
        name=claim.name,
        uid=claim.uid,
        devices=devices,
        pods=None if claim.pods is None else tuple(sorted(claim.pods)),
        consumers=tuple(name for name, _ in claim.consumers),
        consumer_uids=tuple(uid for _, uid in claim.consumers),
        own_pod=claim.own_pod,
        own_group=claim.own_group,
        warnings=_health(devices, situation, settings),
        parameters=claim.parameters,
    )


def _offered_sizes(plan: Plan) -> dict[str, int]:
    """Physical cores in a logical one by request, as its cores were offered; not of requests with several sizes."""
    sizes: dict[str, set[int]] = {}
    for device in plan.devices:
        if device.has_cores and not device.admin:
            sizes.setdefault(device.request, set()).update(len(node.cores) for node in device.nodes)
    return {request: next(iter(values)) for request, values in sizes.items() if len(values) == 1}


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
                replace(_chip_node(inventory, node.part, device.device), number=node.number) for node in device.nodes
            ),
        )
        for device in prepared.devices
    )
    return replace(prepared, devices=devices)


def after_reboot(former: Plan, situation: Situation, prepared: PreparedClaims) -> Plan | Needs:
    """The same plan with the variables of now (no container runs that got the former ones), or what it needs.

    Cores keep the logical size that they were given at: which ones a container is to use, depends on it.

    Args:
        former: prepared before the node was booted.
        situation: the claim with the same allocation, and the node.
        prepared: the claim is among them.

    Raises:
        PrepareError: see ``plan``.
    """
    sizes = {device.request: former.core_size(device) for device in former.devices} if former.tells_cores else {}
    current = with_environment(former, situation, sizes, rank_variables(situation, former.env))
    if len({current.core_size(device) for device in current.devices}) > 1:
        shared = sharing(current, situation, prepared)
        if isinstance(shared, Needs):
            return shared
        check_sizes(current, shared.views)
    return current


def _check_allocated(claim: ClaimFacts) -> None:
    """PrepareError when the claim has no device of this driver."""
    if not claim.is_allocated:
        raise PrepareError(
            "the claim is not allocated",
            consequence=NOT_PREPARED,
            remedy="kubelet tries again; if this persists, check the events of the pod and the scheduler",
        )
    if not claim.results:
        raise PrepareError(
            f"the claim's allocation has no device of {DRIVER_NAME}",
            consequence="there is nothing to prepare",
            remedy="select the DeviceClass of the Neuron driver in the claim if it needs Neuron devices",
        )


def same_allocation(prepared: Plan, claim: ClaimFacts) -> bool:
    """Whether the claim has the devices and parameters that were prepared. PrepareError: it has no device of ours."""
    _check_allocated(claim)
    devices = [(device.request, device.pool, device.device, device.admin) for device in prepared.devices]
    allocated = [(item.request, item.pool, item.device, bool(item.admin_access)) for item in claim.results]
    return devices == allocated and prepared.parameters == claim.parameters


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


def _chip_node(inventory: NodeInventory, part: HardwarePart, name: str) -> ChipNode:
    """The chip, or part of one, under its host number. PrepareError when a container could not open it."""
    chip = part.chip
    device = inventory.device(chip)
    if device is None:
        problem = f"there is no chip {chip} on this host now"
    elif not device.major or device.minor is None:
        # A runtime takes major 0 as "not given" and would look for a node on the host.
        problem = f"the kernel driver does not report the device number of chip {chip}"
    elif device.node_present is False:
        problem = f"/dev/neuron{chip} is missing on the host"
    else:
        return ChipNode(chip=chip, number=chip, major=device.major, minor=device.minor, cores=part.cores)
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


def _check_workload(claim: ClaimFacts, tenancy: Tenancy | None) -> None:
    """PrepareError if the claim is not of the workload that the node is allocated to.

    While that one waits for claims that were allocated before its schedulers heard of it, claims of none are served.
    """
    if tenancy is None:
        return
    named, workload = workloads_of(claim), tenancy.workload
    _check_named_workloads(named, claim.namespace, tenancy)
    if workload is None or not (workload.bound and tenancy.certain):
        return
    # Anybody may write that a claim is of a workload, but not in the namespace of that one.
    strange = None in named or (named and not _is_at_home(workload, claim.namespace))
    if strange:
        raise PrepareError(
            f"{_allocation_of_node(workload, claim.namespace)}, of which the claim is not",
            consequence=NOT_PREPARED,
            remedy="delete the pod, and select its devices by a class of this driver, which leaves such nodes out; to "
            "be one of the workload's pods, it has to name the ResourceClaimTemplate that the workload has",
            reason="UltraServerWorkload",
        )


def _check_named_workloads(named: frozenset[str | None], namespace: str, tenancy: Tenancy) -> None:
    """PrepareError if a claim of the namespace names another workload than the node's."""
    own = tenancy.workload.uid if tenancy.workload is not None else None
    other = next((uid for uid in sorted(named - {None}, key=str) if uid != own), None)
    if other is None:
        return
    if not tenancy.certain:
        raise PrepareError(
            f"the claim is of the UltraServer workload {other}, and it is not known yet whose this node is",
            consequence=NOT_PREPARED,
            remedy="kubelet tries again; if that does not help, see the driver's log on this node",
            reason="UltraServerWorkload",
            for_now=True,
        )
    raise PrepareError(
        f"the claim is of the UltraServer workload {other}, and {_allocation_of_node(tenancy.workload, namespace)}",
        consequence=NOT_PREPARED,
        remedy="delete the pod, so that it is made with a new claim of the workload's present template, and "
        "scheduled to one of its nodes (kubectl get neuronultraservers -A)",
        reason="UltraServerWorkload",
    )


def _is_at_home(workload: NodeWorkload, namespace: str) -> bool:
    """Whether a namespace is the workload's, as far as that is known."""
    return workload.namespace in ("", namespace)


def _allocation_of_node(workload: NodeWorkload | None, reader: str) -> str:
    """Whose the node is. What runs in other namespaces is not for the reader's to know."""
    if workload is None:
        return "this node is allocated to none"
    name = workload if _is_at_home(workload, reader) else f"{workload.uid} of another namespace"
    return f"this node is allocated to the UltraServer workload {name}"


def _check_held_back(results: Sequence[DeviceRequestAllocationResult], held_back: HeldBack | None) -> None:
    """PrepareError if the claim is to get chips that a device plugin may have given to others."""
    if held_back is None:
        return
    for result in results if held_back.chips else ():
        chips = chips_of(result.device, held_back.chips) or ()
        if not result.admin_access and held_back.chips.intersection(chips):
            raise PrepareError(
                f"device {result.device} may be in use already: {held_back.for_tenants or held_back.problem}",
                consequence="the claim is not prepared",
                remedy="kubelet tries again; delete the pod to get other devices",
                reason="DeviceHeldBack",
                for_now=True,  # a pod of the device plugin ends
            )


def _check_exclusive(devices: Sequence[PlannedDevice], claim: ClaimFacts, prepared: PreparedClaims) -> None:
    """PrepareError when something that the claim is to have for itself is not free, or allocated twice."""
    taken: dict[int, list[tuple[HardwarePart, PlannedDevice]]] = {}
    for device in devices:
        for node in () if device.admin else device.nodes:
            others = taken.setdefault(node.chip, [])
            _check_free(node.part, device.device, claim, prepared)
            _check_once(node.part, device, others)
            others.append((node.part, device))


def _check_free(part: HardwarePart, device: str, claim: ClaimFacts, prepared: PreparedClaims) -> None:
    holder = prepared.holder(part, exclude=claim.uid)
    if holder is not None:
        raise PrepareError(
            f"device {device} is still prepared for claim {holder.known_to(claim.namespace)}",
            consequence="it is not given to a second claim",
            remedy="kubelet tries again; the device is free once the pods of that claim have ended on this node",
            reason="DeviceInUse",
            for_now=True,  # a pod was deleted by force, and kubelet is about to unprepare its claim
        )
    doubt = prepared.quarantined_holder(part.chip, exclude=claim.uid)
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


def _check_once(part: HardwarePart, device: PlannedDevice, taken: Sequence[tuple[HardwarePart, PlannedDevice]]) -> None:
    other = next((other for has, other in taken if has.overlaps(part)), None)
    if other is None:
        return
    if other.device == device.device:
        raise PrepareError(
            f"device {device.device} is allocated twice in this claim, for requests {_clip(other.request)} and "
            f"{_clip(device.request)}",
            consequence=NOT_PREPARED,
            remedy="delete the pod so that the claim is allocated again",
            reason="ConflictingDevices",
        )
    raise PrepareError(
        f"devices {other.device} and {device.device} are both allocated to this claim, but share chip {part.chip}",
        consequence=NOT_PREPARED,
        remedy="select resourceType 'neuron_node' or 'neuron_device' ('neuron_group', 'neuron_core') in each request; "
        "allocationMode All without it takes the hardware more than once",
        reason="ConflictingDevices",
    )


def _health(devices: Sequence[PlannedDevice], situation: Situation, settings: PlanSettings) -> tuple[str, ...]:
    """One warning for each chip with a fault whose taint the claim does not tolerate."""
    unhealthy, warnings = situation.facts.unhealthy, []
    for result, device in zip(situation.claim.results, devices, strict=True):
        for chip in (node.chip for node in device.nodes if unhealthy):
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
