"""The EFA devices of emulated hosts."""

from __future__ import annotations

import msgspec
import pytest

from dra_driver.kube.objects.resource import Device
from dra_driver.neuron.emulation.efa import cdi_spec, efa_devices, published
from dra_driver.neuron.topology.fabric import GROUP_SIZES
from dra_driver.neuron.topology.groups import device_group_ids
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES, InstanceType

PAIRED = [kind for kind in INSTANCE_TYPES.values() if kind.efa_bdfs is not None]

# From the ResourceSlice of a trn1.32xlarge (github anson627/dranet, examples/eks-neuron-efa-dranet): the name of each
# EFA device, what the kernel calls it, and its device groups of 4 and 8; that of 16 is the same for all.
CAPTURED = {
    "pci-0000-10-19-0": ("rdmap16s25", "178a9e264a26793e", "aa86c05423d6e8cd"),
    "pci-0000-10-1a-0": ("rdmap16s26", "88a3c6ad1661fe1d", "86c451036f622685"),
    "pci-0000-20-19-0": ("rdmap32s25", "69b2225fd72a59dd", "86c451036f622685"),
    "pci-0000-20-1a-0": ("rdmap32s26", "e3c29faa0cd11323", "aa86c05423d6e8cd"),
    "pci-0000-90-19-0": ("rdmap144s25", "69b2225fd72a59dd", "86c451036f622685"),
    "pci-0000-90-1a-0": ("rdmap144s26", "e3c29faa0cd11323", "aa86c05423d6e8cd"),
    "pci-0000-a0-19-0": ("rdmap160s25", "178a9e264a26793e", "aa86c05423d6e8cd"),
    "pci-0000-a0-1a-0": ("rdmap160s26", "88a3c6ad1661fe1d", "86c451036f622685"),
}


def of(name: str) -> InstanceType:
    return INSTANCE_TYPES[name]


def text(device: Device, attribute: str) -> str | None:
    return device.attributes[attribute].string


def groups(device: Device) -> dict[int, str | None]:
    return {size: text(device, f"resource.aws.com/devicegroup{size}_id") for size in GROUP_SIZES}


def test_those_of_a_trn1_are_what_its_driver_published() -> None:
    found = {
        device.name: (text(device, "dra.net/rdmaDevice"), groups(device)[4], groups(device)[8])
        for device in published(of("trn1.32xlarge"))
    }
    assert found == CAPTURED
    assert {groups(device)[16] for device in published(of("trn1.32xlarge"))} == {"fb838249c99a6341"}
    assert list(found) == sorted(found)
    roots = {text(device, "resource.kubernetes.io/pcieRoot") for device in published(of("trn1.32xlarge"))}
    assert roots == {"pci0000:10", "pci0000:20", "pci0000:90", "pci0000:a0"}


@pytest.mark.parametrize("kind", PAIRED, ids=lambda kind: kind.name)
def test_each_device_is_on_the_numa_node_of_all_chips_next_to_it_where_that_is_known(kind: InstanceType) -> None:
    for device, beside in zip(published(kind), efa_devices(kind), strict=True):
        told = device.attributes.get("dra.net/numaNode")
        chips = [kind.numa_nodes[chip] for chip in beside.chips] if kind.numa_nodes is not None else [None]
        assert set(chips) == {told.int_ if told is not None else None}


@pytest.mark.parametrize("kind", PAIRED, ids=lambda kind: kind.name)
def test_each_device_is_in_the_groups_of_the_chips_next_to_it_and_of_no_others(kind: InstanceType) -> None:
    """So a constraint on a group's id gives an EFA device only to chips that are paired with it."""
    chips = [device_group_ids(kind, chip) for chip in range(16)]
    made = {device.address: device for device in efa_devices(kind)}
    for device in published(kind):
        paired = made[groups(device)[1] or ""].chips
        assert {chip for chip, found in enumerate(chips) if found[1] == groups(device)[1]} == set(paired)
        for chip in paired:
            assert chips[chip] == groups(device)
    assert sorted(chip for device in made.values() for chip in device.chips) == list(range(16))


@pytest.mark.parametrize(("name", "count"), [("trn1.32xlarge", 8), ("trn1n.32xlarge", 16), ("trn2.48xlarge", 16)])
def test_two_chips_of_a_trn1_share_one(name: str, count: int) -> None:
    assert {len(device.chips) for device in efa_devices(of(name))} == {16 // count}
    assert len(efa_devices(of(name))) == count


def test_a_type_without_a_pairing_has_none() -> None:
    assert (efa_devices(of("inf2.48xlarge")), published(of("inf2.48xlarge"))) == ((), ())


def test_a_container_gets_a_device_file_that_does_nothing_numbered_by_pci_address() -> None:
    spec = cdi_spec(of("trn2.48xlarge"))
    assert (spec.cdi_version, spec.kind) == ("0.3.0", "emulated.dra.net/efa")
    assert [device.name for device in spec.devices] == [device.name for device in published(of("trn2.48xlarge"))]
    assert [device.name for device in spec.devices][:2] == ["pci-0000-56-00-0", "pci-0000-57-00-0"]
    for number, device in enumerate(spec.devices):
        (node,) = msgspec.to_builtins(device)["containerEdits"]["deviceNodes"]
        assert node == {
            "path": f"/dev/infiniband/uverbs{number}",
            "type": "c",
            "major": 1,
            "minor": 3,
            "fileMode": 0o666,
            "permissions": "rw",
        }
