"""Every odd state of a host gives a defined inventory and says what is odd."""

from __future__ import annotations

import os
import re
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.neuron.emulation.tree import MODULE_VERSION, host_files
from dra_driver.neuron.emulation.writer import EmulationOptions, TreeWriter, write_host
from dra_driver.neuron.host import sysfs
from dra_driver.neuron.host.discover import EMULATION_MARKER, discover, renew
from dra_driver.neuron.host.findings import FINDINGS, device_ranges
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from tests.golden import golden

DEVICES = "sys/devices/virtual/neuron_device"
TYPE_LABEL = "node.kubernetes.io/instance-type"


def write_healthy(root: Path) -> None:
    """A healthy trn2.48xlarge with a default logical core size, without the files that discovery does not look at."""
    tree = host_files(INSTANCE_TYPES["trn2.48xlarge"], EmulationOptions(logical_nc_config=2))
    read = {path: entry for path, entry in tree.items() if "/neuron_core" not in path and "/stats/" not in path}
    TreeWriter(root, EMULATION_MARKER, whole_below=DEVICES, commit=MODULE_VERSION).write(read)


@pytest.fixture(scope="module")
def shared_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared") / "host"


@pytest.fixture
def host(shared_root: Path) -> Path:
    """A healthy host for tests that change or remove files: those are restored for the next test, which is quick."""
    write_healthy(shared_root)
    return shared_root


@pytest.fixture
def fresh_host(tmp_path: Path) -> Path:
    """A healthy host for tests that change anything else."""
    write_healthy(tmp_path / "host")
    return tmp_path / "host"


def device_directory(host: Path, index: int) -> Path:
    return host / DEVICES / f"neuron{index}"


