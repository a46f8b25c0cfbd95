"""The driver and a device plugin that looks at nothing, on one node, with a real kubelet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from lab.cluster import Cluster

from dra_driver.kube.kubelet.deviceplugin import ContainerDevices, DevicePlugin, PluginDevice
from dra_driver.neuron.health.condition import DEVICE_PLUGIN
from tests.cluster.lib.installation import EMULATED, Installation
from tests.cluster.lib.installation import NAMESPACE as DRIVER_NAMESPACE
from tests.cluster.lib.kube import Kube, eventually
from tests.cluster.lib.lifecycle import wait_driver_ready
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import asking, pod, request, template

NODE = "node-1"
NEURON = "aws.amazon.com/neuron"
CHIPS = 16


class Others:
    """A device plugin of somebody else, which gives nothing but the count."""

    def prefer(self, available: frozenset[str], must_include: frozenset[str], size: int) -> Sequence[str]:
        return []

    def allocate(self, ids: frozenset[str]) -> ContainerDevices:
        return ContainerDevices(env={"GIVEN": ",".join(sorted(ids))})


class Plugin:
    """It comes and goes."""

    def __init__(self, lab: Cluster, kube: Kube) -> None:
        self._directory = lab.node(NODE).layout.kubelet
        self._kube = kube
        self._running: DevicePlugin | None = None

    def come(self) -> None:
        self._running = DevicePlugin(NEURON, Others(), kubelet_directory=self._directory, name="others")
        self._running.update([PluginDevice(str(index)) for index in range(CHIPS)])
        self._running.start()
        eventually("the plugin's chips in the Node's status", lambda: self.allocatable() == CHIPS, 60)

    def go(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None
            eventually("no chips in the Node's status", lambda: self.allocatable() == 0, 60)

    def allocatable(self) -> int:
        found = self._kube.get("nodes", NODE) or {}
        return int(found.get("status", {}).get("allocatable", {}).get(NEURON, "0"))


@pytest.fixture
def plugin(lab: Cluster, kube: Kube, installation: Installation) -> Iterator[Plugin]:
    installation.ensure("--emulate", EMULATED)
    wait_driver_ready(installation, NODE)
    made = Plugin(lab, kube)
    yield made
    made.go()
    eventually("everything on offer again", lambda: len(offered(kube)) == CHIPS, 60)


def offered(kube: Kube) -> set[str]:
    return {device["name"] for item in kube.slices(NODE) for device in item["spec"].get("devices", ())}


def conditions(kube: Kube) -> list[str]:
    found = (kube.get("nodes", NODE) or {})["status"]["conditions"]
    return [item["message"] for item in found if item["type"] == DEVICE_PLUGIN.type]


def test_what_a_plugin_may_give_away_no_claim_gets_whoever_came_first(
    plugin: Plugin, kube: Kube, namespace: Namespace, installation: Installation
) -> None:
    namespace.apply(template("one", request()), pod("claims", templates={"neurons": "one"}, node=NODE))
    namespace.wait_ready("claims")
    (own,) = {item.device for item in namespace.allocated(namespace.claim_of("claims"))}

    plugin.come()
    eventually("only the claim's device on offer", lambda: offered(kube) == {own}, 60)
    said = eventually("the Node's condition", lambda: conditions(kube), 60)[0]
    assert said.startswith(f"a device plugin offers the Neuron devices of this node ({NEURON}: 16)")
    namespace.apply(asking("limits", {"main": {NEURON: 1}}, node=NODE))
    namespace.wait_ready("limits")
    given = f"neuron-device-{namespace.exec('limits', 'echo $GIVEN').strip()}"

    plugin.go()
    eventually("all but the chip of the plugin's pod", lambda: len(offered(kube) - {own}) >= CHIPS - 2, 60)
    assert offered(kube) - {own} == {f"neuron-device-{index}" for index in range(CHIPS)} - {own, given}
    namespace.delete_pod("limits")
    eventually("all chips", lambda: len(offered(kube)) == CHIPS, 60)
    # Slices are written first, then the condition: an administrator may see the one without the other.
    eventually("no condition", lambda: not conditions(kube), 60)

    # Now it is there before the driver, which lets the claim's pod end all the same.
    plugin.come()
    eventually("only the claim's device on offer", lambda: offered(kube) == {own}, 60)
    # It is not ready beside the plugin, and says so.
    installation.kube.delete("pods", installation.pod(NODE)["metadata"]["name"], DRIVER_NAMESPACE, grace=1)
    namespace.delete_pod("claims")
    eventually("nothing on offer", lambda: not offered(kube), 60)
