"""Everything odd that the driver can say about a host: one row a finding, and the collector that fills the rows in.

A text says what happened, what follows and what to do. Codes are stable: metrics, alerts and tests use them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from dra_driver.neuron.host.inventory import Finding
from dra_driver.util.text import quoted, ranges

LOAD_DRIVER: Final = "install aws-neuronx-dkms on the node and load it with 'modprobe neuron'"
"""What to do where the kernel driver is not loaded."""

Severity = Literal["info", "warning", "error"]


class _Row(NamedTuple):
    code: str
    severity: Severity
    what: str
    """``{subject}`` and ``{detail}`` are filled in, here and below."""
    consequence: str
    remedy: str


_ROWS = (
    _Row(
        "host-root-missing",
        "error",
        "the host root {subject} is not a directory",
        "no device is published",
        "mount the host's file system there or correct --host-root",
    ),
    _Row(
        "driver-not-loaded",
        "error",
        "{subject} does not exist: the Neuron kernel driver is not loaded",
        "no device is published until it is",
        LOAD_DRIVER,
    ),
    _Row(
        "driver-version-missing",
        "error",
        "{subject} does not exist although sysfs lists Neuron devices",
        "no device is published, because claims may select on the driver's version",
        "make the host's /sys/module visible to this process, or reload the kernel driver",
    ),
    _Row(
        "driver-version-unreadable",
        "warning",
        "{subject} gives no version ({detail})",
        "the devices are published without neuronDriverVersion, so claims that select on it fail on this node",
        "reinstall the Neuron kernel driver",
    ),
    _Row(
        "no-devices",
        "error",
        "the Neuron kernel driver {detail} is loaded but lists no device in sysfs",
        "nothing is published",
        "look for errors of the module in 'dmesg', and check that {subject} of the host is visible to this process",
    ),
    _Row(
        "instance-type-missing",
        "warning",
        "neither {detail} nor the node label node.kubernetes.io/instance-type names an EC2 instance type",
        "devices are published without instanceType and without topology attributes",
        "set the label, or make the host's DMI files visible to this process",
    ),
    _Row(
        "instance-type-unknown",
        "warning",
        "instance type {subject} is not in this driver's table",
        "devices are published as sysfs describes them, without topology attributes and device groups",
        "update the driver, or report the type to the project",
    ),
    _Row(
        "instance-type-conflict",
        "warning",
        "DMI says {subject} but the node label node.kubernetes.io/instance-type says {detail}",
        "{subject} is used",
        "correct the label if it was set by hand",
    ),
    _Row(
        "instance-type-from-label",
        "info",
        "DMI ({detail}) names no Neuron instance type",
        "{subject} of the node label node.kubernetes.io/instance-type is used",
        "no action is needed if the label is right",
    ),
    _Row(
        "devices-missing",
        "error",
        "devices of this {detail} are missing in sysfs: {subject}",
        "the others are published without PCI address and NUMA node",
        "look for errors of the kernel driver in 'dmesg', then reboot or replace the instance",
    ),
    _Row(
        "devices-unexpected",
        "warning",
        "sysfs lists more devices than a {detail} has: {subject}",
        "they are published without topology attributes, and no device has its PCI address and NUMA node",
        "update the driver, or report the type to the project",
    ),
    _Row(
        "device-entry-odd",
        "warning",
        "the sysfs entry {subject} is not a directory",
        "it is ignored",
        "check that the host's /sys is mounted unchanged",
    ),
    _Row(
        "device-numbers-unreadable",
        "error",
        "the file dev of {subject} gives no device numbers ({detail})",
        "the device is not offered to claims",
        "reload the kernel driver, or reboot the node",
    ),
    _Row(
        "major-mismatch",
        "warning",
        "the major number of {subject} in sysfs differs from that of the neuron driver in /proc/devices ({detail})",
        "the number of sysfs is used",
        "reload the kernel driver if containers cannot open the device",
    ),
    _Row(
        "device-node-missing",
        "error",
        "the host's /dev lacks the device node of {subject} while other Neuron devices have theirs",
        "claims for it are refused until it is back",
        "run 'udevadm trigger --subsystem-match=neuron_device', or reload the kernel driver",
    ),
    _Row(
        "device-node-stale",
        "warning",
        "the node of {subject} in the host's /dev has different numbers than sysfs ({detail})",
        "containers get the numbers from sysfs, but programs on the host may fail",
        "run 'udevadm trigger --subsystem-match=neuron_device'",
    ),
    _Row(
        "core-count-unreadable",
        "info",
        "core_count of {subject} cannot be used ({detail})",
        "the core count from the instance type's table is used instead, if there is one",
        "run the driver as root if permission was denied (kernel drivers before 2.28)",
    ),
    _Row(
        "core-count-mismatch",
        "warning",
        "core_count of {subject} differs from the table ({detail})",
        "the value of sysfs is used",
        "update the driver, or report the type to the project",
    ),
    _Row(
        "connected-unreadable",
        "info",
        "connected_devices of {subject} cannot be used ({detail})",
        "the topology from the instance type's table is used unchecked",
        "run the driver as root if permission was denied (kernel drivers before 2.28)",
    ),
    _Row(
        "connected-mismatch",
        "warning",
        "connected_devices of {subject} differs from the topology of {detail}",
        "the table's topology is published",
        "compare 'neuron-ls' with 'dra-driver topology {detail}' and report the difference to the project",
    ),
    _Row(
        "architecture-mismatch",
        "error",
        "the chip behind {subject} does not match the instance type ({detail})",
        "the values from the instance type's table are published",
        "correct the node's instance type label, or report the type to the project",
    ),
    _Row(
        "device-resetting",
        "info",
        "the kernel driver is resetting {subject}",
        "programs that open the device wait",
        "no action is needed, it is read again soon",
    ),
    _Row(
        "device-invalid",
        "error",
        "the kernel driver failed to bring up {subject} (state INVALID)",
        "no program can open the device, so pods that get it fail",
        "drain the node, then reload the kernel driver, reboot or replace the instance",
    ),
    _Row(
        "value-busy",
        "info",
        "{detail} of {subject} is busy",
        "it is treated as unknown until the kernel driver reports it",
        "no action is needed, it is read again soon",
    ),
    _Row(
        "ultraserver-files-missing",
        "warning",
        "this is a node of an UltraServer, but {subject} has none of the files {detail}",
        "its server is not known: claims with UltraServerConfig are refused, and no server ids are published",
        "update the Neuron kernel driver, and check that the host's /sys/class is visible to this process",
    ),
    _Row(
        "ultraserver-electing",
        "info",
        "the nodes of this UltraServer are electing their ids (values in {subject} are busy or changing)",
        "claims with UltraServerConfig wait until the election ends",
        "no action is needed, it is read again soon; an election can take ten minutes",
    ),
    _Row(
        "ultraserver-value-odd",
        "warning",
        "files in {subject} cannot be used: {detail}",
        "they are treated as missing",
        "reload the Neuron kernel driver while no program uses the devices, which repeats the election",
    ),
    _Row(
        "ultraserver-incomplete",
        "warning",
        "the UltraServer is incomplete: {subject} (the kernel driver offers {detail})",
        "claims for more nodes than that are refused here",
        "check that the other instances run and have the Neuron kernel driver loaded; reloading it here while no"
        " program uses the devices repeats the election",
    ),
    _Row(
        "ultraserver-link-down",
        "warning",
        "the links between {subject} of this UltraServer do not work (the kernel driver offers {detail})",
        "claims for that many nodes are refused here",
        "look for link errors of the kernel driver in 'dmesg', and replace the instance if they stay",
    ),
    _Row(
        "lnc-default-unusable",
        "warning",
        "{subject} gives no logical core size for this node ({detail})",
        "the default of the instance type applies",
        "the file should have one line such as NEURON_LOGICAL_NC_CONFIG=2",
    ),
)

FINDINGS = {row.code: row for row in _ROWS}
"""Code to its row."""


def shown(text: str) -> str:
    """Unexpected content, quoted and shortened for a text; hosts can hold anything."""
    if not text:
        return "it is empty"
    return f"it says {quoted(text)}"


@dataclass(slots=True)
class Findings:
    """Collects the findings of one scan. Devices with the same trouble make one finding, thus one line of log."""

    _subjects: dict[tuple[str, str], str] = field(default_factory=dict, init=False)
    _devices: dict[tuple[str, str], list[int]] = field(default_factory=dict, init=False)

    def add(self, code: str, subject: str, detail: str = "") -> None:
        """Something about one thing that is no device."""
        self._subjects[code, detail] = subject

    def add_device(self, code: str, index: int, detail: str = "") -> None:
        """Something about one device."""
        self._devices.setdefault((code, detail), []).append(index)

    def forget_device(self, index: int) -> None:
        """Take back all that was added about one device."""
        for key, indexes in list(self._devices.items()):
            self._devices[key] = [other for other in indexes if other != index]
            if not self._devices[key]:
                del self._devices[key]

    def all(self) -> tuple[Finding, ...]:
        """In the order of the table, then by subject: equal hosts give equal tuples."""
        subjects = self._subjects | {key: device_ranges(indexes) for key, indexes in self._devices.items()}
        order = {code: position for position, code in enumerate(FINDINGS)}
        findings = [_finding(code, subject, detail) for (code, detail), subject in subjects.items()]
        return tuple(sorted(findings, key=lambda finding: (order[finding.code], finding.subject, finding.text)))


def device_ranges(indexes: Iterable[int]) -> str:
    """Names of devices, runs shortened: ``neuron0-neuron3,neuron7``."""
    return re.sub("[0-9]+", r"neuron\g<0>", ranges(sorted(set(indexes))))


def _finding(code: str, subject: str, detail: str) -> Finding:
    row = FINDINGS[code]
    text = f"{row.what}; {row.consequence}; {row.remedy}".format(subject=subject, detail=detail)
    return Finding(code=code, subject=subject, text=text, severity=row.severity)
