"""Reads what a node has, once: its devices, and what holds for the node as a whole."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from dra_driver.neuron.host.devices import Scan, device_entries, read_devices, read_numbers
from dra_driver.neuron.host.findings import Findings, shown
from dra_driver.neuron.host.inventory import Membership, NeuronDevice, NodeInventory
from dra_driver.neuron.host.sysfs import HostFiles
from dra_driver.neuron.host.ultraserver import membership
from dra_driver.neuron.topology.hardware import CHIPS, Chip
from dra_driver.neuron.topology.instance_types import HYPERPOD_PREFIX, INSTANCE_TYPE_LABEL, lookup

BOOT_ID = "proc/sys/kernel/random/boot_id"
PRODUCT_NAME = "sys/devices/virtual/dmi/id/product_name"
MODULE_VERSION = "sys/module/neuron/version"
LNC_DEFAULT = "opt/aws/neuron/logical_nc_config"
"""Written by EC2 user data; one line ``NEURON_LOGICAL_NC_CONFIG=1`` (aws-neuron-sdk, deploy/eks/prerequisites.rst)."""
LNC_KEY = "NEURON_LOGICAL_NC_CONFIG"
"""The file's key, which AWS names; not the variable of the same name that containers get."""

NETWORK_LAYER_LABELS = tuple(f"topology.k8s.aws/network-node-layer-{layer}" for layer in (1, 2, 3))
CAPACITY_BLOCK_LABEL = "topology.k8s.aws/capacity-block-id"

_EC2_NAME = re.compile(r"[a-z][a-z0-9-]{1,30}\.[a-z0-9-]{1,30}")
_NEURON_NAME = re.compile(r"(trn|inf)[0-9].*")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+~_-]{0,63}")
_LNC_LINE = re.compile(rf"\s*(?:export\s+)?{LNC_KEY}\s*=\s*(.*?)\s*")


def boot_id(root: Path) -> str:
    """Identity of this boot of the node; "" if it is not known. An emulated host may have one of its own."""
    return HostFiles(root).read(BOOT_ID).text or HostFiles(Path("/")).read(BOOT_ID).text or ""


def instance_type(files: HostFiles, labels: Mapping[str, str], findings: Findings) -> str | None:
    """EC2 name without ``ml.``, from DMI first and the node label second.

    Of the two, a type in the table comes first, then a name that looks like Trainium or Inferentia, then any EC2 name:
    on a host whose DMI names another hypervisor or vendor the label is right. Names of no EC2 form count as none.
    """
    content = files.read(PRODUCT_NAME)
    product = content.text or ""
    detail = content.problem if content.text is None else shown(product)
    from_dmi, from_label = ec2_name(product), ec2_name(labels.get(INSTANCE_TYPE_LABEL, ""))
    name = max((from_dmi, from_label), key=_credibility)
    if name is None:
        findings.add("instance-type-missing", PRODUCT_NAME, f"{PRODUCT_NAME} ({detail})")
        return None
    if name != from_dmi:
        findings.add("instance-type-from-label", name, detail)
    elif from_label is not None and from_label != from_dmi:
        findings.add("instance-type-conflict", name, from_label)
    if lookup(name) is None:
        findings.add("instance-type-unknown", name)
    return name


def ec2_name(text: str) -> str | None:
    """The name of an instance type without HyperPod's prefix; None: it has not the form of one."""
    name = text.removeprefix(HYPERPOD_PREFIX)
    return name if _EC2_NAME.fullmatch(name) else None


def _credibility(name: str | None) -> int:
    if name is None:
        return 0
    if lookup(name) is not None:
        return 3
    return 2 if _NEURON_NAME.fullmatch(name) else 1


def driver_version(files: HostFiles, any_device: bool, findings: Findings) -> tuple[str | None, bool]:
    """Version of the kernel driver, and whether it is loaded at all.

    Without the version file nothing is published even when ``any_device`` says that sysfs lists some: the module is
    being removed, or the host's /sys is visible in part only. A file that says nothing usable is a loaded driver.
    """
    content = files.read(MODULE_VERSION)
    if content.missing:
        findings.add("driver-version-missing" if any_device else "driver-not-loaded", MODULE_VERSION)
        return None, False
    if content.text is not None and _VERSION.fullmatch(content.text):
        return content.text, True
    findings.add("driver-version-unreadable", MODULE_VERSION, content.problem or shown(content.text or ""))
    return None, True


def default_lnc(files: HostFiles, chip: Chip | None, findings: Findings) -> int | None:
    """Logical core size that the node's file sets for every process; None when there is no file or no use in it."""
    content = files.read(LNC_DEFAULT)
    if content.missing:
        return None
    if content.text is None:
        findings.add("lnc-default-unusable", LNC_DEFAULT, content.problem)
        return None
    lines = [match[1].strip("'\"") for line in content.text.splitlines() if (match := _LNC_LINE.fullmatch(line))]
    allowed = chip.lnc_values if chip is not None else (1, 2)
    if lines and lines[-1] in {str(value) for value in allowed}:
        return int(lines[-1])
    legal = " or ".join(str(value) for value in allowed)
    findings.add("lnc-default-unusable", LNC_DEFAULT, f"{shown(content.text)}, legal here: {legal}")
    return None


