"""The emulator writes what a real host shows, and the driver reads it back."""

from __future__ import annotations

import os
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.neuron.emulation.tree import SymbolicLink, TextFile, host_files, pcie_root
from dra_driver.neuron.emulation.writer import EmulationOptions, host_writer, write_host
from dra_driver.neuron.host.discover import discover
from dra_driver.neuron.host.inventory import Membership, NeuronDevice, NodeInventory, ServerSet
from dra_driver.neuron.topology.fabric import Chain, Fabric, Ring
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES, InstanceType
from dra_driver.neuron.topology.ultraserver import Mode
from dra_driver.util.errors import DriverError
from tests.golden import golden_error

EMULATED = [kind for kind in INSTANCE_TYPES.values() if kind.devices is not None]
TRN1, TRN2, TRN2U = (INSTANCE_TYPES[name] for name in ("trn1.32xlarge", "trn2.48xlarge", "trn2u.48xlarge"))
DEVICES = "sys/devices/virtual/neuron_device"

# Contents that hosts with kernel drivers 2.26 and 2.30 show, by path below the device.
KERNEL_TEXTS = {
    ("trn1.32xlarge", 0): {
        "connected_devices": "12, 3, 4, 1\n",
        "core_count": "2",
        "reset": "1\n",
        "info/architecture/arch_type": "NDv2\n",
        "info/architecture/instance_type": "Trn1\n",
        "info/architecture/device_name": "Trainium1\n",
        "info/notify_delay": "-1\n",
        "stats/hardware/sram_ecc_uncorrected": "0\n",
        "stats/hardware/mem_ecc_uncorrected": "0\n",
        "stats/hardware/mem_ecc_repairable_uncorrected": "0\n",
        "neuron_core0/info/architecture/arch_type": "NCv2\n",
        "neuron_core1/info/architecture/arch_type": "NCv2\n",
    },
    ("trn2.48xlarge", 13): {
        "connected_devices": "12, 1, 9, 14\n",
        "core_count": "8",
        "info/architecture/arch_type": "NDv3\n",
        "info/architecture/instance_type": "Trn2\n",
        "info/architecture/device_name": "Trainium2\n",
        "stats/hardware/health_status/unhealthy_components": "\n",
        "neuron_core7/info/architecture/arch_type": "NCv3\n",
    },
    ("inf2.48xlarge", 11): {
        "connected_devices": "10, 0\n",
        "core_count": "2",
        "info/architecture/arch_type": "NDv3\n",
        "info/architecture/device_name": "Inferentia2\n",
        "neuron_core1/info/architecture/arch_type": "NCv2\n",
    },
    ("inf2.24xlarge", 5): {"connected_devices": "4\n"},
    ("inf1.6xlarge", 1): {
        "connected_devices": "2, 0\n",
        "info/architecture/arch_type": "NDv1\n",
        "neuron_core3/info/architecture/arch_type": "NCv1\n",
    },
    ("trn2.3xlarge", 0): {"connected_devices": "\n", "core_count": "8"},
    ("trn3.48xlarge", 6): {"connected_devices": "10, 7, 5, 2\n", "info/architecture/arch_type": "NDv4\n"},
}

TRN1_ORDER = ["12, 3, 4, 1", "13, 0, 5, 2", "14, 1, 6, 3", "15, 2, 7, 0", "0, 7, 8, 5", "1, 4, 9, 6", "2, 5, 10, 7"]
TRN2_ORDER = ["12, 1, 3, 4", "0, 13, 5, 2", "14, 3, 1, 6", "2, 15, 7, 0", "8, 5, 7, 0", "4, 9, 1, 6", "10, 7, 5, 2"]


