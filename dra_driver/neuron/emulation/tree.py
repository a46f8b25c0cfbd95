"""Computes the files of a Neuron host: those that the kernel, its Neuron driver and EC2 provide for an instance type.

Formats follow the Neuron kernel driver (its sysfs documentation and behaviour) and the kernel's device model. Counters
that only profiling tools read (memory usage, power, execution status) and files whose content is not publicly
documented (firmware versions) are omitted, as is ``present`` beside each ``total``: it starts anew with every read of a
monitoring tool.
"""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.neuron.emulation.options import (
    ECC_FILES,
    ECC_FILES_OF_OLD_DRIVERS,
    NEW_FILES_SINCE,
    EmulationOptions,
    driver_version,
    release,
)
from dra_driver.neuron.host.devices import PCI_DEVICES
from dra_driver.neuron.host.discover import LNC_DEFAULT, LNC_KEY
from dra_driver.neuron.topology.fabric import Chain, Fabric, Ring
from dra_driver.neuron.topology.instance_types import InstanceType
from dra_driver.neuron.topology.ultraserver import Mode


@dataclass(frozen=True, slots=True)
class TextFile:
    """A regular file."""

    text: str
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class SymbolicLink:
    """A symbolic link."""

    target: str


@dataclass(frozen=True, slots=True)
class CharacterDevice:
    """A character device with mode 0666."""

    major: int
    minor: int
    mode: int = 0o666


Entry = TextFile | SymbolicLink | CharacterDevice

DEVICES = "sys/devices/virtual/neuron_device"
CLASS = "sys/class/neuron_device"
MODULE_VERSION = "sys/module/neuron/version"

NULL_DEVICE = (1, 3)
"""Device number of ``/dev/null``: an emulated chip is a device that any container can open and that does nothing."""

PCI_VENDOR = "1d0f"
"""Amazon's."""
EFA_DEVICE_ID = "efa2"
"""One of those from efa0 on (Linux, ``drivers/infiniband/hw/efa``); which of them a type has makes no difference."""

_READABLE_BY_ALL_SINCE = (2, 28)
"""Kernel driver version since which all users, not only root, may read ``core_count`` and ``connected_devices``."""

_TORUS_ORDER_TRN2 = (
    (12, 1, 3, 4), (0, 13, 5, 2), (14, 3, 1, 6), (2, 15, 7, 0),
    (8, 5, 7, 0), (4, 9, 1, 6), (10, 7, 5, 2), (6, 11, 3, 4),
    (4, 9, 11, 12), (8, 5, 13, 10), (6, 11, 9, 14), (10, 7, 15, 8),
    (0, 13, 15, 8), (12, 1, 9, 14), (2, 15, 13, 10), (14, 3, 11, 12),
)  # fmt: skip
"""Order in which the kernel driver prints the neighbours on Trainium2, and from the same table on Trainium3."""

HEALTH_STATUS = "stats/hardware/health_status"
HEALTH_FAMILIES = {"trn2", "trn3"}
CORE_ERRORS = (
    "hw_collectives_error",
    "hw_dma_abort_error",
    "hw_hbm_ue_error",
    "hw_nc_ue_error",
    "hw_repairable_hbm_ue_error",
)
"""Counters of executions that failed on hardware, by core; each is a directory with the file ``total``."""
SERIAL_BASE = 0x0E30000000000000
DEFAULT_SERVER_ID = "1a2b3c4d5e6f7081"
_NO_SERVER_ID = "0" * 16
_DEFAULT_MODES = (Mode.X4, Mode.X2V, Mode.X1)
"""The modes that a node of a healthy server with four nodes supports."""
_DEFAULT_NODE_COUNT = 4


