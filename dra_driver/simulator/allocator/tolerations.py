"""Which taints devices have by rules, and which of them a request tolerates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from dra_driver.simulator.objects import Device, DeviceTaint, DeviceTaintRule, DeviceToleration, ResourceSlice

BLOCKING = ("NoSchedule", "NoExecute")
"""Effects that keep a claim away; all others are ignored."""


def tainted(slices: Iterable[ResourceSlice], rules: Iterable[DeviceTaintRule]) -> Iterable[ResourceSlice]:
    """The slices as kube-scheduler sees them: with the taints of the rules beside those that drivers publish.

    Source: ``k8s.io/dynamic-resource-allocation/resourceslice/tracker``.
    """
    rules = tuple(rules)
    if not rules:
        return slices
    # Slices of nodes alike share their devices, told apart by id, and so they do afterwards.
    made: dict[tuple[int, tuple[DeviceTaint, ...]], tuple[Device, Device]] = {}

    def with_taints(item: ResourceSlice, device: Device) -> Device:
        added = tuple(rule.spec.taint for rule in rules if _selects(rule, item, device))
        if not added:
            return device
        # The device is kept, so its id stays its own.
        pair = made.setdefault((id(device), added), (device, replace(device, taints=(*device.taints, *added))))
        return pair[1]

    return [
        replace(item, spec=replace(item.spec, devices=tuple(with_taints(item, device) for device in item.spec.devices)))
        for item in slices
    ]


def _selects(rule: DeviceTaintRule, item: ResourceSlice, device: Device) -> bool:
    selector, spec = rule.spec.device_selector, item.spec
    return selector is not None and all(
        wanted in (None, own)
        for wanted, own in (
            (selector.driver, spec.driver),
            (selector.pool, spec.pool.name),
            (selector.device, device.name),
        )
    )


def tolerated(device: Device, tolerations: Sequence[DeviceToleration]) -> bool:
    """Whether every blocking taint of the device is tolerated."""
    return not device.taints or all(
        any(_tolerates(toleration, taint) for toleration in tolerations)
        for taint in device.taints
        if taint.effect in BLOCKING
    )


def _tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"
