"""The Neuron devices of a host, as sysfs and /dev show them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TypeVar

from dra_driver.neuron.host.findings import Findings, shown
from dra_driver.neuron.host.inventory import NeuronDevice, NodeInventory
from dra_driver.neuron.host.sysfs import HostFiles
from dra_driver.neuron.topology.instance_types import InstanceType, lookup

DEVICE_DIRECTORIES = ("sys/devices/virtual/neuron_device", "sys/class/neuron_device")
"""Where the kernel driver's devices are; the class holds links to the first and is read when that is not visible."""

PROC_DEVICES = "proc/devices"
PCI_DEVICES = "sys/bus/pci/devices"
"""A link for each PCI device, by its address."""

_ENTRY = re.compile(r"neuron(0|[1-9][0-9]{0,2})")
_NUMBERS = re.compile(r"([1-9][0-9]{0,3}):([0-9]{1,7})")
_COUNT = re.compile(r"[1-9][0-9]?")
_INDEX = re.compile(r"[0-9]{1,3}")
_SERIAL = re.compile(r"[0-9a-f]{16}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")
_NEURON_MAJOR = re.compile(r"^\s*([0-9]{1,4}) neuron$", re.MULTILINE)

_PCI_LINK = re.compile(
    r"\.\./\.\./\.\./devices/(pci[0-9a-f]{4,8}:[0-9a-f]{2})"
    r"(?:/[0-9a-z][0-9a-z:._-]*)*/([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
)

_STATE_RESETTING, _STATE_INVALID = "0", "2"

Value = TypeVar("Value")


@dataclass(slots=True)
class Scan:
    """One reading of one host: where from, what is expected, and what is noticed on the way."""

    files: HostFiles
    instance_type: str | None
    former: NodeInventory | None
    findings: Findings
    settling: bool = False
    _shows_nodes: bool | None = None

    @property
    def kind(self) -> InstanceType | None:
        """What the instance type's table expects; None when there is no such row."""
        return lookup(self.instance_type)

    @property
    def shows_nodes(self) -> bool:
        """Whether /dev has the node of some Neuron device, and so is the host's; listed at most once."""
        if self._shows_nodes is None:
            self._shows_nodes = bool(_indexes(self.files, "dev"))
        return self._shows_nodes


def device_entries(files: HostFiles, findings: Findings, chips: Collection[int] | None = None) -> dict[int, str]:
    """Index to sysfs directory of every device, or of those among ``chips``, ascending."""
    if chips is not None:
        paths = {index: [f"{directory}/neuron{index}" for directory in DEVICE_DIRECTORIES] for index in sorted(chips)}
        there = {index: next(filter(files.is_directory, choices), "") for index, choices in paths.items()}
        return {index: path for index, path in there.items() if path}
    for directory in DEVICE_DIRECTORIES:
        entries = _indexes(files, directory)
        if entries:
            break
    else:
        return {}
    directories = {}
    for index in entries:
        path = f"{directory}/neuron{index}"
        if files.is_directory(path):
            directories[index] = path
        else:
            findings.add_device("device-entry-odd", index)
    return directories


def read_devices(scan: Scan, entries: dict[int, str]) -> tuple[NeuronDevice, ...]:
    """All devices, ascending.

    PCI address and NUMA node are taken from the table only when exactly the devices of the instance type are there:
    sysfs does not show them (the class devices have no parent), and after a failure of one chip nothing guarantees that
    the kernel driver numbers the rest as the table does.
    """
    read = (_read_device(scan, index, path) for index, path in entries.items())
    devices = tuple(device for device in read if device is not None)
    _check_major(scan, devices)
    kind = scan.kind
    if kind is None or kind.devices is None:
        return devices
    present, expected = {device.index for device in devices}, set(range(kind.devices))
    for index in expected - present:
        scan.findings.add_device("devices-missing", index, kind.name)
    for index in present - expected:
        scan.findings.add_device("devices-unexpected", index, kind.name)
    if present != expected:
        return devices
    _check_connected(scan, devices, kind)
    return tuple(_placed(scan.files, device, kind) for device in devices)