def expected_device(kind: InstanceType, index: int) -> NeuronDevice:
    switched_as_torus = TRN2 if kind.family == "trn3" and kind.devices == 16 else kind
    return NeuronDevice(
        index=index,
        major=1,
        minor=3,
        node_present=True,
        core_count=kind.cores_per_device,
        connected=switched_as_torus.fabric.neighbours(index),
        serial_number=None if kind.family == "inf1" else f"0e3000000000{index:04x}",
        architecture=kind.sysfs.device_name,
        pci_bus_id=kind.pci_bus_ids[index] if kind.pci_bus_ids else None,
        numa_node=kind.numa_nodes[index] if kind.numa_nodes else None,
        pcie_root=pcie_root(kind, kind.pci_bus_ids[index]) if kind.pci_bus_ids else None,
    )


SERIAL = "1a2b3c4d5e6f7081"
FOUR = ServerSet(4, SERIAL, 0)
HEALTHY_MODES = (Mode.X4, Mode.X2V, Mode.X1)
HEALTHY_MEMBER = {
    "elected": Membership(HEALTHY_MODES, (ServerSet(2, SERIAL, 0), FOUR), elected=True),
    "pds": Membership(HEALTHY_MODES, (FOUR,), elected=False),
    "max": Membership(HEALTHY_MODES, (FOUR,), elected=False),
}


@pytest.mark.parametrize("kind", EMULATED, ids=lambda kind: kind.name)
def test_what_is_written_is_discovered_without_findings(kind: InstanceType, tmp_path: Path) -> None:
    write_host(tmp_path / "host", kind, EmulationOptions())

    assert discover(tmp_path / "host") == NodeInventory(
        instance_type=kind.name,
        driver_version="2.24.7.0" if kind.family == "inf1" else "2.30.2.0",
        devices=tuple(expected_device(kind, index) for index in range(kind.devices or 0)),
        expected_devices=kind.devices or 0,
        chip=kind.chip,
        ultraserver=HEALTHY_MEMBER.get(kind.ultraserver.files) if kind.ultraserver else None,
        emulated=True,
    )


@pytest.mark.parametrize("fabric", [Ring(8), Chain(5)], ids=["ring", "chain"])
def test_a_new_type_with_links_that_its_family_did_not_have_is_linked(fabric: Fabric) -> None:
    kind = replace(INSTANCE_TYPES["trn2.3xlarge"], name="new", fabric=fabric, pci_bus_ids=None, numa_nodes=None)
    files = host_files(kind, EmulationOptions())
    for index in range(fabric.size):
        shown = files[f"{DEVICES}/neuron{index}/connected_devices"]
        assert isinstance(shown, TextFile)
        assert sorted(map(int, shown.text.split(","))) == sorted(fabric.neighbours(index))


@pytest.mark.parametrize(("name", "index"), KERNEL_TEXTS)
def test_device_files_have_the_kernel_drivers_exact_texts(name: str, index: int, tmp_path: Path) -> None:
    write_host(tmp_path, INSTANCE_TYPES[name], EmulationOptions())

    device = tmp_path / DEVICES / f"neuron{index}"
    expected = KERNEL_TEXTS[name, index]
    assert {path: (device / path).read_text() for path in expected} == expected


@pytest.mark.parametrize(("kind", "order"), [(TRN1, TRN1_ORDER), (TRN2, TRN2_ORDER), (TRN2U, TRN2_ORDER)])
def test_neighbours_are_printed_in_the_order_of_the_generation(
    kind: InstanceType, order: list[str], tmp_path: Path
) -> None:
    write_host(tmp_path, kind, EmulationOptions())

    printed = [(tmp_path / DEVICES / f"neuron{i}/connected_devices").read_text() for i in range(len(order))]
    assert printed == [f"{line}\n" for line in order]


