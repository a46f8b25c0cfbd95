"""Logical cores of a claim: which of them each container is to use, and whether they can be used together.

A device that is a core stands for physical NeuronCores of a chip. How many of them the runtime joins into a logical
core is decided at preparation: by the claim's ``NeuronConfig``, else as the core was offered. The containers see the
chips that their cores are on, and NEURON_RT_VISIBLE_CORES tells which cores to use: logical core ``c`` of the chip that
is ``/dev/neuron<n>`` in the container has the number ``n * cores of a chip + c``.

The chip itself knows nothing of logical cores, and which ones are in use is one table in the kernel driver, so all
processes on a chip use one size: the claim that is prepared first on a chip decides it for as long as it is held.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from dra_driver.driver.claims.model import ChipNode, Plan, PlanSettings, PreparedClaims, PrepareError
from dra_driver.host.inventory import NodeInventory
from dra_driver.kube.types import DeviceRequestAllocationResult
from dra_driver.names import DRIVER_NAME, VISIBLE_CORES
from dra_driver.topology.cuts import Part
from dra_driver.util.text import ranges

_NOT_PREPARED: Final = "the claim is not prepared"


def offered_sizes(cores: Iterable[tuple[DeviceRequestAllocationResult, Part]]) -> dict[str, int]:
    """Physical cores in a logical one by request, as its cores were offered; not of requests with several sizes."""
    found: dict[str, set[int]] = {}
    for result, part in cores:
        found.setdefault(result.request, set()).add(len(part.cores))
    return {request: next(iter(sizes)) for request, sizes in found.items() if len(sizes) == 1}


def with_cores(
    plan: Plan,
    units: Sequence[Sequence[int]],
    inventory: NodeInventory,
    held: PreparedClaims,
    settings: PlanSettings,
    *,
    as_ranges: bool,
) -> Plan:
    """The plan of a claim that holds cores, with what its containers are told of them.

    Args:
        plan: without that.
        units: devices (indexes) that a container sees together: all of the claim, or those of each container.
        inventory: the node.
        held: claims that are prepared; the claim itself may be among them.
        settings: the administrator's choices.
        as_ranges: whether cores are written as ``4-7``, else as ``4,5,6,7``.

    Raises:
        PrepareError: the cores cannot be used with the claim's logical core size, or (by the settings) not together.
    """
    size = plan.core_size
    _check_size(plan, held)
    devices, warnings = list(plan.devices), list(plan.warnings)
    for unit in units:
        nodes = [node for index in unit if not devices[index].admin for node in devices[index].nodes]
        if not any(node.cores for node in nodes):
            continue
        _check_filled(nodes, size)
        ids = core_numbers(nodes, size, inventory)
        warnings += _contiguity(ids, settings)
        env = {VISIBLE_CORES: ranges(ids) if as_ranges else ",".join(map(str, ids))}
        for index in unit:
            devices[index] = replace(devices[index], env=env)
    return replace(plan, devices=tuple(devices), warnings=tuple(warnings))


def core_numbers(nodes: Iterable[ChipNode], size: int, inventory: NodeInventory) -> list[int]:
    """Numbers of the logical cores that a container with these chips is to use, ascending. ``size``: physical cores."""
    found: set[int] = set()
    for node in nodes:
        physical = inventory.physical_cores(node.chip) or 0
        first = node.number * (physical // size)
        found.update(first + core // size for core in node.cores or range(physical // size * size))
    return sorted(found)


def _check_size(plan: Plan, held: PreparedClaims) -> None:
    for part in plan.held:
        for holder in held.core_holders(part.chip, exclude=plan.uid):
            if holder.core_size != plan.core_size:
                raise PrepareError(
                    f"claim {holder.reference} ({holder.uid}) uses chip {part.chip} with logical cores of "
                    f"{_physical(holder.core_size)}, and this one is for logical cores of {plan.core_size}",
                    consequence=f"all cores of a chip are used with one size, so {_NOT_PREPARED}",
                    remedy=f"set logicalNeuronCore {holder.core_size} in the claim's NeuronConfig, or delete the pod "
                    "to get cores of another chip; kubelet tries again, and the size is free once no claim holds "
                    "cores of the chip",
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