def read_numbers(scan: Scan, entries: dict[int, str]) -> tuple[NeuronDevice, ...]:
    """These devices with their device numbers of now; what else they are is as ``scan.former`` has it.

    That is two small reads a device: the rest costs ten times as much, and how long firmware takes is not known.
    """
    read = (_read_numbers(scan, index, path) for index, path in entries.items())
    return tuple(device for device in read if device is not None)


def _read_numbers(scan: Scan, index: int, path: str) -> NeuronDevice | None:
    former = scan.former.device(index) if scan.former is not None else None
    if former is None:
        return _read_device(scan, index, path)
    numbers = _parsed(scan, index, f"{path}/dev", parse_numbers, "device-numbers-unreadable")
    major, minor = numbers or (None, None)
    return replace(former, major=major, minor=minor, node_present=_node_present(scan, index, numbers))


def _placed(files: HostFiles, device: NeuronDevice, kind: InstanceType) -> NeuronDevice:
    address = kind.pci_bus_ids[device.index] if kind.pci_bus_ids else None
    return replace(
        device,
        pci_bus_id=address,
        numa_node=kind.numa_nodes[device.index] if kind.numa_nodes else None,
        pcie_root=parse_pcie_root(files.link(f"{PCI_DEVICES}/{address}") or "", address) if address else None,
    )


def parse_pcie_root(target: str, address: str) -> str | None:
    """The root complex (``pci<domain>:<bus>``) in the link of a PCI device, as Kubernetes' helper for drivers has it.

    None: it is no link of this device, or does not begin at a PCI root (of some Arm hosts: at ``platform``).
    """
    match = _PCI_LINK.fullmatch(target)
    return match[1] if match and match[2] == address else None


def _read_device(scan: Scan, index: int, path: str) -> NeuronDevice | None:
    """One device; None when it went away, or was replaced, while it was read: half of its values would be missing."""
    kind, before = scan.kind, scan.files.inode(path)
    numbers = _parsed(scan, index, f"{path}/dev", parse_numbers, "device-numbers-unreadable")
    cores = _parsed(scan, index, f"{path}/core_count", parse_core_count, "core-count-unreadable")
    if kind is not None and cores not in {None, kind.cores_per_device}:
        scan.findings.add_device("core-count-mismatch", index, f"{cores} instead of {kind.cores_per_device}")
    _note_state(scan, index, path)
    major, minor = numbers or (None, None)
    device = NeuronDevice(
        index=index,
        major=major,
        minor=minor,
        node_present=_node_present(scan, index, numbers),
        core_count=kind.cores_per_device if cores is None and kind is not None else cores,
        connected=_parsed(scan, index, f"{path}/connected_devices", parse_connected, "connected-unreadable"),
        serial_number=_serial_number(scan, index, path, numbers),
        architecture=_architecture(scan, index, path),
    )
    if before is not None and scan.files.inode(path) == before:
        return device
    scan.findings.forget_device(index)
    scan.settling = True
    return None


def _parsed(scan: Scan, index: int, path: str, parse: Callable[[str], Value | None], code: str) -> Value | None:
    """Value of one file; None, and a finding, when it is busy, unreadable or no such value."""
    content = scan.files.read(path)
    if content.busy:
        scan.settling = True
        scan.findings.add_device("value-busy", index, path.rpartition("/")[2])
        return None
    if content.text is None:
        scan.findings.add_device(code, index, content.problem)
        return None
    value = parse(content.text)
    if value is None:
        scan.findings.add_device(code, index, shown(content.text))
    return value


def parse_numbers(text: str) -> tuple[int, int] | None:
    """Major and minor number of a file ``dev``; None: it says something else."""
    match = _NUMBERS.fullmatch(text)
    return (int(match[1]), int(match[2])) if match else None


def parse_core_count(text: str) -> int | None:
    """Number of cores, from 1 to 99; None: it is none."""
    return int(text) if _COUNT.fullmatch(text) else None