@pytest.mark.parametrize(
    ("name", "lost", "neighbour", "text"),
    [
        ("trn2.48xlarge", 5, 4, "\n"),
        ("inf2.48xlarge", 5, 4, "\n"),
        ("inf2.24xlarge", 5, 4, "\n"),
        ("inf1.6xlarge", 1, 0, "\n"),
        ("inf1.6xlarge", 1, 2, "3\n"),
    ],
)
def test_fixed_neighbour_tables_are_not_printed_when_a_device_is_missing(
    name: str, lost: int, neighbour: int, text: str, tmp_path: Path
) -> None:
    write_host(tmp_path, INSTANCE_TYPES[name], EmulationOptions(missing=frozenset({lost})))

    assert not (tmp_path / DEVICES / f"neuron{lost}").exists()
    assert not (tmp_path / "dev" / f"neuron{lost}").exists()
    assert not (tmp_path / "sys/class/neuron_device" / f"neuron{lost}").is_symlink()
    assert (tmp_path / DEVICES / f"neuron{neighbour}/connected_devices").read_text() == text


def test_node_files_have_the_kernels_and_ec2s_texts(tmp_path: Path) -> None:
    write_host(tmp_path, TRN1, EmulationOptions(driver_version="2.26.10.0", logical_nc_config=1))

    assert (tmp_path / "sys/devices/virtual/dmi/id/product_name").read_text() == "trn1.32xlarge\n"
    assert (tmp_path / "sys/class/dmi/id/product_name").read_text() == "trn1.32xlarge\n"
    assert (tmp_path / "sys/module/neuron/version").read_text() == "2.26.10.0\n"
    assert (tmp_path / "opt/aws/neuron/logical_nc_config").read_text() == "NEURON_LOGICAL_NC_CONFIG=1\n"
    assert "  1 neuron\n" in (tmp_path / "proc/devices").read_text()
    assert (tmp_path / "sys/class/neuron_device/neuron15/dev").read_text() == "1:3\n"
    assert (tmp_path / DEVICES / "neuron0/subsystem").resolve() == (tmp_path / "sys/class/neuron_device").resolve()


@pytest.mark.parametrize(("version", "mode"), [("2.26.10.0", 0o400), ("2.28.1.0", 0o444), ("3.0", 0o444)])
def test_older_kernel_drivers_show_the_topology_to_root_only(version: str, mode: int, tmp_path: Path) -> None:
    write_host(tmp_path, TRN2, EmulationOptions(driver_version=version))

    device = tmp_path / DEVICES / "neuron0"
    assert stat.S_IMODE((device / "core_count").stat().st_mode) == mode
    assert stat.S_IMODE((device / "connected_devices").stat().st_mode) == mode
    assert stat.S_IMODE((device / "reset").stat().st_mode) == 0o600


def test_ecc_counters_are_written_to_their_files(tmp_path: Path) -> None:
    counters = {"sram": 1, "mem": 2, "repairable": 3, "sram-corrected": 4, "mem-corrected": 5}
    write_host(tmp_path, TRN2, EmulationOptions(ecc={5: counters}))

    hardware = tmp_path / DEVICES / "neuron5/stats/hardware"
    assert [
        (hardware / name).read_text()
        for name in (
            "sram_ecc_uncorrected",
            "mem_ecc_uncorrected",
            "mem_ecc_repairable_uncorrected",
            "sram_ecc_corrected",
            "mem_ecc_corrected",
        )
    ] == ["1\n", "2\n", "3\n", "4\n", "5\n"]
    assert (tmp_path / DEVICES / "neuron4/stats/hardware/sram_ecc_uncorrected").read_text() == "0\n"


def test_older_kernel_drivers_lack_health_files_and_corrected_counts(tmp_path: Path) -> None:
    write_host(tmp_path, TRN2, EmulationOptions(driver_version="2.24.7.0"))

    names = {path.name for path in (tmp_path / DEVICES / "neuron0/stats/hardware").iterdir()}
    assert names == {"sram_ecc_uncorrected", "mem_ecc_uncorrected", "mem_ecc_repairable_uncorrected"}


def class_files(root: Path) -> dict[str, str]:
    directory = root / "sys/class/neuron_device"
    return {path.name: path.read_text() for path in directory.iterdir() if path.is_file()}


HEALTHY_SERVER = {
    "node_id_2": "0\n",
    "node_id_4": "0\n",
    "server_id_2": "1a2b3c4d5e6f7081\n",
    "server_id_4": "1a2b3c4d5e6f7081\n",
    "ultraserver_mode": "1,3,4\n",
}


