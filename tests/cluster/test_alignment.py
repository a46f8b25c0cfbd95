"""Chips, CPUs and EFA devices in one claim, by the real scheduler, with the slices of dra-driver-cpu as published.

The EFA driver is the emulated one, and a stand-in prepares CPUs and pins nothing. The lab's nodes have few CPUs and no
huge pages, so the pods ask for neither beside the claim.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from lab.cluster import Cluster

from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from tests.cluster.lib.installation import EMULATED, Installation
from tests.cluster.lib.kube import Kube, Object
from tests.cluster.lib.namespace import Namespace
from tests.cluster.test_efa import efa_drivers, node_drivers
from tests.doubles import idle_driver
from tests.paths import ROOT

pytestmark = pytest.mark.nightly

CPU = "dra.cpu"
ALIGNED = ROOT / "examples/aligned"
IPC_LOCK = 14
"""Number of the capability."""


@pytest.fixture
def cpus(driver: Installation, lab: Cluster, kube: Kube, tmp_path: Path) -> Iterator[None]:
    """Class, slices and a stand-in for dra-driver-cpu beside both other drivers, on emulated trn2.48xlarge."""
    device_class, shown = yaml.safe_load_all((ALIGNED / "dra-driver-cpu.yaml").read_text())
    slices = [yaml.safe_load(yaml.safe_dump(shown).replace("node-1", node.name)) for node in lab.nodes]
    (tmp_path / "efa").mkdir()
    with (
        efa_drivers(lab, kube, EMULATED, tmp_path / "efa"),
        node_drivers(lab.nodes, tmp_path, lambda node: [idle_driver.__name__, str(lab.kubeconfig), CPU]),
    ):
        kube.apply(device_class, *slices)
        try:
            yield
        finally:
            kube.kubectl("delete", "--ignore-not-found", "deviceclass", CPU)
            kube.kubectl("delete", "resourceslices", f"--field-selector=spec.driver={CPU}")


def small(pod: Object, name: str) -> Object:
    """The pod of an example, without what no node of the lab has."""
    made = copy.deepcopy(pod)
    made["metadata"]["name"] = name
    spec = made["spec"]
    (container,) = spec["containers"]
    container["resources"] = {"claims": container["resources"]["claims"]}
    container["volumeMounts"] = [item for item in container["volumeMounts"] if item["name"] != "hugepages"]
    spec["volumes"] = [item for item in spec["volumes"] if item["name"] != "hugepages"]
    return made


@pytest.mark.parametrize(
    ("example", "chips", "with_efa"), [("four-chips", 4, 4), ("one-chip", 1, 1), ("pinned-to-numa-node", 4, 0)]
)
def test_an_example_runs_with_chips_and_cpus_of_one_numa_node(
    cpus: None, namespace: Namespace, example: str, chips: int, with_efa: int
) -> None:
    """A second pod gets CPUs of the same node's groups, too: several claims share the device of a NUMA node."""
    made, pod = yaml.safe_load_all((ALIGNED / f"{example}.yaml").read_text())
    namespace.apply(made, small(pod, "first"), small(pod, "second"))
    namespace.wait_ready("first", "second")
    numa_nodes = INSTANCE_TYPES[EMULATED].numa_nodes
    assert numa_nodes is not None
    for name in ("first", "second"):
        results = namespace.allocated(namespace.claim_of(name, "devices"))
        (group,) = [item.device for item in results if item.request == "cpus"]
        given = [item.chip for item in results if item.request == "neurons"]
        assert len(given) == chips
        assert {f"cpudevnuma{numa_nodes[chip]:03}" for chip in given} == {group}
        assert namespace.numbers(name) == list(range(chips))
        files = namespace.exec(name, "ls /dev/infiniband 2>/dev/null || true").split()
        assert len(files) == with_efa
        status = dict(line.split(":\t", 1) for line in namespace.exec(name, "cat /proc/self/status").splitlines())
        assert int(status["CapEff"], 16) == 1 << IPC_LOCK
        kind, size = namespace.exec(name, "grep ' /dev/shm ' /proc/mounts | cut -d' ' -f3,4").split()[:2]
        assert kind == "tmpfs"
        assert "size=" in size
