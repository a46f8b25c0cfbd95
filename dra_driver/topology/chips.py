"""The Neuron chips: one row per generation. What a chip is does not depend on the instance it sits in.

Sources: aws-neuron-sdk ``about-neuron/arch``; ``neuron-ls`` output (memory); sysfs names and PCI ids of the Neuron
kernel driver. The memory of Trainium3 and Inferentia follows the data sheets (144 GB, 8 GB), counted in GiB as
``neuron-ls`` counts the others.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class SysfsNames:
    """How the kernel driver names a chip below ``/sys/devices/virtual/neuron_device/neuronN``."""

    arch_type: str
    """``info/architecture/arch_type``. Inferentia2 says NDv3 although its cores are NCv2."""
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
    """Generation as EC2 names it: inf1, inf2, trn1, trn2 or trn3."""
    cores: int
    """Physical NeuronCores."""
    memory_bytes: int
    lnc_values: tuple[int, ...]
    """Legal logical core sizes: how many physical cores one logical core is made of."""
    default_lnc: int
    pci_device_ids: tuple[str, ...]
    """PCI device ids, four hexadecimal digits, of vendor 1d0f."""
    sysfs: SysfsNames


INFERENTIA = Chip(
    "inf1", 4, 8 * GIB, (1,), 1, ("7064", "7065", "7066", "7067"), SysfsNames("NDv1", "NCv1", "Inf1", "Inferentia")
)
INFERENTIA2 = Chip("inf2", 2, 32 * GIB, (1,), 1, ("7264",), SysfsNames("NDv3", "NCv2", "Inf2", "Inferentia2"))
TRAINIUM = Chip("trn1", 2, 32 * GIB, (1,), 1, ("7164",), SysfsNames("NDv2", "NCv2", "Trn1", "Trainium1"))
TRAINIUM2 = Chip("trn2", 8, 96 * GIB, (1, 2), 2, ("7364",), SysfsNames("NDv3", "NCv3", "Trn2", "Trainium2"))
TRAINIUM3 = Chip("trn3", 8, 144 * GIB, (1, 2), 2, ("7564", "7565"), SysfsNames("NDv4", "NCv4", "Trn3", "Trainium3"))