@pytest.mark.parametrize(
    ("options", "differences"),
    [
        (EmulationOptions(), {}),
        (EmulationOptions(node_ids={4: 2}), {"node_id_4": "2\n", "server_id_2": "1a2b3c4d5e6f7080\n"}),
        (EmulationOptions(node_ids={4: 1}), {"node_id_2": "1\n", "node_id_4": "1\n"}),
        (
            EmulationOptions(ultraserver_modes=(Mode.X2V, Mode.X1)),
            {"node_id_4": "-1\n", "server_id_4": "0000000000000000\n", "ultraserver_mode": "3,4\n"},
        ),
        (
            EmulationOptions(ultraserver_modes=(Mode.X1,)),
            {
                "node_id_2": "-1\n",
                "node_id_4": "-1\n",
                "server_id_2": "0000000000000000\n",
                "server_id_4": "0000000000000000\n",
                "ultraserver_mode": "4\n",
            },
        ),
        (
            EmulationOptions(server_ids={2: "00000000000000aa", 4: "00000000000000bb"}),
            {"server_id_2": "00000000000000aa\n", "server_id_4": "00000000000000bb\n"},
        ),
        (
            EmulationOptions(busy=True),
            {
                "node_id_2": "busy\n",
                "node_id_4": "busy\n",
                "server_id_2": "0000000000000000\n",
                "server_id_4": "0000000000000000\n",
                "ultraserver_mode": "busy\n",
            },
        ),
    ],
)
def test_an_elected_ultraserver_shows_its_class_files(
    options: EmulationOptions, differences: dict[str, str], tmp_path: Path
) -> None:
    write_host(tmp_path, TRN2U, options)

    assert class_files(tmp_path) == HEALTHY_SERVER | differences


def test_machines_without_an_election_name_the_reservation(tmp_path: Path) -> None:
    options = EmulationOptions(server_ids={4: "00000000000000cc"}, node_ids={4: 3})
    write_host(tmp_path, INSTANCE_TYPES["trn3-dev1.48xlarge"], options)

    assert class_files(tmp_path) == {
        "node_id": "3\n",
        "node_cnt": "4\n",
        "reservation_id": "00000000000000cc\n",
        "ultraserver_mode": "1,3,4\n",
    }


def test_a_complete_host_has_the_pci_devices_of_its_chips_and_efa_devices() -> None:
    tree = host_files(TRN1, EmulationOptions(missing=frozenset({0})))
    devices = {path.split("/")[-2]: entry for path, entry in tree.items() if path.endswith("/device")}
    assert devices["0000:10:1d.0"] == TextFile("0x7164\n", 0o444)  # chip 1
    assert devices["0000:10:1a.0"] == TextFile("0xefa2\n", 0o444)  # beside chips 0 and 1
    assert len(devices) == 15 + 8
    assert tree["sys/bus/pci/devices/0000:a0:1c.0"] == SymbolicLink("../../../devices/pci0000:a0/0000:a0:1c.0")
    assert tree["sys/devices/pci0000:a0/0000:a0:1c.0/numa_node"] == TextFile("1\n")
    assert not any("pci" in path for path in host_files(INSTANCE_TYPES["inf2.24xlarge"], EmulationOptions()))


@pytest.mark.parametrize("kind", [k for k in EMULATED if k.pci_bus_ids and k.efa_bdfs], ids=lambda kind: kind.name)
def test_a_chip_has_the_pcie_root_of_its_efa_device(kind: InstanceType) -> None:
    pairs = list(zip(kind.pci_bus_ids or (), kind.efa_bdfs or (), strict=True))
    assert [pcie_root(kind, chip) for chip, _ in pairs] == [pcie_root(kind, efa) for _, efa in pairs]
    roots = {pcie_root(kind, chip) for chip, _ in pairs}
    assert len(roots) == {"trn1": 4, "trn2": 8}[kind.family]