def host_files(kind: InstanceType, options: EmulationOptions, *, counters: bool = True) -> dict[str, Entry]:
    """Files by path relative to the host's root. The options must have passed ``options.check``.

    Without ``counters`` of the cores, which are more than half of all files: no scan of devices reads them.
    """
    version = driver_version(kind, options)
    present = [index for index in range(kind.devices or 0) if index not in options.missing]
    major, minor = NULL_DEVICE
    tree: dict[str, Entry] = {
        "sys/devices/virtual/dmi/id/product_name": TextFile(f"{kind.name}\n", 0o444),
        "sys/devices/virtual/dmi/id/sys_vendor": TextFile("Amazon EC2\n", 0o444),
        "sys/class/dmi/id": SymbolicLink("../../devices/virtual/dmi/id"),
        # The null device's major number belongs to the driver "mem"; several drivers may be listed with one number.
        "proc/devices": TextFile(f"Character devices:\n{major:3} mem\n{major:3} neuron\n\nBlock devices:\n", 0o444),
        MODULE_VERSION: TextFile(f"{version}\n", 0o444),
    }
    for index in present:
        tree[f"{CLASS}/neuron{index}"] = SymbolicLink(f"../../devices/virtual/neuron_device/neuron{index}")
        tree[f"dev/neuron{index}"] = CharacterDevice(major, minor)
        for path, entry in _device_files(kind, index, present, version, options).items():
            tree[f"{DEVICES}/neuron{index}/{path}"] = entry
        if counters:
            for core in range(kind.cores_per_device):
                for name in CORE_ERRORS:
                    tree[f"{DEVICES}/neuron{index}/{core_counter(core, name)}"] = _ZERO
    tree |= _pci_files(kind, present)
    for name, text in _ultraserver_files(kind, options).items():
        tree[f"{CLASS}/{name}"] = TextFile(f"{text}\n", 0o444)
    if options.logical_nc_config is not None:
        tree[LNC_DEFAULT] = TextFile(f"{LNC_KEY}={options.logical_nc_config}\n")
    return tree


def _device_files(
    kind: InstanceType, index: int, present: list[int], version: str, options: EmulationOptions
) -> dict[str, Entry]:
    major, minor = NULL_DEVICE
    topology_mode = 0o444 if release(version) >= _READABLE_BY_ALL_SINCE else 0o400
    neighbours = ", ".join(map(str, _connected(kind, index, present)))
    files: dict[str, Entry] = {
        "dev": TextFile(f"{major}:{minor}\n", 0o444),
        "uevent": TextFile(f"MAJOR={major}\nMINOR={minor}\nDEVNAME=neuron{index}\n"),
        "subsystem": SymbolicLink("../../../../class/neuron_device"),
        "core_count": TextFile(str(kind.cores_per_device), topology_mode),
        "connected_devices": TextFile(f"{neighbours}\n", topology_mode),
        "reset": TextFile("1\n", 0o600),
        "info/notify_delay": TextFile("-1\n"),
        "info/architecture/arch_type": TextFile(f"{kind.sysfs.arch_type}\n"),
        "info/architecture/instance_type": TextFile(f"{kind.sysfs.instance_type}\n"),
        "info/architecture/device_name": TextFile(f"{kind.sysfs.device_name}\n"),
    }
    if kind.family != "inf1":
        files["info/serial_number"] = TextFile(f"{SERIAL_BASE + index:016x}\n")
    for core in range(kind.cores_per_device):
        files[f"neuron_core{core}/info/architecture/arch_type"] = TextFile(f"{kind.sysfs.core_arch_type}\n")
    new = release(version) >= NEW_FILES_SINCE
    for counter in ECC_FILES if new else ECC_FILES_OF_OLD_DRIVERS:
        value = options.ecc.get(index, {}).get(counter, 0)
        files[f"stats/hardware/{ECC_FILES[counter]}"] = TextFile(f"{value}\n")
    if new and kind.family in HEALTH_FAMILIES:
        files[f"{HEALTH_STATUS}/unhealthy_components"] = TextFile("\n")
        files[f"{HEALTH_STATUS}/healthcheck_heartbeat"] = TextFile("1\n")
        files[f"{HEALTH_STATUS}/hw_error_event"] = TextFile("0\n")
    return files


_ZERO = TextFile("0\n")


def _pci_files(kind: InstanceType, present: list[int]) -> dict[str, Entry]:
    """The PCI devices of the chips and of the EFA devices next to them, where their addresses are public."""
    chip_id, numa = kind.chip.pci_device_ids[0], kind.numa_nodes
    of_chips = {kind.pci_bus_ids[index]: (chip_id, index) for index in present} if kind.pci_bus_ids else {}
    of_efa = {address: (EFA_DEVICE_ID, index) for index, address in reversed(list(enumerate(kind.efa_bdfs or ())))}
    files: dict[str, Entry] = {}
    for address, (device_id, index) in {**of_chips, **of_efa}.items():
        place = f"devices/{pcie_root(kind, address)}/{address}"
        files[f"{PCI_DEVICES}/{address}"] = SymbolicLink(f"../../../{place}")
        files[f"sys/{place}/vendor"] = TextFile(f"0x{PCI_VENDOR}\n", 0o444)
        files[f"sys/{place}/device"] = TextFile(f"0x{device_id}\n", 0o444)
        files[f"sys/{place}/numa_node"] = TextFile(f"{-1 if numa is None else numa[index]}\n")
    return files


