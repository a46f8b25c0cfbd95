"""Which pod holds which device and which chip, for the metrics; and which pods have devices from a device plugin.

The devices are those of prepared claims. Two sources tell who uses them:

* kubelet's PodResources API (KEP-3695): pods and containers. The driver asks it when the prepared claims change, and
  every minute, since a pod that joins a prepared claim causes no call to the driver.
* the claim's ``status.reservedFor``, as the driver read it when it prepared the claim and reads it again in repairs:
  pods with their UIDs, and no containers.

A scrape reads what is known and asks nobody. Of pods of a device plugin (``exclusion``), kubelet alone tells.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from dra_driver.driver.claims.model import Plan, PlannedDevice
from dra_driver.kube.kubelet.client import CallError
from dra_driver.kube.kubelet.podresources import SOCKET, ClaimUse, PodDevices
from dra_driver.neuron.exclusion import node_pods, pods_of_plugins
from dra_driver.neuron.names import CDI_KIND
from dra_driver.util import runtime
from dra_driver.util.files import UUID_LENGTH
from dra_driver.util.metrics import Sample
from dra_driver.util.worker import Worker

MOST_SERIES: Final = 1000
"""Of each metric. A claim may be shared by 256 pods of some containers each, and have many devices."""

LOOK_SECONDS: Final = 1.0
"""Between two looks at the own index of prepared claims, which cost nothing."""
AGAIN_SECONDS: Final = 60.0
"""Between two questions to kubelet while nothing is known to have changed."""
PLUGIN_SECONDS: Final = 5.0
"""The same while pods have devices from a device plugin: their chips come back when they have ended."""
LINGER_SECONDS: Final = 10.0
"""A kubelet that has just started knows neither its plugins nor its pods: so long, both are believed to be there."""
REST: Final = 4
"""Times as long as a list took to read, up to ``AGAIN_SECONDS``, nobody asks for another: tenants make it long."""
SETTLE_LOOKS: Final = 5
"""Looks after a change at which the driver asks kubelet again, while it does not name a container of each claim."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Devices of one claim that one container uses. ``pod``, ``pod_uid`` and ``container`` are "" where not known."""

    devices: tuple[PlannedDevice, ...]
    """At least one."""
    namespace: str
    claim: str
    pod: str
    pod_uid: str
    container: str
    unnamed: int = 0
    """It stands for so many containers, too many to name each; 0: for one."""


def allocations(
    plans: Iterable[Plan], listed: Iterable[PodDevices], consumers: Callable[[Plan], Sequence[tuple[str, str]]]
) -> Iterator[DeviceUse]:
    """Who uses what, without repetition, by claim, then user. Devices with admin access are looked at, not used.

    Each container makes a series at least, so of those above ``MOST_SERIES`` there are numbers only.

    Args:
        plans: of the prepared claims.
        listed: the node's pods as kubelet tells, () when that is not known.
        consumers: names and UIDs of the pods that a claim is reserved for.
    """
    users = _users(listed)
    room = MOST_SERIES
    for plan in sorted(plans, key=lambda plan: (plan.namespace, plan.name, plan.uid)):
        devices = {(device.pool, device.device): device for device in plan.devices if not device.admin}
        uids = dict(consumers(plan))
        listed_devices: set[tuple[str, str]] = set()
        for pod, use in sorted(users.get((plan.namespace, plan.name), ()), key=lambda item: item[0]):
            keys = devices.keys() & use.claim.devices
            if not keys:
                continue
            listed_devices |= keys
            common = tuple(devices[key] for key in sorted(keys))
            names = sorted(use.containers)[:room]
            room -= len(names)
            for container in names:
                yield DeviceUse(common, plan.namespace, plan.name, pod, uids.get(pod, ""), container)
            if unnamed := use.unnamed + len(use.containers) - len(names):
                yield DeviceUse(common, plan.namespace, plan.name, pod, uids.get(pod, ""), "", unnamed)
        if others := tuple(devices[key] for key in sorted(devices.keys() - listed_devices)):
            pods = list(uids) or [""]
            for pod in pods[:room]:
                yield DeviceUse(others, plan.namespace, plan.name, pod, uids.get(pod, ""), "")
            if unnamed := len(pods[room:]):
                yield DeviceUse(others, plan.namespace, plan.name, "", "", "", unnamed)
            room -= len(pods[:room])


def _users(listed: Iterable[PodDevices]) -> dict[tuple[str, str], list[tuple[str, ClaimUse]]]:
    """Names of pods, with their uses of a claim, by its namespace and name."""
    users: dict[tuple[str, str], list[tuple[str, ClaimUse]]] = {}
    for listing in listed:
        for use in listing.claims:
            users.setdefault((listing.namespace, use.claim.name), []).append((listing.name, use))
    return users


def allocation_samples(uses: Iterable[DeviceUse]) -> Iterator[Sample]:
    """One series for each device and container, one for each chip and container, and how many did not fit."""
    device_rows: list[tuple[tuple[str, str], ...]] = []
    chip_rows: list[tuple[tuple[str, str], ...]] = []
    omitted = 0
    for (user, unnamed), group in groupby(uses, key=lambda use: (_labels(use), use.unnamed)):
        devices = [device for use in group for device in use.devices]
        chips = sorted({node.chip for device in devices for node in device.nodes})
        for rows, firsts in (
            (device_rows, [(("device", device.device),) for device in devices]),
            (chip_rows, [(("device", f"neuron{chip}"), ("neuron_device_index", str(chip))) for chip in chips]),
        ):
            room = 0 if unnamed else max(0, MOST_SERIES - len(rows))
            rows += [(*first, *user) for first in firsts[:room]]
            omitted += max(1, unnamed) * len(firsts[room:])
    for name, text, rows in (
        ("device_allocation", "Devices of prepared claims by container; always 1.", device_rows),
        ("chip_allocation", "Chips of prepared claims, whole or in part, by container; always 1.", chip_rows),
    ):
        for labels in rows:
            yield Sample(name, text, 1, labels)
    yield Sample("allocations_omitted", "Series of allocations that are left out, as there are too many.", omitted)