def test_an_older_tree_whose_pci_devices_are_directories_is_replaced(tmp_path: Path) -> None:
    name = "sys/bus/pci/devices/0000:33:00.0"
    host_writer(tmp_path).write({f"{name}/vendor": TextFile("0x1d0f\n"), f"{name}/numa_node": TextFile("0\n")})
    write_host(tmp_path, INSTANCE_TYPES["trn2.3xlarge"], EmulationOptions())
    assert (tmp_path / name).is_symlink()
    assert (tmp_path / name / "numa_node").read_text() == "0\n"


def test_other_types_have_no_ultraserver_files(tmp_path: Path) -> None:
    write_host(tmp_path, TRN2, EmulationOptions())

    assert class_files(tmp_path) == {}


def snapshot(root: Path) -> dict[str, tuple[int, object]]:
    """Path to inode and content of everything below root."""
    found: dict[str, tuple[int, object]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        if path.is_symlink():
            content: object = str(path.readlink())
        elif path.is_file():
            content = (path.read_bytes(), status.st_mode)
        else:
            content = (status.st_mode, status.st_rdev)
        found[str(path.relative_to(root))] = (status.st_ino, content)
    return found


def test_writing_the_same_host_again_touches_no_file(tmp_path: Path) -> None:
    write_host(tmp_path, TRN2, EmulationOptions())
    before = snapshot(tmp_path)
    write_host(tmp_path, TRN2, EmulationOptions())

    after = snapshot(tmp_path)
    marker = ".dra-driver-emulated-host.json"
    assert before.pop(marker)[1] == after.pop(marker)[1]
    assert after == before


@pytest.mark.parametrize("kind", [TRN1, TRN2U, INSTANCE_TYPES["inf1.xlarge"]], ids=lambda kind: kind.name)
def test_writing_another_host_leaves_nothing_of_the_first(kind: InstanceType, tmp_path: Path) -> None:
    write_host(tmp_path / "changed", TRN2, EmulationOptions(logical_nc_config=1, missing=frozenset({0})))
    write_host(tmp_path / "changed", kind, EmulationOptions())
    write_host(tmp_path / "fresh", kind, EmulationOptions())

    def contents(root: Path) -> dict[str, object]:
        return {path: content for path, (_, content) in snapshot(root).items()}

    assert contents(tmp_path / "changed") == contents(tmp_path / "fresh")


def test_a_reader_never_sees_half_a_device_while_the_host_changes(tmp_path: Path) -> None:
    healthy, broken = EmulationOptions(), EmulationOptions(missing=frozenset({3, 7}), ecc={5: {"sram": 1}})
    write_host(tmp_path, TRN2, healthy)
    stopping = threading.Event()

    def write() -> None:
        while not stopping.is_set():
            write_host(tmp_path, TRN2, broken)
            write_host(tmp_path, TRN2, healthy)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = [discover(tmp_path) for _ in range(60)]
    finally:
        stopping.set()
        writer.join()
    for inventory in seen:
        assert (inventory.instance_type, inventory.driver_version) == ("trn2.48xlarge", "2.30.2.0")
        assert {device.index for device in inventory.devices} >= set(range(16)) - {3, 7}
        for device in inventory.devices:
            assert (device.major, device.core_count, device.architecture) == (1, 8, "Trainium2")
            assert device.serial_number == f"0e3000000000{device.index:04x}"


def test_a_killed_first_run_is_finished_by_the_next(tmp_path: Path) -> None:
    write_host(tmp_path / "host", TRN2, EmulationOptions())
    (tmp_path / "host/sys/module/neuron/version").unlink()
    (tmp_path / "host/.dra-driver-staging").mkdir()
    (tmp_path / "host/.dra-driver-staging/entry").write_text("half")
    assert discover(tmp_path / "host").devices == ()

    write_host(tmp_path / "host", TRN2, EmulationOptions())

    assert len(discover(tmp_path / "host").devices) == 16
    assert not (tmp_path / "host/.dra-driver-staging").exists()


def test_device_nodes_become_plain_files_where_they_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "mknod", refused)
        write_host(tmp_path, TRN2, EmulationOptions())
    assert (tmp_path / "dev/neuron0").is_file()
    assert stat.S_IMODE((tmp_path / "dev/neuron0").stat().st_mode) == 0o666
    assert all(device.node_present for device in discover(tmp_path).devices)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make device nodes")