def pcie_root(kind: InstanceType, address: str) -> str:
    """The root complex of a chip or an EFA device.

    On trn1.32xlarge it is the device's own bus (see ``efa.py``), on which devices have numbers. A device 0 is behind a
    switch: as no public source has their roots, those on neighbouring buses are taken to share one, below the lowest.
    """
    domain, bus, device = address.split(":")
    number = int(bus, 16)
    if device.startswith("00."):
        buses = {int(other.split(":")[1], 16) for other in (*(kind.pci_bus_ids or ()), *(kind.efa_bdfs or ()))}
        while number in buses:
            number -= 1
    return f"pci{domain}:{number:02x}"


def core_counter(core: int, name: str) -> str:
    """The file of a core's counter, below the device's directory."""
    return f"neuron_core{core}/stats/status/{name}/total"


def _connected(kind: InstanceType, index: int, present: list[int]) -> tuple[int, ...]:
    """Neighbours as the kernel driver prints them: in its own order, and on a torus from fixed tables.

    The tables apply to hosts with exactly the devices that they were made for; with one missing, the list is empty.
    """
    fabric = kind.fabric
    if kind.family == "inf1":
        return tuple(other for other in reversed(fabric.neighbours(index)) if other in present)
    if isinstance(fabric, (Ring, Chain)):
        return _around(fabric, index) if len(present) == kind.devices else ()
    if len(present) % 16:
        return ()
    return _torus_order_trn1(index) if kind.family == "trn1" else _TORUS_ORDER_TRN2[index]


def _around(fabric: Fabric, index: int) -> tuple[int, ...]:
    """The previous and then the next device, wrapping around the ends of a ring."""
    size, linked = fabric.size, fabric.neighbours(index)
    return tuple(other for other in ((index - 1) % size, (index + 1) % size) if other in linked)


def _torus_order_trn1(index: int) -> tuple[int, ...]:
    """Up, left, down, right on the 4x4 torus."""
    row, column = divmod(index, 4)
    return (
        (row - 1) % 4 * 4 + column,
        row * 4 + (column - 1) % 4,
        (row + 1) % 4 * 4 + column,
        row * 4 + (column + 1) % 4,
    )


def _ultraserver_files(kind: InstanceType, options: EmulationOptions) -> dict[str, str]:
    """Class files that describe the node's position in its UltraServer, by name; empty for types without UltraServers.

    Machines without an election name the ids without a number of nodes. Their list of modes is not documented; the one
    of an elected server is used instead.
    """
    if kind.ultraserver is None:
        return {}
    modes = _DEFAULT_MODES if options.ultraserver_modes is None else options.ultraserver_modes
    numbers = ",".join(str(number) for number in sorted(mode.value for mode in modes))
    server_ids, node_ids = _ultraserver_ids(modes, options)
    if kind.ultraserver.files != "elected":
        return {
            "node_id": str(node_ids[4]),
            "node_cnt": str(options.node_count or kind.ultraserver.nodes or _DEFAULT_NODE_COUNT),
            "reservation_id": server_ids[4],
            "ultraserver_mode": numbers,
        }
    files = {"ultraserver_mode": "busy" if options.busy else numbers}
    for size in (2, 4):
        files[f"node_id_{size}"] = "busy" if options.busy else str(node_ids[size])
        files[f"server_id_{size}"] = _NO_SERVER_ID if options.busy else server_ids[size]
    return files


def _ultraserver_ids(modes: tuple[Mode, ...], options: EmulationOptions) -> tuple[dict[int, str], dict[int, int]]:
    """Server and node ids by number of nodes, as an election assigns them.

    As a pair, nodes 0 and 1 of four also use the server's serial number; nodes 2 and 3 use the number below it.
    """
    of_four, of_two = (any(mode.nodes == nodes for mode in modes) for nodes in (4, 2))
    four = options.node_ids.get(4, 0 if of_four else -1)
    serial = options.server_ids.get(4, DEFAULT_SERVER_ID)
    pair_serial = serial if four < 2 else f"{(int(serial, 16) - 1) % (1 << 64):016x}"
    node_ids = {2: options.node_ids.get(2, max(four, 0) % 2 if of_two else -1), 4: four}
    server_ids = {
        2: options.server_ids.get(2, pair_serial if of_two else _NO_SERVER_ID),
        4: serial if of_four or 4 in options.server_ids else _NO_SERVER_ID,
    }
    return server_ids, node_ids
