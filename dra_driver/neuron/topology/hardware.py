"""The Neuron chips, one row per generation, and the EFA devices that they are paired with, one row per family.

The properties of a chip do not depend on the instance type. Sources: aws-neuron-sdk ``about-neuron/arch``;
``neuron-ls`` output (memory); sysfs names and PCI ids of the Neuron kernel driver. The memory of Trainium3 and
Inferentia follows the data sheets (144 GB, 8 GB), in GiB as ``neuron-ls`` reports the others. The PCI addresses of EFA
devices are the same on every node of a family; source: github ``aws-neuron/connected-device-maps-over-efa-for-neuron``
(Apache-2.0), ``lookup/neuron/*.json``.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class SysfsNames:
    """How the kernel driver names a chip below ``/sys/devices/virtual/neuron_device/neuronN``."""

    arch_type: str
    """``info/architecture/arch_type``. On Inferentia2 it is NDv3 although the cores are NCv2."""
    core_arch_type: str
    """``neuron_coreM/info/architecture/arch_type``."""
    instance_type: str
    """``info/architecture/instance_type``: the family such as ``Trn2``, not the EC2 type."""
    device_name: str
    """``info/architecture/device_name``."""


@dataclass(frozen=True, slots=True)
class Chip:
    """One generation of Neuron chip."""

    family: str
    """Generation in EC2's naming: inf1, inf2, trn1, trn2 or trn3."""
    cores: int
    """Physical NeuronCores."""
    memory_bytes: int
    lnc_values: tuple[int, ...]
    """Valid logical core sizes: how many physical cores form one logical core."""
    default_lnc: int
    pci_device_ids: tuple[str, ...]
    """PCI device ids, four hexadecimal digits, for vendor 1d0f."""
    sysfs: SysfsNames


INFERENTIA = Chip(
    "inf1", 4, 8 * GIB, (1,), 1, ("7064", "7065", "7066", "7067"), SysfsNames("NDv1", "NCv1", "Inf1", "Inferentia")
)
INFERENTIA2 = Chip("inf2", 2, 32 * GIB, (1,), 1, ("7264",), SysfsNames("NDv3", "NCv2", "Inf2", "Inferentia2"))
TRAINIUM = Chip("trn1", 2, 32 * GIB, (1,), 1, ("7164",), SysfsNames("NDv2", "NCv2", "Trn1", "Trainium1"))
TRAINIUM2 = Chip("trn2", 8, 96 * GIB, (1, 2), 2, ("7364",), SysfsNames("NDv3", "NCv3", "Trn2", "Trainium2"))
TRAINIUM3 = Chip("trn3", 8, 144 * GIB, (1, 2), 2, ("7564", "7565"), SysfsNames("NDv4", "NCv4", "Trn3", "Trainium3"))
CHIPS = (INFERENTIA, INFERENTIA2, TRAINIUM, TRAINIUM2, TRAINIUM3)


def pci_addresses(printed: str) -> tuple[str, ...]:
    """Addresses (``dddd:bb:dd.f``) as ``lspci`` prints them, without the PCI domain, which is always 0000."""
    return tuple(f"0000:{address}" for address in printed.split())


EFA_BDFS = {
    "trn1": pci_addresses(
        "10:1a.0 10:1a.0 a0:1a.0 a0:1a.0 20:19.0 20:19.0 90:19.0 90:19.0 "
        "20:1a.0 20:1a.0 90:1a.0 90:1a.0 10:19.0 10:19.0 a0:19.0 a0:19.0"
    ),
    "trn1n": pci_addresses(
        "10:17.0 10:1a.0 a0:17.0 a0:1a.0 20:19.0 20:18.0 90:19.0 90:18.0 "
        "20:17.0 20:1a.0 90:17.0 90:1a.0 10:19.0 10:18.0 a0:19.0 a0:18.0"
    ),
    "trn2": pci_addresses(
        "c9:00.0 b4:00.0 b3:00.0 ca:00.0 6c:00.0 57:00.0 56:00.0 6d:00.0 "
        "98:00.0 83:00.0 82:00.0 99:00.0 f5:00.0 e0:00.0 df:00.0 f6:00.0"
    ),
    "trn3": pci_addresses(
        "be:00.0 a9:00.0 a8:00.0 bf:00.0 61:00.0 4c:00.0 4b:00.0 62:00.0 "
        "8d:00.0 78:00.0 77:00.0 8e:00.0 ea:00.0 d5:00.0 d4:00.0 eb:00.0"
    ),
    "trn3pds": pci_addresses(
        "a9:00.0 a8:00.0 bf:00.0 be:00.0 d5:00.0 d4:00.0 eb:00.0 ea:00.0 "
        "4c:00.0 4b:00.0 62:00.0 61:00.0 78:00.0 77:00.0 8e:00.0 8d:00.0"
    ),
}
"""By pairing family: at N, the PCI address of the EFA device next to chip N; chips may share one."""