def test_device_nodes_are_the_null_device_for_root(tmp_path: Path) -> None:
    write_host(tmp_path, TRN2, EmulationOptions())

    status = (tmp_path / "dev/neuron15").stat()
    assert stat.S_ISCHR(status.st_mode)
    assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == (1, 3)


def test_the_root_of_this_machine_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/")
    for root in (Path("/"), Path("/tmp/.."), tmp_path / "link"):
        with pytest.raises(DriverError, match="/; "):
            write_host(root, TRN2, EmulationOptions())


def test_a_directory_with_other_content_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with golden_error(DriverError):
        write_host(tmp_path, TRN2, EmulationOptions())

    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


@pytest.mark.parametrize(
    "marker",
    [
        b"",
        b"{}",
        b"[1]",
        b'{"paths": 3}',
        b'{"paths": ["../notes"]}',
        b'{"paths": ["/etc/passwd"]}',
        b"\xff",
        b"[" * 9999,
    ],
)
def test_a_directory_with_a_foreign_marker_is_refused(marker: bytes, tmp_path: Path) -> None:
    root = tmp_path / "host"
    root.mkdir()
    (tmp_path / "notes").write_text("mine")
    (root / ".dra-driver-emulated-host.json").write_bytes(marker)
    with golden_error(DriverError):
        write_host(root, TRN2, EmulationOptions())

    assert (tmp_path / "notes").read_text() == "mine"


def test_files_added_by_hand_survive_and_links_out_of_the_root_are_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "host", tmp_path / "outside"
    outside.mkdir()
    write_host(root, TRN2U, EmulationOptions())
    (root / "sys/module/neuron/note").write_text("mine")
    (root / "dev").rename(outside / "dev")
    (root / "dev").symlink_to(outside / "dev")
    with golden_error(DriverError):
        write_host(root, TRN2U, EmulationOptions(missing=frozenset({0})))

    assert (root / "sys/module/neuron/note").read_text() == "mine"
    assert len(list((outside / "dev").iterdir())) == 16


def test_a_file_in_the_way_is_an_error_with_a_text(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with golden_error(DriverError):
        write_host(tmp_path / "file", TRN2, EmulationOptions())


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (TRN2, EmulationOptions(missing=frozenset({16}))),
        (TRN2, EmulationOptions(ecc={-1: {"sram": 1}})),
        (TRN2, EmulationOptions(missing=frozenset({1}), ecc={1: {"sram": 1}})),
        (TRN2, EmulationOptions(ecc={1: {"dram": 1}})),
        (TRN2, EmulationOptions(driver_version="2.24.7.0", ecc={1: {"sram-corrected": 1}})),
        (TRN2, EmulationOptions(ecc={1: {"sram": -1}})),
        (TRN2, EmulationOptions(driver_version="latest")),
        (TRN2, EmulationOptions(logical_nc_config=4)),
        (TRN2, EmulationOptions(busy=True)),
        (INSTANCE_TYPES["trn3.48xlarge"], EmulationOptions(busy=True)),
        (TRN2U, EmulationOptions(node_ids={3: 0})),
        (TRN2U, EmulationOptions(node_ids={4: 4})),
        (TRN2U, EmulationOptions(server_ids={4: "XYZ"})),
        (INSTANCE_TYPES["trn3sn.48xlarge"], EmulationOptions()),
    ],
)
def test_impossible_options_are_refused_before_anything_is_written(
    kind: InstanceType, options: EmulationOptions, tmp_path: Path
) -> None:
    with golden_error(DriverError):
        write_host(tmp_path / "host", kind, options)
    assert not (tmp_path / "host").exists()
