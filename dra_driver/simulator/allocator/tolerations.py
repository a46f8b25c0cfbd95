"""Which taints a request tolerates."""

from __future__ import annotations

from collections.abc import Sequence

from dra_driver.simulator.objects import Device, DeviceTaint, DeviceToleration

BLOCKING = ("NoSchedule", "NoExecute")
"""Effects that keep a claim away; all others are ignored."""


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
