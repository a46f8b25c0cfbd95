"""What is true of the node as a whole: boot, instance type, kernel driver version, default logical core size."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from dra_driver.host.findings import Findings, shown
from dra_driver.host.reading import HostFiles
from dra_driver.topology.instance_types import HYPERPOD_PREFIX, InstanceType, lookup

BOOT_ID = "proc/sys/kernel/random/boot_id"
PRODUCT_NAME = "sys/devices/virtual/dmi/id/product_name"
MODULE_VERSION = "sys/module/neuron/version"
LNC_DEFAULT = "opt/aws/neuron/logical_nc_config"
"""Written by EC2 user data; one line ``NEURON_LOGICAL_NC_CONFIG=1`` (aws-neuron-sdk, deploy/eks/prerequisites.rst)."""

INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
NETWORK_LAYER_LABELS = tuple(f"topology.k8s.aws/network-node-layer-{layer}" for layer in (1, 2, 3))
CAPACITY_BLOCK_LABEL = "topology.k8s.aws/capacity-block-id"

_EC2_NAME = re.compile(r"[a-z][a-z0-9-]{1,30}\.[a-z0-9-]{1,30}")
_NEURON_NAME = re.compile(r"(trn|inf)[0-9].*")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+~_-]{0,63}")
_LNC_LINE = re.compile(r"\s*(?:export\s+)?NEURON_LOGICAL_NC_CONFIG\s*=\s*(.*?)\s*")


def boot_id(root: Path) -> str:
    """Identity of this boot of the node; "" when nothing tells. An emulated host may have one of its own."""
    return HostFiles(root).read(BOOT_ID).text or HostFiles(Path("/")).read(BOOT_ID).text or ""


def instance_type(files: HostFiles, labels: Mapping[str, str], findings: Findings) -> str | None:
    """EC2 name without ``ml.``, from DMI first and the node label second.

    Of the two, a type in the table comes first, then a name that looks like Trainium or Inferentia, then any EC2 name:
    on a host whose DMI tells of another hypervisor or vendor the label is right. Names of no EC2 form count as none.
    """
    said = files.read(PRODUCT_NAME)
    product = said.text or ""
    from_dmi, from_label = _ec2_name(product), _ec2_name(labels.get(INSTANCE_TYPE_LABEL, ""))
    name = max((from_dmi, from_label), key=_credibility)
    if name is None:
        detail = said.problem if said.text is None else shown(product)
        findings.add("instance-type-missing", PRODUCT_NAME, f"{PRODUCT_NAME} ({detail})")
        return None
    if name != from_dmi:
        detail = said.problem if said.text is None else shown(product)
        findings.add("instance-type-from-label", name, detail)
    elif from_label is not None and from_label != from_dmi:
        findings.add("instance-type-conflict", name, from_label)
    if lookup(name) is None:
        findings.add("instance-type-unknown", name)
    return name


def _ec2_name(text: str) -> str | None:
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
    said = files.read(MODULE_VERSION)
    if said.missing:
        findings.add("driver-version-missing" if any_device else "driver-not-loaded", MODULE_VERSION)
        return None, False
    if said.text is not None and _VERSION.fullmatch(said.text):
        return said.text, True
    findings.add("driver-version-unreadable", MODULE_VERSION, said.problem or shown(said.text or ""))
    return None, True


def default_lnc(files: HostFiles, kind: InstanceType | None, findings: Findings) -> int | None:
    """Logical core size that the node's file sets for every process; None when there is no file or no use in it."""
    said = files.read(LNC_DEFAULT)
    if said.missing:
        return None
    if said.text is None:
        findings.add("lnc-default-unusable", LNC_DEFAULT, said.problem)
        return None
    lines = [found[1].strip("'\"") for line in said.text.splitlines() if (found := _LNC_LINE.fullmatch(line))]
    allowed = kind.lnc_values if kind is not None else (1, 2)
    if lines and lines[-1] in {str(value) for value in allowed}:
        return int(lines[-1])
    legal = " or ".join(str(value) for value in allowed)
    findings.add("lnc-default-unusable", LNC_DEFAULT, f"{shown(said.text)}, legal here: {legal}")
    return None


def network_layers(labels: Mapping[str, str]) -> tuple[str | None, str | None, str | None]:
    """EC2 network topology ids of layers 1 to 3, None where a label is missing."""
    first, second, third = (labels.get(name) or None for name in NETWORK_LAYER_LABELS)
    return first, second, third


def capacity_block_id(labels: Mapping[str, str]) -> str | None:
    """EC2 capacity block of the instance."""
    return labels.get(CAPACITY_BLOCK_LABEL) or None