def put(path: Path, content: str | bytes) -> None:
    """Write a file whatever its mode is."""
    path.unlink(missing_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def codes(inventory: NodeInventory) -> dict[str, str]:
    """Code to subject of the findings."""
    assert len({finding.code for finding in inventory.findings}) == len(inventory.findings)
    return {finding.code: finding.subject for finding in inventory.findings}


def text_of(inventory: NodeInventory, code: str) -> str:
    return next(finding.text for finding in inventory.findings if finding.code == code)


def deny(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let every file called ``name`` be unreadable, as a 0400 file is for others than root."""
    read = sysfs._read_all

    def refusing(path: str) -> bytes:
        if path.endswith(f"/{name}"):
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(sysfs, "_read_all", refusing)


def test_every_finding_says_what_follows_and_what_to_do() -> None:
    for row in FINDINGS.values():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)+", row.code)
        assert row.what
        assert row.consequence
        assert row.remedy
        assert "  " not in f"{row.what} {row.consequence} {row.remedy}"


# The host as a whole


@pytest.mark.parametrize("name", ["trn2.48xlarge", "trn2u.48xlarge", "inf2.24xlarge"])
def test_a_host_that_did_not_change_is_renewed_as_it_was(name: str, tmp_path: Path) -> None:
    write_host(tmp_path / "host", INSTANCE_TYPES[name])
    found = discover(tmp_path / "host")
    assert renew(tmp_path / "host", found) == found


def test_only_the_chips_asked_for_are_read_again(tmp_path: Path) -> None:
    root = tmp_path / "host"
    write_host(root, INSTANCE_TYPES["trn2.48xlarge"])
    found = discover(root)
    for index in (3, 4):
        (root / f"{DEVICES}/neuron{index}/dev").write_text("99:7\n")

    renewed = renew(root, found, [3])

    assert [(chip.index, chip.major) for chip in renewed.devices if chip.major == 99] == [(3, 99)]
    assert [chip.index for chip in renewed.devices] == [chip.index for chip in found.devices]
    shutil.rmtree(root / f"{DEVICES}/neuron3")
    assert renew(root, found, [3]).device(3) is None


def test_chips_of_a_kernel_driver_that_is_being_removed_are_none(tmp_path: Path) -> None:
    root = tmp_path / "host"
    write_host(root, INSTANCE_TYPES["trn2.48xlarge"])
    found = discover(root)
    (root / MODULE_VERSION).unlink()
    assert renew(root, found, [3]).devices == renew(root, found).devices == ()


def test_a_root_that_is_not_there_is_said(tmp_path: Path) -> None:
    inventory = discover(tmp_path / "nowhere")

    assert inventory.devices == ()
    assert codes(inventory) == {"host-root-missing": str(tmp_path / "nowhere")}


def test_an_empty_root_has_no_driver_and_no_type(tmp_path: Path) -> None:
    inventory = discover(tmp_path)

    assert (inventory.instance_type, inventory.driver_version, inventory.devices) == (None, None, ())
    assert codes(inventory).keys() == {"driver-not-loaded", "instance-type-missing"}
    assert not inventory.emulated


def test_a_driver_that_is_not_loaded_leaves_type_and_labels(fresh_host: Path) -> None:
    shutil.rmtree(fresh_host / "sys/module")
    shutil.rmtree(fresh_host / "sys/devices/virtual/neuron_device")
    shutil.rmtree(fresh_host / "sys/class/neuron_device")
    inventory = discover(fresh_host, {"topology.k8s.aws/capacity-block-id": "cr-1"})

    assert (inventory.instance_type, inventory.driver_version, inventory.devices) == ("trn2.48xlarge", None, ())
    assert inventory.capacity_block_id == "cr-1"
    assert codes(inventory) == {"driver-not-loaded": "sys/module/neuron/version"}


def test_devices_without_a_module_version_are_not_published(host: Path) -> None:
    (host / "sys/module/neuron/version").unlink()
    inventory = discover(host)

    assert (inventory.driver_version, inventory.devices) == (None, ())
    assert codes(inventory).keys() == {"driver-version-missing"}


@pytest.mark.parametrize("content", ["", "busy", "not a version", b"\xff\xfe", "1" * 65, "2.30\x00"])
def test_a_version_that_cannot_be_used_leaves_the_devices(content: str | bytes, host: Path) -> None:
    put(host / "sys/module/neuron/version", content)
    inventory = discover(host)

    assert inventory.driver_version is None
    assert len(inventory.devices) == 16
    assert codes(inventory).keys() == {"driver-version-unreadable"}


def test_a_loaded_driver_without_devices_is_said(fresh_host: Path) -> None:
    shutil.rmtree(fresh_host / DEVICES)
    inventory = discover(fresh_host)

    assert (inventory.driver_version, inventory.devices) == ("2.30.2.0", ())
    # The class still has its links, which lead nowhere now.
    assert codes(inventory) == {"no-devices": DEVICES, "device-entry-odd": "neuron0-neuron15"}


def test_labels_of_the_node_give_layers_and_capacity_block(host: Path) -> None:
    labels = {
        "topology.k8s.aws/network-node-layer-1": "nn-1",
        "topology.k8s.aws/network-node-layer-3": "nn-3",
        "topology.k8s.aws/network-node-layer-2": "",
        "topology.k8s.aws/capacity-block-id": "cr-0123",
    }
    inventory = discover(host, labels)

    assert inventory.network_layers == ("nn-1", None, "nn-3")
    assert inventory.capacity_block_id == "cr-0123"


# Instance type


@pytest.mark.parametrize(
    ("product", "label", "expected", "codes_expected"),
    [
        ("trn2.48xlarge\n", "trn2.48xlarge", "trn2.48xlarge", set()),
        ("trn2.48xlarge\n", "ml.trn2.48xlarge", "trn2.48xlarge", set()),
        ("trn2.48xlarge\n", "k3s", "trn2.48xlarge", set()),
        ("trn2.48xlarge\n", "trn2n.48xlarge", "trn2.48xlarge", {"instance-type-conflict"}),
        ("trn2.48xlarge\n", "m5.large", "trn2.48xlarge", {"instance-type-conflict"}),
        ("KVM\n", "trn2.48xlarge", "trn2.48xlarge", {"instance-type-from-label"}),
        ("Standard PC (Q35 + ICH9, 2009)\n", "ml.trn2.48xlarge", "trn2.48xlarge", {"instance-type-from-label"}),
        ("m5.large\n", "trn2.48xlarge", "trn2.48xlarge", {"instance-type-from-label"}),
        ("", "trn2.48xlarge", "trn2.48xlarge", {"instance-type-from-label"}),
        (b"\xff\xfe", "trn2.48xlarge", "trn2.48xlarge", {"instance-type-from-label"}),
        ("x" * 70000, "trn2.48xlarge", "trn2.48xlarge", {"instance-type-from-label"}),
        ("trn9.96xlarge\n", "", "trn9.96xlarge", {"instance-type-unknown"}),
        ("trn9.96xlarge\n", "m5.large", "trn9.96xlarge", {"instance-type-unknown", "instance-type-conflict"}),
        ("m5.large\n", "", "m5.large", {"instance-type-unknown"}),
        ("Google Compute Engine\n", "", None, {"instance-type-missing"}),
        ("KVM\n", "kind-worker", None, {"instance-type-missing"}),
        ("", "../../etc/passwd", None, {"instance-type-missing"}),
        ("../../etc/passwd", "", None, {"instance-type-missing"}),
    ],
)
def test_the_instance_type_comes_from_dmi_or_the_label(
    product: str | bytes, label: str, expected: str | None, codes_expected: set[str], host: Path
) -> None:
    put(host / "sys/devices/virtual/dmi/id/product_name", product)
    inventory = discover(host, {TYPE_LABEL: label} if label else {})

    assert inventory.instance_type == expected
    assert codes(inventory).keys() == codes_expected
    assert len(inventory.devices) == 16


def test_a_type_that_the_table_does_not_know_is_published_as_sysfs_shows_it(host: Path) -> None:
    put(host / "sys/devices/virtual/dmi/id/product_name", "trn9.96xlarge\n")
    device = discover(host).devices[12]

    assert (device.core_count, device.connected, device.architecture) == (8, (0, 8, 13, 15), "Trainium2")
    assert (device.pci_bus_id, device.numa_node) == (None, None)


def test_a_type_of_which_only_the_name_is_public_is_published_as_sysfs_shows_it(host: Path) -> None:
    put(host / "sys/devices/virtual/dmi/id/product_name", "trn2p.48xlarge\n")
    inventory = discover(host)

    assert (inventory.instance_type, len(inventory.devices)) == ("trn2p.48xlarge", 16)
    assert codes(inventory) == {"ultraserver-files-missing": "sys/class/neuron_device"}


def test_long_and_strange_content_is_shortened_and_quoted_in_texts(host: Path) -> None:
    put(host / "sys/devices/virtual/dmi/id/product_name", "\x1b[31m{subject}" + "x" * 500)
    text = text_of(discover(host), "instance-type-missing")

    assert "\\x1b[31m{subject}xxx" in text
    assert len(text) < 500


# Which devices there are


def test_fifteen_of_sixteen_are_published_without_addresses(tmp_path: Path) -> None:
    write_host(tmp_path, INSTANCE_TYPES["trn2.48xlarge"], EmulationOptions(missing=frozenset({6})))
    inventory = discover(tmp_path)

    assert [device.index for device in inventory.devices] == [*range(6), *range(7, 16)]
    assert {(device.pci_bus_id, device.numa_node, device.connected) for device in inventory.devices} == {
        (None, None, ())
    }
    assert codes(inventory) == {"devices-missing": "neuron6"}


def test_more_devices_than_the_table_knows_are_all_listed_in_order(fresh_host: Path) -> None:
    for index in (16, 63, 100):
        shutil.copytree(device_directory(fresh_host, 0), device_directory(fresh_host, index), symlinks=True)
        (fresh_host / "dev" / f"neuron{index}").write_text("")
    inventory = discover(fresh_host)

    assert [device.index for device in inventory.devices] == [*range(16), 16, 63, 100]
    assert {device.pci_bus_id for device in inventory.devices} == {None}
    assert codes(inventory) == {"devices-unexpected": "neuron16,neuron63,neuron100"}


@pytest.mark.parametrize(
    "name", ["neuron", "neuron01", "neuron-1", "neuron1x", "neuron1000", "Neuron1", "neuron٣", "node_id"]
)
def test_names_that_are_no_device_are_ignored(name: str, fresh_host: Path) -> None:
    shutil.copytree(device_directory(fresh_host, 0), fresh_host / DEVICES / name, symlinks=True)

    assert discover(fresh_host).findings == ()
    assert len(discover(fresh_host).devices) == 16


def test_an_entry_that_is_a_file_is_no_device(fresh_host: Path) -> None:
    shutil.rmtree(device_directory(fresh_host, 3))
    device_directory(fresh_host, 3).write_text("")
    inventory = discover(fresh_host)

    assert inventory.device(3) is None
    assert codes(inventory) == {"device-entry-odd": "neuron3", "devices-missing": "neuron3"}


def test_the_class_directory_stands_in_where_the_devices_are_not_visible(fresh_host: Path) -> None:
    expected = discover(fresh_host)
    directory = fresh_host / "sys/class/neuron_device"
    shutil.rmtree(directory)
    (fresh_host / DEVICES).rename(directory)
    for device in directory.iterdir():
        (device / "subsystem").unlink()

    assert discover(fresh_host) == expected


def test_the_class_directorys_links_are_followed(fresh_host: Path) -> None:
    expected = discover(fresh_host)
    (fresh_host / "sys/devices/virtual/neuron_device").rename(fresh_host / "sys/devices/elsewhere")
    for index in range(16):
        link = fresh_host / f"sys/class/neuron_device/neuron{index}"
        link.unlink()
        link.symlink_to(f"../../../../../../../sys/devices/elsewhere/neuron{index}")

    assert discover(fresh_host) == expected


def test_an_absolute_link_starts_at_the_hosts_root(fresh_host: Path) -> None:
    (fresh_host / "usr/lib/aws/neuron").mkdir(parents=True)
    (fresh_host / "usr/lib/aws/neuron/logical_nc_config").write_text("NEURON_LOGICAL_NC_CONFIG=1\n")
    shutil.rmtree(fresh_host / "opt/aws")
    (fresh_host / "opt/aws").symlink_to("/usr/lib/aws")

    assert discover(fresh_host).default_lnc == 1


def test_a_link_out_of_the_root_leads_to_nothing(fresh_host: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("trn1.32xlarge\n")
    product = fresh_host / "sys/devices/virtual/dmi/id/product_name"
    for target in (tmp_path / "outside", Path("../../../../../../../../outside")):
        product.unlink()
        product.symlink_to(target)
        assert discover(fresh_host).instance_type is None


def test_a_circle_of_links_is_unreadable(fresh_host: Path) -> None:
    product = fresh_host / "sys/devices/virtual/dmi/id/product_name"
    product.unlink()
    product.symlink_to("product_name")

    golden(text_of(discover(fresh_host), "instance-type-missing"))


def test_a_device_that_goes_away_while_it_is_read_is_left_out_and_read_again_soon(
    fresh_host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = sysfs._read_all

    def removing(path: str) -> bytes:
        text = read(path)
        if path.endswith("neuron3/dev"):
            shutil.rmtree(device_directory(fresh_host, 3))
        return text

    monkeypatch.setattr(sysfs, "_read_all", removing)
    inventory = discover(fresh_host)

    assert inventory.device(3) is None
    assert inventory.settling
    assert {device.pci_bus_id for device in inventory.devices} == {None}
    assert codes(inventory) == {"devices-missing": "neuron3"}


# Device numbers and nodes


@pytest.mark.parametrize(
    "content", ["", "garbage", "0:3", "1:", ":3", "1:-3", "1:99999999", "٣:1", b"\xff", "x" * 70000]
)
def test_a_device_without_usable_numbers_has_none(content: str | bytes, host: Path) -> None:
    put(device_directory(host, 4) / "dev", content)
    inventory = discover(host)

    assert (inventory.devices[4].major, inventory.devices[4].minor) == (None, None)
    assert codes(inventory) == {"device-numbers-unreadable": "neuron4"}


def test_a_major_number_that_the_kernel_lists_otherwise_is_said(host: Path) -> None:
    put(host / "proc/devices", "Character devices:\n  1 mem\n243 neuron\n244 neuron_x\n")
    inventory = discover(host)

    assert {device.major for device in inventory.devices} == {1}
    assert codes(inventory) == {"major-mismatch": "neuron0-neuron15"}
    assert "1 instead of 243" in text_of(inventory, "major-mismatch")


@pytest.mark.parametrize("content", [None, "", "garbage", b"\xff", "Character devices:\n  1 mem\n"])
def test_without_a_list_of_majors_there_is_nothing_to_compare(content: str | bytes | None, host: Path) -> None:
    if content is None:
        (host / "proc/devices").unlink()
    else:
        put(host / "proc/devices", content)

    assert discover(host).findings == ()


def test_a_dev_directory_without_neuron_nodes_is_not_the_hosts(fresh_host: Path) -> None:
    for path in (fresh_host / "dev").iterdir():
        path.unlink()
    put(fresh_host / "dev/null", "")
    inventory = discover(fresh_host)

    assert {device.node_present for device in inventory.devices} == {None}
    assert inventory.findings == ()


def test_a_missing_dev_directory_tells_nothing_about_nodes(fresh_host: Path) -> None:
    shutil.rmtree(fresh_host / "dev")

    assert {device.node_present for device in discover(fresh_host).devices} == {None}


@pytest.mark.parametrize("instead", ["nothing", "directory", "dangling link"])
def test_one_missing_node_among_others_is_said(instead: str, fresh_host: Path) -> None:
    node = fresh_host / "dev/neuron9"
    node.unlink()
    if instead == "directory":
        node.mkdir()
    elif instead == "dangling link":
        node.symlink_to("/dev/neuron99")
    inventory = discover(fresh_host)

    assert [device.index for device in inventory.devices if not device.node_present] == [9]
    assert codes(inventory) == {"device-node-missing": "neuron9"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make device nodes")
def test_a_node_with_other_numbers_than_sysfs_is_said(fresh_host: Path) -> None:
    (fresh_host / "dev/neuron9").unlink()
    os.mknod(fresh_host / "dev/neuron9", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    inventory = discover(fresh_host)

    assert inventory.devices[9].node_present
    assert (inventory.devices[9].major, inventory.devices[9].minor) == (1, 3)
    assert codes(inventory) == {"device-node-stale": "neuron9"}


# Values of a device


@pytest.mark.parametrize("content", ["", "0", "-2", "2.5", "eight", "1000", b"\xff\x00", "8" * 70000])
def test_an_unusable_core_count_is_taken_from_the_table(content: str | bytes, host: Path) -> None:
    put(device_directory(host, 2) / "core_count", content)
    inventory = discover(host)

    assert inventory.devices[2].core_count == 8
    assert codes(inventory) == {"core-count-unreadable": "neuron2"}


def test_files_that_only_root_may_read_leave_what_the_table_knows(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = discover(host)
    deny(monkeypatch, "core_count")
    deny(monkeypatch, "connected_devices")
    deny(monkeypatch, "reset")
    inventory = discover(host)

    assert inventory.devices == tuple(replace(device, connected=None) for device in expected.devices)
    assert codes(inventory) == {
        "core-count-unreadable": "neuron0-neuron15",
        "connected-unreadable": "neuron0-neuron15",
    }
    assert "Permission denied" in text_of(inventory, "core-count-unreadable")


@pytest.mark.parametrize("instead", ["directory", "pipe"])
def test_what_is_no_regular_file_is_not_opened(instead: str, fresh_host: Path) -> None:
    path = device_directory(fresh_host, 2) / "core_count"
    path.unlink()
    if instead == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    inventory = discover(fresh_host)

    golden(text_of(inventory, "core-count-unreadable"))


def test_a_core_count_without_file_and_table_is_unknown(host: Path) -> None:
    put(host / "sys/devices/virtual/dmi/id/product_name", "trn9.96xlarge\n")
    (device_directory(host, 2) / "core_count").unlink()
    inventory = discover(host)

    assert inventory.devices[2].core_count is None
    assert codes(inventory).keys() == {"instance-type-unknown", "core-count-unreadable"}


def test_a_core_count_that_differs_from_the_table_is_taken_and_said(host: Path) -> None:
    put(device_directory(host, 2) / "core_count", "4")
    inventory = discover(host)

    assert inventory.devices[2].core_count == 4
    assert codes(inventory) == {"core-count-mismatch": "neuron2"}


@pytest.mark.parametrize("name", ["core_count", "connected_devices"])
def test_a_busy_value_is_unknown_and_makes_the_inventory_settle(name: str, host: Path) -> None:
    put(device_directory(host, 2) / name, "busy\n")
    inventory = discover(host)

    assert inventory.settling
    assert inventory.devices[2].core_count == 8
    assert codes(inventory) == {"value-busy": "neuron2"}
    assert name in text_of(inventory, "value-busy")


@pytest.mark.parametrize("content", ["12 1 3 4\n", "1,,2", "a, b", "1, -2", "1, 2,", "9999", b"\xff"])
def test_unusable_neighbours_are_unknown(content: str | bytes, host: Path) -> None:
    put(device_directory(host, 0) / "connected_devices", content)
    inventory = discover(host)

    assert inventory.devices[0].connected is None
    assert codes(inventory) == {"connected-unreadable": "neuron0"}


@pytest.mark.parametrize("content", ["\n", "", "12, 1, 3\n", "1, 2, 3, 4\n"])
def test_neighbours_that_differ_from_the_table_are_said(content: str, host: Path) -> None:
    put(device_directory(host, 0) / "connected_devices", content)
    inventory = discover(host)

    assert inventory.devices[0].connected == tuple(sorted(int(item) for item in re.findall("[0-9]+", content)))
    assert codes(inventory) == {"connected-mismatch": "neuron0"}


@pytest.mark.parametrize("name", ["trn3.48xlarge", "inf1.24xlarge"])
def test_neighbours_are_not_compared_where_the_table_promises_none(name: str, tmp_path: Path) -> None:
    write_host(tmp_path, INSTANCE_TYPES[name], EmulationOptions())
    put(device_directory(tmp_path, 0) / "connected_devices", "9\n")

    assert discover(tmp_path).findings == ()


def test_a_chip_of_another_generation_is_said(host: Path) -> None:
    put(device_directory(host, 1) / "info/architecture/device_name", "Trainium1\n")
    inventory = discover(host)

    assert inventory.devices[1].architecture == "Trainium1"
    assert codes(inventory) == {"architecture-mismatch": "neuron1"}
    golden(text_of(inventory, "architecture-mismatch"))


@pytest.mark.parametrize("content", ["", "\x1b[0m", b"\xff", "x" * 65])
def test_an_unusable_architecture_is_unknown(content: str | bytes, host: Path) -> None:
    put(device_directory(host, 1) / "info/architecture/device_name", content)

    assert discover(host).devices[1].architecture is None


@pytest.mark.parametrize(
    ("state", "settling", "expected"),
    [
        ("0\n", True, {"device-resetting": "neuron8"}),
        ("1\n", False, {}),
        ("2\n", False, {"device-invalid": "neuron8"}),
        ("busy\n", True, {}),
        ("7\n", False, {}),
        ("", False, {}),
    ],
)
def test_the_state_of_a_device_is_said_and_the_device_stays(
    state: str, settling: bool, expected: dict[str, str], host: Path
) -> None:
    put(device_directory(host, 8) / "reset", state)
    inventory = discover(host)

    assert len(inventory.devices) == 16
    assert inventory.settling is settling
    assert codes(inventory) == expected


@pytest.mark.parametrize("content", ["\n", "", "busy\n", "xyz", "123", b"\xff", "0" * 17])
def test_an_unusable_serial_number_is_unknown(content: str | bytes, host: Path) -> None:
    put(device_directory(host, 8) / "info/serial_number", content)
    inventory = discover(host)

    assert inventory.devices[8].serial_number is None
    assert (inventory.findings, inventory.settling) == ((), False)


def test_a_serial_number_is_read_once_in_the_life_of_a_device(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(device_directory(host, 8) / "info/serial_number", "\n")
    reads: list[str] = []
    read = sysfs._read_all

    def counting(path: str) -> bytes:
        if path.endswith("serial_number"):
            reads.append(path)
        return read(path)

    monkeypatch.setattr(sysfs, "_read_all", counting)
    first = discover(host)
    for index in range(16):
        put(device_directory(host, index) / "info/serial_number", "00000000000000ff\n")
    second = discover(host, {}, first)

    assert len(reads) == 16
    assert second == first


def test_a_device_that_came_back_with_other_numbers_has_its_serial_number_read_again(host: Path) -> None:
    first = discover(host)
    put(device_directory(host, 5) / "info/serial_number", "00000000000000FF\n")
    put(device_directory(host, 5) / "dev", "1:5\n")

    assert discover(host, {}, first).devices[5].serial_number == "00000000000000ff"


# Default logical core size


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("NEURON_LOGICAL_NC_CONFIG=1\n", 1),
        ("NEURON_LOGICAL_NC_CONFIG=2", 2),
        ("# node default\n\nexport NEURON_LOGICAL_NC_CONFIG = '1'\n", 1),
        ('NEURON_LOGICAL_NC_CONFIG=2\nNEURON_LOGICAL_NC_CONFIG="1"\n', 1),
    ],
)
def test_the_default_logical_core_size_is_read(content: str, expected: int, host: Path) -> None:
    put(host / "opt/aws/neuron/logical_nc_config", content)
    inventory = discover(host)

    assert (inventory.default_lnc, inventory.findings) == (expected, ())


@pytest.mark.parametrize("content", ["", "1", "NEURON_LOGICAL_NC_CONFIG=", "NEURON_LOGICAL_NC_CONFIG=4", b"\xff"])
def test_an_unusable_default_logical_core_size_is_said(content: str | bytes, host: Path) -> None:
    put(host / "opt/aws/neuron/logical_nc_config", content)
    inventory = discover(host)

    assert inventory.default_lnc is None
    assert codes(inventory) == {"lnc-default-unusable": "opt/aws/neuron/logical_nc_config"}


def test_a_default_that_the_type_does_not_have_is_said(tmp_path: Path) -> None:
    write_host(tmp_path, INSTANCE_TYPES["trn1.2xlarge"], EmulationOptions(logical_nc_config=2))
    inventory = discover(tmp_path)

    assert inventory.default_lnc is None
    assert "legal here: 1" in text_of(inventory, "lnc-default-unusable")


# Findings


def test_devices_with_the_same_trouble_make_one_finding_and_others_their_own(host: Path) -> None:
    for index in (1, 2, 3, 9):
        put(device_directory(host, index) / "core_count", "")
    put(device_directory(host, 5) / "core_count", "many")
    findings = discover(host).findings

    assert [(finding.code, finding.subject) for finding in findings] == [
        ("core-count-unreadable", "neuron1-neuron3,neuron9"),
        ("core-count-unreadable", "neuron5"),
    ]


def test_device_ranges_shorten_runs() -> None:
    assert device_ranges([7, 0, 1, 1, 3, 8]) == "neuron0-neuron1,neuron3,neuron7-neuron8"


@pytest.mark.parametrize(
    ("target", "root"),
    [
        ("../../../devices/pci0000:c4/0000:c4:01.0/0000:c5:00.0/0000:cc:00.0", "pci0000:c4"),
        ("../../../devices/pci10000:e0/0000:cc:00.0", "pci10000:e0"),
        ("../../../devices/pci0000:c4/pci10000:e0/0000:cc:00.0", "pci0000:c4"),
        ("../../../devices/platform/40000000.pcie/pci0000:c4/0000:cc:00.0", None),
        ("../../../devices/pci0000:c4/0000:cb:00.0", None),
        ("../../../devices/pci0000:c4/../../0000:cc:00.0", None),
        ("../../../devices/pci0000:C4/0000:cc:00.0", None),
        ("../../../devices/pci0000:c4/0000:cc:00.0\n", None),
        ("/sys/devices/pci0000:c4/0000:cc:00.0", None),
        ("../../../devices/pci0000:c4/" + "a/" * 1900 + "0000:cc:00.0", "pci0000:c4"),
        ("../../../devices/pci0000:c4/" + "a/" * 1900 + "!/0000:cc:00.0", None),
        (None, None),
    ],
)
def test_the_pcie_root_is_what_the_link_of_the_chip_begins_with(
    fresh_host: Path, target: str | None, root: str | None
) -> None:
    link = fresh_host / "sys/bus/pci/devices/0000:cc:00.0"
    link.unlink()
    if target is None:
        link.mkdir()
    else:
        link.symlink_to(target)
    found = discover(fresh_host).devices
    assert found[0].pcie_root == root
    assert found[1].pcie_root == "pci0000:b2"
