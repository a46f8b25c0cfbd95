"""Ensures that only one of the DRA driver and a device plugin gives chips away: neither knows the other's pods.

Both look before they begin, and for as long as they run. The DRA driver holds back the chips that a device plugin (of
this project or of the vendor) may give away: all, while the Node's status has the plugin's resources; thereafter those
of the plugin's pods, which kubelet lists. It goes on serving prepared claims, whose devices stay published. The device
plugin looks at the node's slices and at the claims of its pods, and exits if it finds any. So whichever has given
devices away goes on, and the other one gives way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import ResourceApi
from dra_driver.kube.kubelet.podresources import PodDevices, list_pods
from dra_driver.kube.objects.core import Node
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.instance_types import lookup
from dra_driver.util.errors import DriverError
from dra_driver.util.text import first_of, ranges, shorten

RESOURCES: Final = "aws.amazon.com/neuron"
"""Begin of the names of all extended resources of device plugins for Neuron."""
_CHIP: Final = frozenset({RESOURCES, "aws.amazon.com/neurondevice"})
_CORE: Final = "aws.amazon.com/neuroncore"
_SHOWN: Final = 3
"""Resources or pods that a text names."""
_DIGITS: Final = 4
"""Of the largest id."""
CHOOSE: Final = (
    "run one of the two on each node: a node selector on their DaemonSets keeps them apart (in the chart: "
    "draDriver.enabled and devicePlugin.enabled)"
)
"""The remedy."""
_NONE: Final = "the DRA driver offers only devices that claims hold"


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What the DRA driver does not offer anew because of a device plugin."""

    chips: frozenset[int] = frozenset()
    """Host indexes."""
    problem: str = ""
    """Why; "" if there are none."""
    for_tenants: str = ""
    """The same where ``problem`` names pods, without them: they may be of any namespace."""


def plugin_offers(node: Node) -> str:
    """What a device plugin offers of the node, such as ``aws.amazon.com/neuron: 16``; "" if nothing."""
    counts = sorted((name, count) for name, count in node.status.allocatable.items() if name.startswith(RESOURCES))
    return first_of([f"{name}: {count}" for name, count in counts if count != "0"], _SHOWN)


def node_pods(kubelet_directory: Path) -> tuple[PodDevices, ...]:
    """All pods of the node, with their Neuron devices, as kubelet lists them now. Raises CallError."""
    return list_pods(kubelet_directory, resources=RESOURCES, driver=DRIVER_NAME)


def pods_of_plugins(listed: Iterable[PodDevices]) -> tuple[PodDevices, ...]:
    """The pods that have Neuron devices from a device plugin."""
    return tuple(pod for pod in listed if any(_ids(pod)))


def held_back(plugin: str, pods: Sequence[PodDevices] | None, inventory: NodeInventory) -> HeldBack:
    """What the DRA driver has to hold back.

    Args:
        plugin: what a device plugin offers (``plugin_offers``).
        pods: those that have devices of one (``pods_of_plugins``); None: not known.
        inventory: the chips of the node.
    """
    chips = frozenset(inventory.chip_indexes)
    if plugin:
        return HeldBack(chips, f"a device plugin offers the Neuron devices of this node ({plugin}): {_NONE}; {CHOOSE}")
    if pods is None:
        return HeldBack(chips, f"kubelet does not list the pods that have devices from a device plugin: {_NONE}")
    has: list[str] = []
    taken: set[int] = set()
    for pod in pods:
        name = f"{pod.namespace}/{pod.name}"
        own: set[int] = set()
        for resource, text in sorted(_ids(pod)):
            named = _named(resource, text, inventory) & chips
            if not named:
                device = f"device {shorten(text, 63)} of {resource}"
                has_it = f"has {device} from a device plugin, which may be any chip: {_NONE} until it ends"
                return HeldBack(chips, f"pod {name} {has_it}", f"a pod {has_it}")
            own |= named
        taken |= own
        has.append(f"{name} has neuron {ranges(sorted(own))}")
    if not has:
        return HeldBack()
    return HeldBack(
        frozenset(taken),
        f"pods have chips from a device plugin ({first_of(has, _SHOWN)}): the DRA driver does not offer these chips "
        "until the pods end",
        "pods have such chips from a device plugin: the DRA driver does not offer these until the pods end",
    )


def _ids(pod: PodDevices) -> Iterator[tuple[str, str]]:
    """Resource and id of each device that the pod has from a device plugin."""
    for resources in pod.containers.values():
        for name, ids in resources.items():
            if name.startswith(RESOURCES):
                yield from ((name, text) for text in ids)


def _named(resource: str, text: str, inventory: NodeInventory) -> frozenset[int]:
    """The chips that an id may stand for; none where it does not tell.

    Logical cores are counted through all chips. Which size they had when the pod got them is not known, so the chips
    are those of each size that there is.
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        return frozenset()
    if resource in _CHIP:
        return frozenset({int(text)})
    kind = lookup(inventory.instance_type)
    if resource != _CORE or kind is None:
        return frozenset()
    return frozenset(int(text) // (kind.cores_per_device // size) for size in kind.lnc_values)


class Excluded(DriverError):  # noqa: N818 # reads as what it says: `except Excluded`
    """The DRA driver has chips of this node."""


def check_slices(api: ResourceApi, node: str) -> None:
    """Raise Excluded if the DRA driver publishes devices of the node, or ApiError if that cannot be determined."""
    try:
        slices, _ = api.list_slices(DRIVER_NAME, node)
    except ApiError as error:
        if error.reason == "NotServed":
            return  # a cluster without Dynamic Resource Allocation
        raise
    devices = [device.name for item in slices for device in item.spec.devices]
    if devices:
        raise Excluded(
            f"the DRA driver {DRIVER_NAME} publishes {len(devices)} devices of node {node} ({devices[0]}, ...)",
            consequence="the device plugin must not offer the same chips again, so it exits",
            remedy=f"{CHOOSE}; if the DRA driver was uninstalled, delete its ResourceSlices of this node",
        )


def check_claims(node: str, listed: Iterable[PodDevices]) -> None:
    """Raise Excluded if a pod of the node has chips allocated by a claim."""
    for pod in listed:
        if pod.claims:
            raise Excluded(
                f"pod {pod.namespace}/{pod.name} on node {node} has chips by a claim of the DRA driver {DRIVER_NAME}",
                consequence="the device plugin could give them to other pods, too, so it exits",
                remedy="delete such pods first",
            )