def _labels(item: DeviceUse) -> tuple[tuple[str, str], ...]:
    return (
        ("namespace", item.namespace),
        ("pod", item.pod),
        ("pod_uid", item.pod_uid),
        ("container", item.container),
        ("claim", item.claim),
    )


def claims_in_use(kubelet_directory: Path) -> frozenset[str]:
    """UIDs of the claims whose devices kubelet lists for containers; none where its socket is missing. CallError."""
    pods = node_pods(kubelet_directory) if (kubelet_directory / SOCKET).exists() else ()
    names = {name for pod in pods for use in pod.claims for name in use.claim.cdi_devices}
    return frozenset(name.removeprefix(f"{CDI_KIND}=")[:UUID_LENGTH] for name in names)


class ContainerWatch:
    """Keeps kubelet's list of pods and their devices.

    Without its socket, neither containers nor pods of a device plugin are known, and nothing else is different.

    Args:
        kubelet_directory: where kubelet's socket is, if it is mounted.
        plans: the prepared claims whose containers are of interest; costs nothing.
        on_plugin_pods: called when ``plugin_pods`` is another one, and after the question of ``ask_later``.
    """

    def __init__(
        self, kubelet_directory: Path, plans: Callable[[], Collection[Plan]], on_plugin_pods: Callable[[], None]
    ) -> None:
        self._directory = kubelet_directory
        self._plans = plans
        self._on_plugin_pods = on_plugin_pods
        self._due = math.inf
        """When the question of ``ask_later`` is due."""
        self._last_seen: dict[tuple[str, str], tuple[float, PodDevices]] = {}
        """When kubelet listed a pod with devices from a device plugin last, by namespace and name."""
        self._seen: frozenset[str] = frozenset()
        """UIDs of the claims at the last question."""
        self._looks = 0
        """Since the last change of the claims."""
        self._since = 0.0
        """Seconds since the last question."""
        self._rest = 0.0
        """Seconds that have to pass between the last question and the next."""
        self.problem = ""
        """Why kubelet's list is not known, or ""."""
        self.plugin_pods: tuple[PodDevices, ...] | None = None
        """Pods with devices from a device plugin; None: kubelet has not said yet."""
        self.listed: tuple[PodDevices, ...] = ()
        """kubelet's last list of pods with claims of this driver. Replaced as a whole; any thread may read it."""
        self.worker = Worker("asking kubelet which containers have devices", self._round)

    def start(self) -> None:
        """Ask kubelet, and follow from now on, in a thread."""
        self._ask()
        self.worker.start()

    def ask_later(self) -> None:
        """Ask kubelet once it must know its pods: the node's device plugin has gone."""
        self._due = runtime.monotonic() + LINGER_SECONDS

    def _round(self) -> float:
        if self._since + LOOK_SECONDS < self._rest:
            self._since += LOOK_SECONDS
            return LOOK_SECONDS
        plans = self._plans()
        uids = frozenset(plan.uid for plan in plans)
        self._since += LOOK_SECONDS
        self._looks = 0 if uids != self._seen else self._looks + 1
        self._seen = uids
        if not uids:
            self.listed = ()
        claims = bool(uids) and (self._looks == 0 or (self._looks <= SETTLE_LOOKS and self._incomplete(plans)))
        again = PLUGIN_SECONDS if self.plugin_pods else LOOK_SECONDS if self.plugin_pods is None else AGAIN_SECONDS
        if claims or self._since >= again or runtime.monotonic() >= self._due:
            self._ask()
        return LOOK_SECONDS

    def _incomplete(self, plans: Collection[Plan]) -> bool:
        listed = {(pod.namespace, use.claim.name) for pod in self.listed for use in pod.claims}
        return any((plan.namespace, plan.name) not in listed for plan in plans)

    def _ask(self) -> None:
        self._since = self._rest = 0.0
        pods: Sequence[PodDevices] = ()
        problem = ""
        if not (self._directory / SOCKET).exists():
            problem = f"{self._directory / SOCKET} is not there"
        else:
            began = runtime.monotonic()
            try:
                pods = node_pods(self._directory)
            except CallError as error:
                self._tell(error.what)  # the list of before still holds for containers that go on
                return
            self._rest = min(REST * (runtime.monotonic() - began), AGAIN_SECONDS)
        self.listed = tuple(pod for pod in pods if pod.claims)
        self._tell(problem)
        self._saw(pods_of_plugins(pods))

    def _saw(self, pods: Collection[PodDevices]) -> None:
        now = runtime.monotonic()
        self._last_seen = {key: seen for key, seen in self._last_seen.items() if now - seen[0] < LINGER_SECONDS} | {
            (pod.namespace, pod.name): (now, pod) for pod in pods
        }
        before, self.plugin_pods = self.plugin_pods, tuple(pod for _, pod in self._last_seen.values())
        asked = now >= self._due
        if asked:
            self._due = math.inf
        if asked or before != self.plugin_pods:
            self._on_plugin_pods()

    def _tell(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning(
                "kubelet does not list its pods, so metrics name no containers, and chips of a device plugin's pods "
                "are not known: %s",
                problem,
            )
        self.problem = problem
