"""Taints on their way to the API server: what servers get that keep them, and what those get that do not.

The latter (Kubernetes up to 1.35, or 1.36 and later without the feature gate DRADeviceTaints) drop the field without a
word. They are recognised by what they would store, before a sick chip is offered there as if it were well. They get no
taints; unhealthy devices that no claim holds are withdrawn instead, and come back when they are healthy. (The taint of
a node's workload is only left out: attributes say the same to classes of devices.) Devices that a claim holds stay,
since the scheduler counts what is allocated by the devices that are offered. This is the weaker way: between the look
at the claims and the write, the scheduler may allocate what is withdrawn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from dra_driver.driver.resourceslices.writer import TAINTS, trial
from dra_driver.kube.api.codec import ServerVersion
from dra_driver.kube.api.resources import ResourceApi
from dra_driver.kube.matching import BLOCKING
from dra_driver.kube.objects.resource import Device, DeviceTaint
from dra_driver.neuron.names import WORKLOAD_TAINT

_STRENGTH: Final = {"None": 1, "NoSchedule": 2, "NoExecute": 3}
_OLD: Final = (1, 35)
"""Before this release, with the feature gate on: at most four taints, and the effect None is invalid."""
_OLD_TAINTS: Final = 4

log = logging.getLogger(__name__)


def bare(devices: Iterable[Device]) -> tuple[Device, ...]:
    """The devices without their taints: what health alone does not change."""
    return tuple(replace(device, taints=()) if device.taints else device for device in devices)


def is_worse(before: Iterable[Device], after: Iterable[Device]) -> bool:
    """Whether some device has a new taint, or one of a stronger effect."""
    former = {(device.name, key): strength for device in before for key, strength in _strengths(device).items()}
    return any(
        strength > former.get((device.name, key), 0) for device in after for key, strength in _strengths(device).items()
    )


def _strengths(device: Device) -> dict[str, int]:
    strengths: dict[str, int] = {}
    for taint in device.taints:
        strengths[taint.key] = max(strengths.get(taint.key, 0), _STRENGTH.get(taint.effect, 1))
    return strengths


# Servers that do not keep taints


@dataclass(frozen=True, slots=True)
class Publication:
    """What to publish of devices with taints."""

    devices: tuple[Device, ...]
    withdrawn: frozenset[str] = frozenset()
    """Names of the unhealthy devices that are left out."""
    held: frozenset[str] = frozenset()
    """Names of the unhealthy devices that stay on offer without a taint, because a claim holds them."""


def unhealthy(devices: Iterable[Device]) -> frozenset[str]:
    """Names of the devices that are to be given to nobody."""
    return frozenset(
        device.name for device in devices if any(t.effect in BLOCKING for t in device.taints if _of_device(t))
    )


def _of_device(taint: DeviceTaint) -> bool:
    """Whether it says something of the device itself, and not of whom its node is allocated to."""
    return taint.key != WORKLOAD_TAINT


def without_unhealthy(devices: Sequence[Device], held: Collection[str] | None) -> Publication:
    """What to publish to a server that keeps no taints.

    Args:
        devices: with their taints.
        held: names of the devices that claims hold; None: not known, so it may be any.
    """
    sick = unhealthy(devices)
    stays = sick if held is None else sick.intersection(held)
    withdrawn = sick - stays
    return Publication(bare(device for device in devices if device.name not in withdrawn), withdrawn, stays)


def fit_taints(devices: Iterable[Device], server: ServerVersion) -> tuple[Device, ...]:
    """The devices with the taints that a server that keeps taints accepts."""
    release = server.release
    if release is None or release >= _OLD:
        return tuple(devices)
    return tuple(
        replace(device, taints=tuple(t for t in device.taints if t.effect in BLOCKING)[:_OLD_TAINTS])
        for device in devices
    )


@dataclass(slots=True)
class TaintPolicy:
    """What the API server gets of devices with taints. For one thread.

    The server is asked what it would store, at each choice: so an upgrade, or a feature gate that is turned on or off,
    is noticed at the next look.

    Args:
        api: the API server.
        driver: DRA driver name.
        node: name of the node, and of its pool.
        held: which of these devices claims hold now, by their names; None when that cannot be found out.
    """

    api: ResourceApi
    driver: str
    node: str
    held: Callable[[Collection[str]], Collection[str] | None]
    problem: str = ""
    """Why taints that there are now are not published, or ""."""
    _server: ServerVersion = field(default=ServerVersion())
    _logged: str = ""

    def choose(self, devices: tuple[Device, ...]) -> Publication:
        """What to publish now. ApiError when the server cannot be asked, which is where there are taints."""
        if not any(device.taints for device in devices):
            self.problem = ""
            return Publication(devices)
        self._server = server = self.api.known_version()
        probe = Device("trial", taints=(DeviceTaint("neuron.aws.com/trial", "", "NoSchedule", "2026-01-01T00:00:00Z"),))
        if TAINTS in (trial(self.api, self.driver, self.node, devices=(probe,)) or ()):
            return self.weaker(devices)
        if self._logged:
            log.info("the API server %s keeps taints: unhealthy devices are offered with them", server.git_version)
        self.problem = self._logged = ""
        return Publication(fit_taints(devices, server))

    def weaker(self, devices: tuple[Device, ...]) -> Publication:
        """What to publish while the server does not keep taints."""
        if not any(_of_device(taint) for device in devices for taint in device.taints):
            self.problem = self._logged = ""
            return Publication(bare(devices))
        self.problem = (
            f"the API server {self._server.git_version} does not keep device taints (Kubernetes before 1.36, or "
            "without the feature gate DRADeviceTaints), so unhealthy devices that no claim holds are withdrawn instead"
        )
        if self._logged != self.problem:
            log.warning("%s", self.problem)
            self._logged = self.problem
        sick = unhealthy(devices)
        return without_unhealthy(devices, self.held(sick) if sick else sick)