def chip_of(devices: Iterable[NeuronDevice]) -> Chip | None:
    """What the kernel driver calls the chips of an instance type that is not in the table; None where they differ."""
    architectures = {device.architecture for device in devices} - {None}
    if len(architectures) != 1:
        return None
    return next((chip for chip in CHIPS if chip.sysfs.device_name in architectures), None)


def network_layers(labels: Mapping[str, str]) -> tuple[str | None, str | None, str | None]:
    """EC2 network topology ids of layers 1 to 3, None where a label is missing."""
    first, second, third = (labels.get(name) or None for name in NETWORK_LAYER_LABELS)
    return first, second, third


EMULATION_MARKER = ".dra-driver-emulated-host.json"
"""File at the root of every host that ``dra-driver emulate-host`` wrote."""

NO_LABELS: Mapping[str, str] = MappingProxyType({})


def discover(
    root: Path,
    labels: Mapping[str, str] = NO_LABELS,
    former: NodeInventory | None = None,
    files: HostFiles | None = None,
) -> NodeInventory:
    """Read the host whose file system begins at ``root``; writes nothing and opens nothing outside of it.

    Args:
        root: ``/`` on the node itself, a mount of it, or a directory made by ``emulate-host``.
        labels: of the Node object; its instance type, EC2 network layers and capacity block are used.
        former: the inventory of the scan before, if any. Serial numbers of devices in it are not read again, and its
            UltraServer's sets stand in while an election runs.
        files: of ``root``, for who renews the inventory with them later.

    Returns:
        An inventory for every state of the host, with what is odd among its ``findings``. Never raises for what is, or
        is not, on the host.
    """
    files = files or HostFiles(root)
    if not files.is_directory(""):
        findings = Findings()
        findings.add("host-root-missing", str(root))
        return NodeInventory(instance_type=None, driver_version=None, devices=(), findings=findings.all())
    return discover_files(files, labels, former)


def renew(
    root: Path, former: NodeInventory, chips: Collection[int] | None = None, files: HostFiles | None = None
) -> NodeInventory:
    """``former`` with what containers are given read again, and nothing else.

    That is which chips there are, their device numbers, the node-wide logical core size and the place in the
    UltraServer. Each may change between two scans, and a container with what was true before has other hardware, or
    waits for nodes of another server. Never raises for what is, or is not, on the host.

    Args:
        root: as for ``discover``.
        former: the inventory of the last scan.
        chips: host indexes of those to read again (50 us each); the others stay as known. None: all that there are.
        files: those of the last scan: directories that it found are not looked up again, which is half of the cost.
    """
    files, findings = files or HostFiles(root), Findings()
    scan = Scan(files, former.instance_type, former, findings)
    entries = device_entries(files, findings, chips)
    read = read_numbers(scan, entries)
    _, loaded = driver_version(files, bool(entries), findings)
    others = () if chips is None else (device for device in former.devices if device.index not in chips)
    devices = (*others, *read) if loaded else ()
    chip = former.chip or chip_of(devices)
    return replace(
        former,
        devices=tuple(sorted(devices, key=lambda device: device.index)),
        chip=chip,
        default_lnc=default_lnc(files, chip, findings),
        ultraserver=None if former.ultraserver is None else _membership(scan, loaded=loaded),
    )


def _membership(scan: Scan, *, loaded: bool) -> Membership | None:
    """The part of the node in its UltraServer; None where the instance type is no part of one."""
    shape = scan.kind.ultraserver if scan.kind is not None else None
    return membership(scan, shape, loaded=loaded) if shape is not None else None


def discover_files(
    files: HostFiles, labels: Mapping[str, str] = NO_LABELS, former: NodeInventory | None = None
) -> NodeInventory:
    """The same for files that are there already; see ``discover``."""
    findings = Findings()
    name = instance_type(files, labels, findings)
    kind = lookup(name)
    entries = device_entries(files, findings)
    version, loaded = driver_version(files, bool(entries), findings)
    if loaded and not entries:
        findings.add("no-devices", "sys/devices/virtual/neuron_device", version or "of unknown version")
    scan = Scan(files, name, former, findings)
    devices = read_devices(scan, entries) if loaded and entries else ()
    chip = kind.chip if kind is not None else chip_of(devices)
    ultraserver = _membership(scan, loaded=loaded)
    return NodeInventory(
        instance_type=name,
        driver_version=version,
        devices=devices,
        expected_devices=(kind.devices or 0) if kind is not None else 0,
        chip=chip,
        default_lnc=default_lnc(files, chip, findings),
        network_layers=network_layers(labels),
        capacity_block_id=labels.get(CAPACITY_BLOCK_LABEL) or None,
        ultraserver=ultraserver,
        emulated=files.status(EMULATION_MARKER) is not None,
        settling=scan.settling,
        findings=findings.all(),
    )
