"""The driver's files on a node of the lab, as the host sees them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from lab.node import Node

from dra_driver.legacy.rules import NeuronResource
from tests.cluster.lib.kube import Kube, Object

_SPEC_PREFIX = "k8s.neuron.aws.com-claim_"


@dataclass(frozen=True)
class NodeFiles:
    """The driver's files on one node."""

    node: Node

    @property
    def cdi(self) -> Path:
        """The CDI directory."""
        return self.node.layout.cdi

    @property
    def state(self) -> Path:
        """The driver's own directory: sockets, ``claims/``, ``quarantine/``."""
        return self.node.layout.kubelet / "plugins/neuron.aws.com"

    @property
    def registry(self) -> Path:
        """The directory of registration sockets."""
        return self.node.layout.kubelet / "plugins_registry"

    def specs(self) -> dict[str, Object]:
        """The driver's CDI specs by claim UID."""
        paths = sorted(self.cdi.glob(f"{_SPEC_PREFIX}*.json"))
        return {path.stem.removeprefix(_SPEC_PREFIX): json.loads(path.read_text()) for path in paths}

    def checkpoint(self) -> dict[str, Object]:
        """The checkpoint's entries by claim UID."""
        paths = sorted((self.state / "claims").glob("*.json"))
        return {path.stem: json.loads(path.read_text())["entry"] for path in paths}

    def forget_device_plugins(self, kube: Kube) -> None:
        """Restart kubelet without what it remembers of device plugins and of pods that had their devices.

        For five minutes after a plugin has left, the node's capacity has its devices. A kubelet that does not know the
        plugin takes them for allocatable again.
        """
        self.node.stop_kubelet()
        nothing: dict[str, None] = dict.fromkeys(resource.value for resource in NeuronResource)
        patch = json.dumps({"status": {"capacity": nothing, "allocatable": nothing}})
        kube.kubectl("patch", "node", self.node.name, "--subresource=status", "--type=merge", "-p", patch)
        (self.node.layout.kubelet / "device-plugins/kubelet_internal_checkpoint").unlink(missing_ok=True)
        self.node.start_kubelet()

    def is_empty(self) -> bool:
        """Whether no claim is prepared and nothing of one is left."""
        return not self.specs() and not self.checkpoint()

    def sockets(self) -> list[str]:
        """Names of the driver's sockets in both of kubelet's directories."""
        found = [*self.registry.glob("neuron.aws.com*"), *self.state.iterdir()]
        return sorted(path.name for path in found if path.is_socket())

    def shown(self, uid: str) -> dict[int, int]:
        """Chip of the host by number in the container, as the CDI spec of a claim has it."""
        nodes = [node for device in self.specs()[uid]["devices"] for node in device["containerEdits"]["deviceNodes"]]
        return {_number(node["path"]): _number(node.get("hostPath", node["path"])) for node in nodes}

    def log_tail(self, kind: str = "kubelet", lines: int = 40) -> str:
        """The last lines of the log of ``kubelet`` or ``containerd``."""
        return "\n".join(self.node.log(kind).read_text(errors="replace").splitlines()[-lines:])


def _number(path: str) -> int:
    return int(path.removeprefix("/dev/neuron"))
