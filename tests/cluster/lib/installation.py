"""The driver as installed by ``install-dra-driver.sh``, and what a test may look at of it."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from tests.cluster.lib.kube import Kube, Object, eventually
from tests.paths import ROOT

INSTALLER = ROOT / "scripts/install-dra-driver.sh"
NAMESPACE = "neuron-dra-driver"
DAEMONSET = "neuron-dra-driver-kubelet-plugin"
SERVICE_ACCOUNT = "neuron-dra-driver-sa"
LABELS = f"app={DAEMONSET}"
EMULATED = "trn2.48xlarge"
EMULATED_ULTRASERVER = "trn2u.48xlarge"
ULTRASERVERS = "2x4"
"""Two UltraServers of four nodes: node-1 to node-4 and node-5 to node-8."""
_ABSENT = ("absent",)


class Installation:
    """The driver on the cluster under test. Remembers what is installed, so that asking again costs nothing."""

    def __init__(self, kube: Kube, kubectl: Sequence[str], image: str) -> None:
        self.kube = kube
        self.image = image
        self._kubectl = shlex.join(kubectl)
        self._installed: tuple[str, ...] | None = None

    def ensure_absent(self) -> None:
        """Uninstall unless that was the last thing done; returns when nothing of the driver is left."""
        if self._installed == _ABSENT:
            return
        self.uninstall()
        eventually("the namespace to be gone", lambda: self.kube.get("namespaces", NAMESPACE) is None, 90)
        eventually("the slices to be gone", lambda: not self.kube.slices(), 60)
        self._installed = _ABSENT

    def run(
        self, *arguments: str, check: bool = True, timeout: float = 150.0, directory: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the installer with ``--yes``; what it says to people is on standard error."""
        command = [str(INSTALLER), "--yes", "--kubectl", self._kubectl, *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout, cwd=directory)
        assert not check or done.returncode == 0, f"{' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done

    def install(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Install with these options, of which ``--emulate`` is one, whatever was there."""
        self._installed = None
        done = self.run("--reset", "--timeout", "120", *options, self.image)
        self._wait_settled(options[options.index("--emulate") + 1])
        self._installed = options
        return done

    def ensure(self, *options: str) -> None:
        """Install with these options unless that was the last thing done; nothing is tainted by a test before."""
        if self._installed == options:
            self._wait_settled()
        else:
            self.install(*options)

    def vary(self, name: str, change: Callable[[Object], None]) -> None:
        """Install a variant unless it is the last thing done: ``change`` gets the DaemonSet that --emulate makes.

        Applied as the installer applies, so that its next run takes everything back that the variant added.
        """
        variant = (name, change.__module__, change.__qualname__)  # files may use one name for changes of their own
        if self._installed == variant:
            return
        self._installed = None
        rendered = self.run("--dry-run", "--emulate", EMULATED, self.image).stdout
        objects = [item for item in yaml.safe_load_all(rendered) if item]
        for item in objects:
            if item["kind"] == "DaemonSet":
                change(item)
        self.kube.apply(*objects)
        self.wait_ready(90)
        self._wait_settled()
        self._installed = variant

    def changed(self) -> None:
        """Say that a test changed the installation in another way, so that ``ensure`` installs again."""
        self._installed = None

    def uninstall(self) -> None:
        """Remove the driver, whether or not claims use it."""
        self._installed = None
        self.run("--uninstall", "--force", "--timeout", "60")

    # What runs

    def pods(self, node: str = "") -> list[Object]:
        """The driver's pods, of one node or of all, newest first."""
        fields = f"spec.nodeName={node}" if node else ""
        found = self.kube.find("pods", NAMESPACE, labels=LABELS, fields=fields)
        return sorted(found, key=lambda item: str(item["metadata"]["creationTimestamp"]), reverse=True)

    def pod(self, node: str) -> Object:
        """The driver's pod on a node that is not about to end."""
        (found,) = [item for item in self.pods(node) if "deletionTimestamp" not in item["metadata"]]
        return found

    def daemonset(self) -> Object:
        """The DaemonSet."""
        found = self.kube.get("daemonsets", DAEMONSET, NAMESPACE)
        assert found is not None, "the driver is not installed"
        return found

    def wait_ready(self, within: float = 60.0) -> None:
        """Wait until every node's pod is of the current version and Ready, and no other is left."""

        def probe() -> bool:
            found = self.daemonset()
            status = found["status"]
            wanted = status["desiredNumberScheduled"]
            current = status.get("observedGeneration", 0) >= found["metadata"]["generation"]
            ready = wanted == status.get("updatedNumberScheduled", 0) == status.get("numberReady", 0)
            return bool(current and ready and len(self.pods()) == wanted)

        eventually("the driver to be ready on every node", probe, within)

    def _wait_settled(self, instance_type: str = "") -> None:
        """Wait until nothing is on offer that was only offered before, nor sick, nor of nodes of another type."""

        def probe() -> bool:
            devices = [device for item in self.kube.slices() for device in item["spec"].get("devices") or ()]
            if any(device.get("taints") for device in devices):
                return False
            if not instance_type:
                return True
            return {device["attributes"]["instanceType"]["string"] for device in devices} == {instance_type}

        # Devices stay for some seconds, until drivers know that no claim holds them; so do faults that are over.
        eventually(f"slices of {instance_type or 'this setting'} alone", probe, 60, every=0.5)

    def logs(self, node: str, *options: str) -> str:
        """Log of the driver on a node."""
        return self.kube.kubectl("--namespace", NAMESPACE, "logs", self.pod(node)["metadata"]["name"], *options)

    def exec(self, node: str, *command: str, check: bool = True) -> str:
        """Standard output of a command in the driver's container on a node."""
        name = self.pod(node)["metadata"]["name"]
        return self.kube.kubectl("--namespace", NAMESPACE, "exec", name, "--", *command, check=check)

    def patch(self, patch: str, kind: str = "strategic") -> None:
        """Patch the DaemonSet; ``ensure`` installs again, which takes back changes, not additions."""
        self.changed()
        self.kube.kubectl("--namespace", NAMESPACE, "patch", "daemonset", DAEMONSET, f"--type={kind}", "-p", patch)
