"""One resource name in a mixed cluster: the device plugin serves it on one node, the DRA driver on the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.lib.installation import EMULATED, Installation
from tests.cluster.lib.kube import Kube, eventually, steadily
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import DRIVER, asking
from tests.cluster.lib.release import CORE, NEURON, PLUGIN, Release

pytestmark = pytest.mark.nightly

CHIPS, CORE_SIZE = 16, 2
"""Chips of the emulated type, physical cores in a logical one."""


@pytest.fixture(scope="module")
def both_kinds(release: Release, kube: Kube) -> Iterator[Release]:
    """The DRA driver on nodes with a label, the device plugin on the others."""
    kube.kubectl("label", "node", "node-1", "example.com/neuron=dra")
    settings = {
        "draDriver.enabled": "true",
        "draDriver.nodeSelector.example\\.com/neuron": "dra",
        "draDriver.partitions": "chip.core",
        "draDriver.extendedResources": "true",
    }
    release.ensure(settings, EMULATED)
    yield release
    kube.kubectl("label", "nodes", "--all", "example.com/neuron-")


@pytest.fixture(autouse=True)
def mixed(both_kinds: Release, installation: Installation, kube: Kube) -> None:
    """The DRA driver on node-1, the device plugin on node-2, whatever a test before has made of it."""
    kube.kubectl("label", "node", "node-1", "--overwrite", "example.com/neuron=dra")
    take_driver_away("node-2", installation, kube)
    eventually("the slices of node-1", lambda: kube.slices("node-1"))
    wait_allocatable(kube, CHIPS)


def take_driver_away(node: str, installation: Installation, kube: Kube) -> None:
    """Hand a node to the device plugin, which finds no slices there."""
    kube.kubectl("label", "node", node, "example.com/neuron-")
    eventually(f"the driver to have left {node}", lambda: not installation.pods(node), 60)
    # kubelet would do so half a minute later.
    kube.kubectl("delete", "resourceslices", "--field-selector", f"spec.driver={DRIVER},spec.nodeName={node}")


def allocatable(kube: Kube, node: str) -> int:
    """Chips that the device plugin of a node offers."""
    found = kube.get("nodes", node) or {}
    return int(found["status"]["allocatable"].get(NEURON, "0"))


def wait_allocatable(kube: Kube, count: int) -> None:
    """Wait until the device plugin of node-2 offers so many chips."""
    eventually(f"{count} chips of the device plugin", lambda: allocatable(kube, "node-2") == count, 150)


def test_one_name_is_served_by_the_device_plugin_on_one_node_and_by_the_dra_driver_on_the_other(
    namespace: Namespace,
) -> None:
    everything = {"main": {NEURON: CHIPS}}
    namespace.apply(*(asking(name, everything) for name in ("first", "second")))
    namespace.wait_ready("first", "second")
    by_claim = {
        namespace.node_of(name): "extendedResourceClaimStatus" in (namespace.pod(name) or {})["status"]
        for name in ("first", "second")
    }
    assert by_claim == {"node-1": True, "node-2": False}
    assert [namespace.numbers(name) for name in ("first", "second")] == [list(range(CHIPS))] * 2
    namespace.apply(asking("third", everything))
    steadily("there is no third node", lambda: not namespace.node_of("third"), during=4)


def test_cores_of_both_nodes_are_named_alike(namespace: Namespace) -> None:
    nodes = ("node-1", "node-2")
    namespace.apply(*(asking(node, {"main": {CORE: 1}}, node) for node in nodes))
    namespace.wait_ready(*nodes)
    names = ("NEURON_RT_VISIBLE_CORES", "NEURON_LOGICAL_NC_CONFIG")
    seen = [[namespace.environment(node).get(name) for name in names] for node in nodes]
    assert seen == [["0", str(CORE_SIZE)]] * 2
    assert [namespace.numbers(node) for node in nodes] == [[0], [0]]


def test_a_node_of_the_device_plugin_is_handed_to_the_driver_and_its_kubelet_goes_on(
    kube: Kube, namespace: Namespace
) -> None:
    """A kubelet names the plugin's resources for as long as it runs: a count of 0 is none any more."""
    kube.kubectl("label", "node", "node-2", "example.com/neuron=dra")
    wait_allocatable(kube, 0)
    eventually("the slices of node-2", lambda: kube.slices("node-2"), 150)
    namespace.apply(asking("moved", {"a": {NEURON: 1}, "b": {NEURON: 2}}, "node-2"))
    namespace.wait_ready("moved")
    assert [len(namespace.numbers("moved", name)) for name in "ab"] == [1, 2]


def test_the_device_plugin_stays_off_a_node_while_an_old_pod_there_has_a_chip_by_a_claim(
    both_kinds: Release, installation: Installation, kube: Kube, namespace: Namespace
) -> None:
    """The pod's spec tells nothing of the claim, but kubelet does."""
    namespace.apply(asking("old", {"main": {NEURON: 1}}, "node-1"))
    namespace.wait_ready("old")
    take_driver_away("node-1", installation, kube)
    try:
        said = "has chips by a claim of the DRA driver"
        eventually("the plugin to end", lambda: said in both_kinds.logs(PLUGIN, "node-1"), 120, every=1)
        assert allocatable(kube, "node-1") == 0
    finally:
        kube.kubectl("label", "node", "node-1", "example.com/neuron=dra")
    eventually("the driver to be back", lambda: kube.slices("node-1"), 60)
    namespace.delete_pod("old")
