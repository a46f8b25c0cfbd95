"""The examples that join chips with CPUs and EFA devices: what they promise, in the simulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.cli.main import main
from dra_driver.neuron.emulation.tree import pcie_root
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from tests.manifests.support import Object, documents, of_kind, pod_spec
from tests.paths import ROOT

ALIGNED = ROOT / "examples/aligned"
CPUS = ALIGNED / "dra-driver-cpu.yaml"
FOUR, ONE, PINNED = (ALIGNED / f"{name}.yaml" for name in ("four-chips", "one-chip", "pinned-to-numa-node"))
NUMA = "resource.kubernetes.io/numaNode"
TRN2 = "trn2.48xlarge"


def given(
    path: Path, capsys: pytest.CaptureFixture[str], *, kind: str = TRN2, cpus: Path = CPUS
) -> dict[str, list[str]]:
    """Devices by request that an example gets on an empty node; {} if it does not fit."""
    status = main(["simulate", str(path), "--objects", str(cpus), "--instance-type", kind, "-o", "json"])
    (claim,) = json.loads(capsys.readouterr().out)["claims"]
    assert (status == 0) == (claim["allocation"] is not None)
    found: dict[str, list[str]] = {}
    for item in claim["allocation"]["devices"]["results"] if claim["allocation"] else ():
        found.setdefault(item["request"], []).append(item["device"])
    return found


def before_0_3(directory: Path) -> Path:
    """The slices of a dra-driver-cpu that does not know the attribute of Kubernetes."""
    objects = documents(CPUS.read_text())
    for device in of_kind(objects, "ResourceSlice")["spec"]["devices"]:
        del device["attributes"][NUMA]
    made = directory / "cpus.yaml"
    made.write_text(yaml.safe_dump_all(objects))
    return made


def chips(found: dict[str, list[str]]) -> list[int]:
    return [int(name.removeprefix("neuron-device-")) for name in found["neurons"]]


def numa_nodes(found: dict[str, list[str]], kind: str = TRN2) -> set[int]:
    """The NUMA nodes of all chips and CPUs."""
    known = INSTANCE_TYPES[kind].numa_nodes
    assert known is not None
    cpus = {int(name.removeprefix("cpudevnuma")) for name in found["cpus"]}
    return {known[chip] for chip in chips(found)} | cpus


@pytest.mark.parametrize(("path", "count"), [(FOUR, 4), (ONE, 1), (PINNED, 4)], ids=["four", "one", "pinned"])
def test_chips_and_cpus_of_an_example_are_of_one_numa_node(
    path: Path, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found = given(path, capsys)
    assert len(chips(found)) == count
    assert len(numa_nodes(found)) == 1
    command = " ".join(path.read_text().replace("\\\n#", "").split())
    assert (
        f"dra-driver simulate {path.relative_to(ROOT)} --objects {CPUS.relative_to(ROOT)} --instance-type {TRN2}"
        in command
    )


@pytest.mark.parametrize("kind", [TRN2, "trn1.32xlarge"])
def test_a_chip_has_an_efa_device_below_its_pcie_root(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = given(ONE, capsys, kind=kind)
    known = INSTANCE_TYPES[kind]
    (efa,), (chip,) = found["efa"], chips(found)
    address = efa.removeprefix("pci-").replace("-", ":", 2).replace("-", ".")
    assert known.pci_bus_ids is not None
    assert pcie_root(known, address) == pcie_root(known, known.pci_bus_ids[chip])


def test_a_release_without_the_common_attribute_needs_the_numa_node_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = before_0_3(tmp_path)
    assert given(FOUR, capsys, cpus=old) == {}
    assert numa_nodes(given(PINNED, capsys, cpus=old)) == {0}


def test_the_page_says_which_blocks_are_on_one_numa_node() -> None:
    """And no constraint can ask for the others."""
    one: dict[str, list[int]] = {}
    for kind in (TRN2, "trn1.32xlarge"):
        nodes = INSTANCE_TYPES[kind].numa_nodes
        assert nodes is not None
        one[kind] = [
            size for size in (4, 8, 16) if all(len(set(nodes[at : at + size])) == 1 for at in range(0, 16, size))
        ]
    assert one == {TRN2: [4], "trn1.32xlarge": []}


@pytest.mark.parametrize("path", [FOUR, ONE, PINNED], ids=["four", "one", "pinned"])
def test_the_pods_have_what_the_page_says_of_them(path: Path) -> None:
    """The claim is one container's; its CPUs are those of the container; with EFA devices come huge pages."""
    objects = documents(path.read_text())
    devices: Any = of_kind(objects, "ResourceClaimTemplate")["spec"]["spec"]["devices"]
    (cpus,) = [item["exactly"] for item in devices["requests"] if item["name"] == "cpus"]
    spec: Object = pod_spec(of_kind(objects, "Pod"))
    (container,) = spec["containers"]
    resources = container["resources"]
    assert resources["requests"] == resources["limits"]
    assert resources["limits"]["cpu"] == cpus["capacity"]["requests"]["dra.cpu/cpu"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    mounts = {item["mountPath"]: item["name"] for item in container["volumeMounts"]}
    volumes = {item["name"]: item["emptyDir"]["medium"] for item in spec["volumes"]}
    assert volumes[mounts["/dev/shm"]] == "Memory"
    with_efa = any(item["name"] == "efa" for item in devices["requests"])
    assert with_efa == ("hugepages-2Mi" in resources["limits"]) == (mounts.get("/dev/hugepages") in volumes)
