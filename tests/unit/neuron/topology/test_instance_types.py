"""The table of instance types: its facts, its names, and what it says about names it does not have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.neuron.topology.fabric import Chain, Fabric, Ring, Single, Switched, Torus2D, Unknown
from dra_driver.neuron.topology.instance_types import (
    INSTANCE_TYPES,
    InstanceType,
    lookup,
    near_matches,
    resolve,
    resolve_emulation,
)
from dra_driver.util.errors import DriverError
from tests.golden import golden, golden_error

TORUS = Torus2D(4, 4)
GIB = 1 << 30

# Name: devices, physical cores each, memory each, logical core sizes, default, fabric. Source: aws-neuron-sdk
# about-neuron/arch and tools/neuron-sys-tools/neuron-ls.rst.
PUBLISHED = {
    "inf1.xlarge": (1, 4, 8 * GIB, (1,), 1, Single()),
    "inf1.2xlarge": (1, 4, 8 * GIB, (1,), 1, Single()),
    "inf1.6xlarge": (4, 4, 8 * GIB, (1,), 1, Chain(4)),
    "inf1.24xlarge": (16, 4, 8 * GIB, (1,), 1, Chain(16)),
    "inf2.xlarge": (1, 2, 32 * GIB, (1,), 1, Single()),
    "inf2.8xlarge": (1, 2, 32 * GIB, (1,), 1, Single()),
    "inf2.24xlarge": (6, 2, 32 * GIB, (1,), 1, Chain(6)),
    "inf2.48xlarge": (12, 2, 32 * GIB, (1,), 1, Ring(12)),
    "trn1.2xlarge": (1, 2, 32 * GIB, (1,), 1, Single()),
    "trn1.32xlarge": (16, 2, 32 * GIB, (1,), 1, TORUS),
    "trn1n.32xlarge": (16, 2, 32 * GIB, (1,), 1, TORUS),
    "trn2.3xlarge": (1, 8, 96 * GIB, (1, 2), 2, Single()),
    "trn2.48xlarge": (16, 8, 96 * GIB, (1, 2), 2, TORUS),
    "trn2u.48xlarge": (16, 8, 96 * GIB, (1, 2), 2, TORUS),
    "trn3.48xlarge": (16, 8, 144 * GIB, (1, 2), 2, Switched(16)),
    "trn3e.24xlarge": (4, 8, 144 * GIB, (1, 2), 2, Switched(4)),
}

# Names that only software tables show.
FURTHER_NAMES = {
    *(f"trn2{letters}.48xlarge" for letters in ("n", "e", "p", "eu", "es")),
    *("trn2en.24xlarge", "trn2u-ac.24xlarge", "trn3e-dev0.24xlarge"),
    *("trn2-ac.24xlarge", "trn3n.48xlarge", "trn3en.24xlarge"),  # of the charts only
    *(f"trn3{letters}.48xlarge" for letters in ("p", "s", "pd98", "-dev0", "-dev1", "s-es", "sn", "sn-es")),
    *(f"trn3{letters}.3xlarge" for letters in ("pd98", "s-es", "sn", "sn-es")),
}

# PCI address (without domain and function 0) and NUMA node of each device, from neuron-ls outputs in the
# aws-neuron-sdk documents.
NEURON_LS = {
    "trn1.32xlarge": (
        "10:1c 10:1d a0:1c a0:1d 20:1b 20:1c 90:1b 90:1c 20:1d 20:1e 90:1d 90:1e 10:1e 10:1b a0:1e a0:1b",
        (0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1),
    ),
    "trn2.48xlarge": (
        "cc:00 b5:00 b6:00 cb:00 6f:00 58:00 59:00 6e:00 9b:00 84:00 85:00 9a:00 f8:00 e1:00 e2:00 f7:00",
        (1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1),
    ),
    "inf2.48xlarge": (
        "80:1e 90:1e 80:1d 90:1f 80:1f 90:1d 20:1e 20:1f 10:1e 10:1f 10:1d 20:1d",
        (2, 3, 2, 3, 2, 3, 1, 1, 0, 0, 0, 1),
    ),
    "trn2.3xlarge": ("33:00", (0,)),
    "trn1.2xlarge": ("00:1e", None),
    "inf1.6xlarge": ("00:1c 00:1d 00:1e 00:1f", None),
}

names = st.sampled_from(sorted(INSTANCE_TYPES))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_facts_hold(name: str) -> None:
    devices, cores, memory, sizes, default, fabric = PUBLISHED[name]
    row = INSTANCE_TYPES[name]
    assert (row.devices, row.cores_per_device, row.device_memory_bytes) == (devices, cores, memory)
    assert (row.lnc_values, row.default_lnc) == (sizes, default)
    assert row.fabric == fabric


def test_the_table_has_every_known_name_and_no_other() -> None:
    assert set(INSTANCE_TYPES) == {*PUBLISHED, *FURTHER_NAMES}


def test_what_no_source_says_of_a_name_is_marked_and_counted() -> None:
    rows = [INSTANCE_TYPES[name] for name in FURTHER_NAMES]
    unmarked = {row.name for row in rows if not isinstance(row.fabric, Unknown) and "fabric" not in row.inferred}
    unmarked |= {row.name for row in rows if row.ultraserver is not None and "ultraserver" not in row.inferred}
    assert unmarked == set()
    assert sum(bool(row.inferred) for row in INSTANCE_TYPES.values()) == 19


@pytest.mark.parametrize("name", NEURON_LS)
def test_pci_addresses_and_numa_nodes_are_those_of_real_hosts(name: str) -> None:
    addresses, numa_nodes = NEURON_LS[name]
    row = INSTANCE_TYPES[name]
    assert row.pci_bus_ids == tuple(f"0000:{address}.0" for address in addresses.split())
    assert row.numa_nodes == numa_nodes


def test_where_no_host_was_seen_nothing_is_claimed_about_pci_and_numa() -> None:
    unseen = [row for row in INSTANCE_TYPES.values() if row.name not in NEURON_LS]
    assert {(row.pci_bus_ids, row.numa_nodes) for row in unseen} == {(None, None)}


@given(names)
def test_per_device_facts_cover_every_device_and_no_address_serves_two(name: str) -> None:
    row = INSTANCE_TYPES[name]
    for values in (row.pci_bus_ids, row.numa_nodes, row.efa_bdfs):
        assert values is None or len(values) == row.devices
    assert row.pci_bus_ids is None or len(set(row.pci_bus_ids)) == row.devices
    assert row.default_lnc in row.lnc_values
    assert all(row.cores_per_device % size == 0 for size in row.lnc_values)


@given(names)
def test_what_is_said_to_be_concluded_is_a_fact_that_is_there(name: str) -> None:
    row = INSTANCE_TYPES[name]
    assert all(getattr(row, field) is not None for field in row.inferred)
    assert len(set(row.inferred)) == len(row.inferred)


@pytest.mark.parametrize("name", ["trn2p.48xlarge", "trn3sn.48xlarge", "trn3sn.3xlarge"])
def test_a_name_without_public_facts_has_no_device_count_but_its_chip(name: str) -> None:
    row = INSTANCE_TYPES[name]
    assert row.devices is None
    assert row.fabric.kind == "unknown"
    assert row.efa_bdfs is None
    assert row.cores_per_device == 8


@pytest.mark.parametrize(
    ("name", "arch", "core_arch", "family", "device", "pci"),
    [
        ("inf1.xlarge", "NDv1", "NCv1", "Inf1", "Inferentia", {"7064", "7065", "7066", "7067"}),
        ("inf2.xlarge", "NDv3", "NCv2", "Inf2", "Inferentia2", {"7264"}),
        ("trn1.2xlarge", "NDv2", "NCv2", "Trn1", "Trainium1", {"7164"}),
        ("trn2.3xlarge", "NDv3", "NCv3", "Trn2", "Trainium2", {"7364"}),
        ("trn3.48xlarge", "NDv4", "NCv4", "Trn3", "Trainium3", {"7564", "7565"}),
    ],
)
def test_chips_carry_the_names_of_the_kernel_driver(
    name: str, arch: str, core_arch: str, family: str, device: str, pci: set[str]
) -> None:
    row = INSTANCE_TYPES[name]
    assert (row.sysfs.arch_type, row.sysfs.core_arch_type) == (arch, core_arch)
    assert (row.sysfs.instance_type, row.sysfs.device_name) == (family, device)
    assert set(row.chip.pci_device_ids) == pci
    assert row.family == family.lower()


@given(names)
def test_lookup_finds_a_row_with_and_without_the_hyperpod_prefix_and_again_by_its_own_name(name: str) -> None:
    row = lookup(name)
    assert row is not None
    assert row is lookup(f"ml.{name}")
    assert row is lookup(row.name)
    assert row is resolve(name)


@given(st.text(max_size=30))
def test_lookup_of_any_other_text_finds_nothing_and_resolve_explains(text: str) -> None:
    if text.removeprefix("ml.") in INSTANCE_TYPES:
        return
    assert lookup(text) is None
    with pytest.raises(DriverError, match="unknown instance type"):
        resolve(text)


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("trn2.48xlrge", "trn2.48xlarge"),
        ("trn2u", "trn2u.48xlarge"),
        ("TRN1.32XLARGE", "trn1.32xlarge"),
        ("ml.inf2.42xlarge", "inf2.24xlarge"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_ones(wrong: str, near: str) -> None:
    assert near in near_matches(wrong)
    with golden_error(DriverError):
        resolve(wrong)


def test_a_name_like_no_other_is_answered_with_all_names() -> None:
    with pytest.raises(DriverError) as caught:
        resolve("\x00" * 5000)
    assert all(name in str(caught.value) for name in INSTANCE_TYPES)
    assert "\x00" not in str(caught.value)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    ("given_name", "name"),
    [
        ("trn2u", "trn2u.48xlarge"),
        ("trn2", "trn2.48xlarge"),
        ("inf2", "inf2.48xlarge"),
        ("ml.trn1.2xlarge", "trn1.2xlarge"),
        ("trn3-dev1.48xlarge", "trn3-dev1.48xlarge"),
    ],
)
def test_emulation_takes_full_names_and_the_part_before_the_dot(given_name: str, name: str) -> None:
    assert resolve_emulation(given_name).name == name


@pytest.mark.parametrize("wrong", ["trn2p.48xlarge", "trn2p", "p5.48xlarge", "", "trn"])
def test_emulation_of_anything_else_lists_what_can_be_emulated(wrong: str) -> None:
    with pytest.raises(DriverError) as caught:
        resolve_emulation(wrong)
    golden(str(caught.value))
    assert "trn2p.48xlarge," not in caught.value.remedy


def test_a_new_generation_is_one_more_row() -> None:
    newer = InstanceType("trn4.48xlarge", INSTANCE_TYPES["trn3.48xlarge"].chip, Switched(32))
    assert newer.devices == 32
    assert newer.efa_bdfs is None
    assert newer.ultraserver is None


@pytest.mark.parametrize(
    ("name", "files", "nodes"),
    [
        ("trn2u.48xlarge", "elected", 4),
        ("trn3p.48xlarge", "elected", 4),
        ("trn3.48xlarge", "pds", 4),
        ("trn2es.48xlarge", "pds", 4),
        ("trn2en.24xlarge", "max", None),
        ("trn3e.24xlarge", "max", None),
    ],
)
def test_the_size_of_an_ultraserver_is_told_where_it_is_known(name: str, files: str, nodes: int | None) -> None:
    shape = INSTANCE_TYPES[name].ultraserver
    assert shape is not None
    assert shape.files == files
    assert shape.nodes == nodes
    assert shape.usable_nodes == (1, 2, 4)


def test_instances_that_stand_alone_are_no_ultraserver() -> None:
    assert all(INSTANCE_TYPES[name].ultraserver is None for name in ("trn2.48xlarge", "trn1.32xlarge", "inf2.48xlarge"))


@given(names)
def test_rows_are_values_that_can_be_shared(name: str) -> None:
    row = INSTANCE_TYPES[name]
    with pytest.raises(AttributeError):
        row.name = "other"  # type: ignore[misc] # that is the point
    fabric: Fabric = row.fabric
    assert hash(fabric) == hash(INSTANCE_TYPES[name].fabric)
