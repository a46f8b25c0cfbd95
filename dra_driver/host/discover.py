"""What this node has, read once. The entry point of the room."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from dra_driver.host.devices import Scan, device_entries, read_devices, read_numbers
from dra_driver.host.findings import Findings
from dra_driver.host.inventory import NodeInventory
from dra_driver.host.node import (
    capacity_block_id,
    default_lnc,
    driver_version,
    instance_type,
    network_layers,
)
from dra_driver.host.reading import HostFiles
from dra_driver.host.ultraserver import membership
from dra_driver.topology.instance_types import lookup

EMULATION_MARKER = ".dra-driver-emulated-host.json"
"""File at the root of every host that ``dra-driver emulate-host`` wrote."""

NO_LABELS: Mapping[str, str] = MappingProxyType({})


def discover(root: Path, labels: Mapping[str, str] = NO_LABELS, known: NodeInventory | None = None) -> NodeInventory:
    """Read the host whose file system begins at ``root``; writes nothing and opens nothing outside of it.

    Args:
        root: ``/`` on the node itself, a mount of it, or a directory made by ``emulate-host``.
        labels: of the Node object; its instance type, EC2 network layers and capacity block are used.
        known: the inventory of the scan before, if any. Serial numbers of devices in it are not read again, and its
            UltraServer's sets stand in while an election runs.

    Returns:
        An inventory for every state of the host, with what is odd among its ``findings``. Never raises for what is, or
        is not, on the host.
    """
    files = HostFiles(root)
    if not files.is_directory(""):
        findings = Findings()
        findings.add("host-root-missing", str(root))
        return NodeInventory(instance_type=None, driver_version=None, devices=(), findings=findings.all())
    return discover_files(files, labels, known)


def renew(root: Path, known: NodeInventory, chips: Collection[int] | None = None) -> NodeInventory:
    """``known`` with what containers are given read again, and nothing else.

    That is which chips there are, their device numbers, the node-wide logical core size and the place in the
    UltraServer. Each may change between two scans, and a container with what was true before has other hardware, or
    waits for nodes of another server. Never raises for what is, or is not, on the host.

    Args:
        root: as for ``discover``.
        known: the inventory of the last scan.
        chips: host indexes of those to read again (50 us each); the others stay as known. None: all that there are.
    """
    files, findings = HostFiles(root), Findings()
    kind = lookup(known.instance_type) if known.instance_type is not None else None
    entries = device_entries(files, findings, chips)
    _, loaded = driver_version(files, bool(entries), findings)
    scan = Scan(files, kind, known, findings)
    others = () if chips is None else (device for device in known.devices if device.index not in chips)
    devices = (*others, *read_numbers(scan, entries)) if loaded else ()
    return replace(
        known,
        devices=tuple(sorted(devices, key=lambda device: device.index)),
        default_lnc=default_lnc(files, kind, findings),
        ultraserver=membership(scan, loaded=loaded),
    )


def discover_files(
    files: HostFiles, labels: Mapping[str, str] = NO_LABELS, known: NodeInventory | None = None
) -> NodeInventory:
    """The same for files that are there already; see ``discover``."""
    findings = Findings()
    name = instance_type(files, labels, findings)
    kind = lookup(name) if name is not None else None
    entries = device_entries(files, findings)
    version, loaded = driver_version(files, bool(entries), findings)
    if loaded and not entries:
        findings.add("no-devices", "sys/devices/virtual/neuron_device", version or "of unknown version")
    scan = Scan(files, kind, known, findings)
    devices = read_devices(scan, entries) if loaded and entries else ()
    ultraserver = membership(scan, loaded=loaded)
    return NodeInventory(
        instance_type=name,
        driver_version=version,
        devices=devices,
        default_lnc=default_lnc(files, kind, findings),
        network_layers=network_layers(labels),
        capacity_block_id=capacity_block_id(labels),
        ultraserver=ultraserver,
        emulated=files.status(EMULATION_MARKER) is not None,
        settling=scan.settling,
        findings=findings.all(),
    )
