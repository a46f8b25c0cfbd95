"""Faults of emulated chips, and what the cluster is told of them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.cluster import Cluster

from dra_driver.neuron.health.faults import TAINT_DOMAIN
from tests.cluster.lib.installation import Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.lifecycle import kept_host, renew_driver, set_boot_id

SEEN_SECONDS = 45.0
"""From a fault to what follows from it, on an emulated host: two scans, and the pause between two writes of slices."""


@dataclass
class SickHost:
    """The emulated host of one node, whose chips can be given faults."""

    root: Path
    """As this machine sees it."""
    _lines: dict[str, str] = field(default_factory=dict)

    def fail(self, *faults: str) -> None:
        """Add faults such as ``hbm-uncorrectable@3``."""
        self._lines |= dict.fromkeys(faults, "")
        self._write()

    def mend(self, *faults: str) -> None:
        """Take faults back; none: all."""
        for fault in faults or tuple(self._lines):
            del self._lines[fault]
        self._write()

    def is_mended(self) -> bool:
        """Whether every chip is there, and neither its counters nor its firmware say anything of a fault."""
        chips = [self.root / f"sys/devices/virtual/neuron_device/neuron{index}" for index in range(16)]
        files = [path for chip in chips for path in chip.glob("stats/hardware/*_uncorrected")]
        files += [chip / "stats/hardware/health_status/unhealthy_components" for chip in chips]
        states = [chip / "reset" for chip in chips]
        return (
            all(path.exists() and path.read_text().strip() in {"", "0"} for path in files)
            and len(files) == 16 * 4
            and all(path.read_text().strip() == "1" for path in states)
        )

    def _write(self) -> None:
        new = self.root / "faults.new"
        new.write_text("".join(f"{line}\n" for line in self._lines))
        new.rename(self.root / "faults")


def healthy_host(lab: Cluster, installation: Installation, node: str) -> SickHost:
    """The emulated host of a driver that has just started: with all the writes of slices that health has in an hour.

    ``keep_emulated_host`` has to have kept it.
    """
    root = kept_host(lab, node, renew_driver(installation, node))
    # A boot: what an earlier test did to the node's chips is forgotten.
    set_boot_id(root, str(uuid.uuid4()))
    wait_taints(installation.kube, node, {})
    return SickHost(root)


def taints(kube: Kube, node: str) -> Mapping[str, Sequence[Object]]:
    """Taints of the node's devices by name of the device; devices without are left out."""
    devices = [device for item in kube.slices(node) for device in item["spec"].get("devices") or ()]
    return {device["name"]: device["taints"] for device in devices if device.get("taints")}


def wait_taints(kube: Kube, node: str, wanted: Mapping[str, Mapping[str, str]], within: float = SEEN_SECONDS) -> None:
    """Wait until ``has_taints``."""
    eventually(f"the taints of {node} to be {wanted}", lambda: has_taints(kube, node, wanted), within)


def condition(kube: Kube, node: str) -> Object | None:
    """The condition NeuronHealth of a Node; None when it has none."""
    found = kube.get("nodes", node)
    assert found is not None
    conditions = found["status"].get("conditions", ())
    return next((entry for entry in conditions if entry["type"] == "NeuronHealth"), None)


def node_events(kube: Kube, node: str) -> list[Object]:
    """Events about a Node that tell its chips' health."""
    found = kube.find("events", "default", fields=f"involvedObject.kind=Node,involvedObject.name={node}")
    return [event for event in found if str(event.get("reason", "")).startswith("Neuron")]


def resource_health(pod: Object | None) -> list[tuple[str, str]]:
    """Health and message of each device that kubelet shows in a pod's status."""
    statuses = pod["status"].get("containerStatuses", ()) if pod else ()
    return [
        (str(resource.get("health", "")), str(resource.get("message", "")))
        for status in statuses
        for entry in status.get("allocatedResourcesStatus", ())
        for resource in entry.get("resources", ())
    ]


def has_taints(kube: Kube, node: str, wanted: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether exactly these devices have exactly these taints: fault code to effect by name of the device."""
    found = {
        name: {taint["key"].removeprefix(f"{TAINT_DOMAIN}/"): taint["effect"] for taint in each}
        for name, each in taints(kube, node).items()
    }
    return found == wanted
