"""What taints of devices say, in words and in pictures: those that a driver publishes and those of DeviceTaintRules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from dra_driver.kube.matching import BLOCKING
from dra_driver.kube.objects.resource import Device, DeviceTaint
from dra_driver.kube.objects.taint_rules import TaintOfRule
from dra_driver.neuron.health.faults import FAULTS, REMEDIES, SEVERITIES, Fault
from dra_driver.neuron.names import RETIRED, RETIRED_FOR_PLUGIN, WORKLOAD_TAINT
from dra_driver.neuron.topology.drawing import SIGNS, Sickness
from dra_driver.neuron.topology.partitions import chips_of


def written(taint: DeviceTaint) -> str:
    """``key=value:effect``, as kubectl writes taints."""
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def fault_of(taint: DeviceTaint) -> Fault | None:
    """The fault that a driver of Neuron chips published as this taint, whatever the domain of its keys; None: none.

    An administrator's rule says nothing about the chip, even if it has such a key.
    """
    domain, _, code = taint.key.rpartition("/")
    fault = FAULTS.get(code) if domain and not isinstance(taint, TaintOfRule) else None
    return fault if fault is not None and taint.value in SEVERITIES else None


def retired(taint: DeviceTaint) -> bool:
    """Whether the node's driver keeps the device only because a claim held it."""
    return taint.key == RETIRED and not isinstance(taint, TaintOfRule)


def of_workload(taint: DeviceTaint) -> bool:
    """Whether the node is allocated to an UltraServer workload, whose claims alone may tolerate it."""
    return taint.key == WORKLOAD_TAINT and not isinstance(taint, TaintOfRule)


def description(taint: DeviceTaint) -> str:
    """Such as ``the taint health.neuron.aws.com/hbm-uncorrectable=unhealthy:NoSchedule (uncorrectable errors ...)``."""
    if isinstance(taint, TaintOfRule):
        return f"the taint {written(taint)} by DeviceTaintRule {taint.rule}"
    if retired(taint):
        why = "because of a device plugin, " if taint.value == RETIRED_FOR_PLUGIN else ""
        return (
            f"the taint {written(taint)} ({why}the node no longer offers such devices, and keeps those that claims "
            "hold)"
        )
    if of_workload(taint):
        return f"the taint {written(taint)} (the node is allocated to the UltraServer workload of that UID)"
    fault = fault_of(taint)
    return f"the taint {written(taint)}" + (f" ({fault.text})" if fault is not None else "")


def is_unhealthy(taint: DeviceTaint) -> bool:
    """Whether a driver says by it that the chip may give wrong results or none."""
    return fault_of(taint) is not None and taint.value == "unhealthy" and taint.effect in BLOCKING


def way_out(taint: DeviceTaint) -> str:
    """What takes the taint away, as a clause; "" if that is not known."""
    if isinstance(taint, TaintOfRule):
        return (
            f"delete DeviceTaintRule {taint.rule} once its reason is gone (kubectl delete devicetaintrule {taint.rule})"
        )
    fault = fault_of(taint)
    if fault is None:
        return ""
    return f"wait until the chip is healthy again, or repair it: {REMEDIES[fault.remedy]}"


def sick(devices: Iterable[Device], chips: Sequence[int]) -> Mapping[int, Sickness]:
    """State of the chips that have a taint which says something; the gravest counts.

    Args:
        devices: of one node, with all their taints. One that stands for several chips does not tell which of them is
            sick, so its taints say nothing of chips that are offered on their own, or as cores.
        chips: host indexes of the node's chips.
    """
    alone: dict[int, set[Sickness]] = {}
    together: dict[int, set[Sickness]] = {}
    offered: set[int] = set()
    for device in devices:
        own = {*(chips_of(device.name, chips) or ())} & {*chips}
        state = _state(device.taints)
        if len(own) == 1:
            offered |= own
        if state is not None:
            for index in own:
                (alone if len(own) == 1 else together).setdefault(index, set()).add(state)
    states = {index: those for index, those in together.items() if index not in offered} | alone
    return {index: next(state for state in SIGNS if state in those) for index, those in states.items()}


def _state(taints: Sequence[DeviceTaint]) -> Sickness | None:
    states = {state for taint in taints if (state := _sickness(taint)) is not None}
    return next((state for state in SIGNS if state in states), None)


def _sickness(taint: DeviceTaint) -> Sickness | None:
    if retired(taint) or of_workload(taint):
        return None
    if fault_of(taint) is not None:
        return next(severity for severity in SEVERITIES if severity == taint.value)
    return "tainted" if taint.effect in BLOCKING else None


def lines(devices: Iterable[Device]) -> Iterator[str]:
    """A line for each taint of each device."""
    for device in devices:
        for taint in device.taints:
            yield f"{device.name} has {description(taint)}"