def parse_connected(text: str) -> tuple[int, ...] | None:
    """The neighbours' indexes, ascending; None: it is no list of indexes."""
    if not text:
        return ()
    items = [item.strip() for item in text.split(",")]
    return tuple(sorted({int(item) for item in items})) if all(map(_INDEX.fullmatch, items)) else None


def _serial_number(scan: Scan, index: int, path: str, numbers: tuple[int, int] | None) -> str | None:
    """Serial number, read at most once in the life of a device.

    Each read that the firmware does not answer makes the kernel driver log an error, so a device known from the scan
    before keeps what was found then, an empty answer included. Other device numbers mean a reloaded driver.
    """
    former = scan.former.device(index) if scan.former is not None else None
    if former is not None and (former.major, former.minor) == (numbers or (None, None)):
        return former.serial_number
    text = (scan.files.read(f"{path}/info/serial_number").text or "").lower()
    return text if _SERIAL.fullmatch(text) else None


def _architecture(scan: Scan, index: int, path: str) -> str | None:
    name = scan.files.read(f"{path}/info/architecture/device_name").text or ""
    if not _NAME.fullmatch(name):
        return None
    kind = scan.kind
    if kind is not None and name != kind.sysfs.device_name:
        scan.findings.add_device("architecture-mismatch", index, f"{name} instead of {kind.sysfs.device_name}")
    return name


def _note_state(scan: Scan, index: int, path: str) -> None:
    """The file ``reset`` shows the device's state to root; it is read here and never written, which would reset it."""
    state = scan.files.read(f"{path}/reset")
    if state.text == _STATE_RESETTING:
        scan.findings.add_device("device-resetting", index)
    elif state.text == _STATE_INVALID:
        scan.findings.add_device("device-invalid", index)
    scan.settling = scan.settling or state.busy or state.text == _STATE_RESETTING


def _node_present(scan: Scan, index: int, numbers: tuple[int, int] | None) -> bool | None:
    """Whether the host's /dev has the device's node (a plain file on a host emulated without root).

    None when /dev has the node of no Neuron device, and so is not the host's: a container's own /dev, which is all that
    the vendor's DaemonSet gives the driver, has none.
    """
    status = scan.files.status(f"dev/neuron{index}")
    if status is None and not scan.shows_nodes:
        return None
    if status is None or not (stat.S_ISCHR(status.st_mode) or stat.S_ISREG(status.st_mode)):
        scan.findings.add_device("device-node-missing", index)
        return False
    actual = (os.major(status.st_rdev), os.minor(status.st_rdev))
    if stat.S_ISCHR(status.st_mode) and numbers not in {None, actual}:
        scan.findings.add_device("device-node-stale", index, "{}:{}".format(*actual))
    return True


def _check_major(scan: Scan, devices: Collection[NeuronDevice]) -> None:
    """Compare with the kernel's list of drivers, which may give one driver several major numbers."""
    listed = {int(major) for major in _NEURON_MAJOR.findall(scan.files.read(PROC_DEVICES).text or "")}
    if not listed:
        return
    for device in devices:
        if device.major is not None and device.major not in listed:
            majors = ", ".join(map(str, sorted(listed)))
            scan.findings.add_device("major-mismatch", device.index, f"{device.major} instead of {majors}")


def _check_connected(scan: Scan, devices: Collection[NeuronDevice], kind: InstanceType) -> None:
    """Compare the links with the table's, where the table is sure of them.

    Not so behind a switch, where the kernel driver prints the torus of Trainium2, and only on a full node: the driver
    prints no links at all otherwise.
    """
    if not kind.fabric.adjacency_promised or "fabric" in kind.inferred:
        return
    for device in devices:
        if device.connected not in {None, kind.fabric.neighbours(device.index)}:
            scan.findings.add_device("connected-mismatch", device.index, kind.name)


def _indexes(files: HostFiles, directory: str) -> list[int]:
    return sorted(int(match[1]) for name in files.names(directory) if (match := _ENTRY.fullmatch(name)))
