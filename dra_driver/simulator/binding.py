"""Devices for which a pod waits after they are allocated, before it is bound to its node (KEP-5007)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dra_driver.kube.objects.resource import ResourceClaim
from dra_driver.util.text import first_of

_SHOWN: Final = 4


def waits(claims: Sequence[ResourceClaim]) -> Iterator[str]:
    """What a pod with these allocated claims waits for, a sentence for each driver and its conditions."""
    devices: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for claim in claims:
        for result in claim.status.results:
            if result.binding_conditions:
                key = (result.driver, result.binding_conditions, result.binding_failure_conditions)
                devices.setdefault(key, []).append(result.device)
    for (driver, conditions, failures), names in devices.items():
        yield (
            f"kube-scheduler binds the pod when {driver} has set {first_of(conditions, _SHOWN)} of "
            f"{first_of(names, _SHOWN)} in the claim's status; it waits ten minutes, then, or with "
            f"{first_of(failures, _SHOWN)}, it frees the devices and schedules the pod anew"
        )
