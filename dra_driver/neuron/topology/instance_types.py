"""Every EC2 type with Neuron chips, one row per type. To add a type, add a row.

Facts that no public source documents are None (or an ``Unknown`` fabric), never a guess. Facts that were inferred
rather than read are listed in ``InstanceType.inferred``. Names such as trn2p or trn3sn occur only in AWS's own
software; their rows contain what that software shows. Names that AWS's runtime header lists without a size (inf2e,
trn2ac, trn2uac) are not EC2 types and have no row.

Sources: aws-neuron-sdk ``about-neuron/arch``, ``tools/neuron-sys-tools/neuron-ls.rst``,
``neuron-runtime/explore/runtime-performance-tips.rst`` (PCI addresses, NUMA nodes); the EFA pairing library's
``lookup/config`` (which types are paired, and with which row); the platform names of the Neuron kernel driver; the node
selectors of AWS's charts (neuron-helm-chart 1.10.0: trn3n, trn3en; aws-dranet 1.0.0: trn2-ac).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dra_driver.neuron.topology.fabric import Chain, Fabric, Ring, Single, Switched, Torus2D, Unknown
from dra_driver.neuron.topology.hardware import (
    EFA_BDFS,
    INFERENTIA,
    INFERENTIA2,
    TRAINIUM,
    TRAINIUM2,
    TRAINIUM3,
    Chip,
    SysfsNames,
    pci_addresses,
)
from dra_driver.neuron.topology.ultraserver import (
    TRN2_PARTITIONED,
    TRN2_RACK,
    TRN2_ULTRASERVER,
    TRN3_PARTITIONED,
    TRN3_RACK,
    TRN3_ULTRASERVER,
    UltraServerShape,
)
from dra_driver.util.errors import DriverError
from dra_driver.util.text import quoted

INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
"""Node label; SageMaker HyperPod puts ``ml.`` before the EC2 type."""
HYPERPOD_PREFIX = "ml."
"""SageMaker HyperPod uses ``ml.trn2.48xlarge`` in the node label; the hardware is the same."""


@dataclass(frozen=True, slots=True)
class InstanceType:
    """One EC2 type and the facts that follow from its name."""

    name: str
    chip: Chip
    fabric: Fabric
    efa_bdfs: tuple[str, ...] | None = None
    """PCI address of the EFA device paired with each chip; None: the type is not in the EFA pairing library, so it has
    no device groups."""
    pci_bus_ids: tuple[str, ...] | None = None
    """PCI address of each chip (``dddd:bb:dd.f``) on a fully populated node; None: no public ``neuron-ls`` output."""
    numa_nodes: tuple[int, ...] | None = None
    """NUMA node of each chip; None: unknown, or not reported by the host."""
    ultraserver: UltraServerShape | None = None
    inferred: tuple[str, ...] = ()
    """Names of the fields that were inferred from other facts rather than read in a first-party source."""

    @property
    def devices(self) -> int | None:
        """Number of chips; None if no public source documents it."""
        return self.fabric.size or None

    @property
    def family(self) -> str:
        """Generation of the chips: inf1, inf2, trn1, trn2 or trn3."""
        return self.chip.family

    @property
    def cores_per_device(self) -> int:
        """Physical NeuronCores of one chip."""
        return self.chip.cores

    @property
    def device_memory_bytes(self) -> int:
        """Device memory of one chip."""
        return self.chip.memory_bytes

    @property
    def lnc_values(self) -> tuple[int, ...]:
        """Valid logical core sizes; ``(1,)`` means that there is no choice."""
        return self.chip.lnc_values

    @property
    def default_lnc(self) -> int:
        """Logical core size without any configuration."""
        return self.chip.default_lnc

    @property
    def sysfs(self) -> SysfsNames:
        """How the kernel driver names the chips."""
        return self.chip.sysfs


_TORUS = Torus2D(4, 4)

_INFERENTIA_TYPES = (
    InstanceType("inf1.xlarge", INFERENTIA, Single()),
    InstanceType("inf1.2xlarge", INFERENTIA, Single()),
    InstanceType("inf1.6xlarge", INFERENTIA, Chain(4), pci_bus_ids=pci_addresses("00:1c.0 00:1d.0 00:1e.0 00:1f.0")),
    # The kernel driver reads these links from the hardware: consecutive chips are linked, and possibly the two ends.
    InstanceType("inf1.24xlarge", INFERENTIA, Chain(16), inferred=("fabric",)),
    InstanceType("inf2.xlarge", INFERENTIA2, Single()),
    InstanceType("inf2.8xlarge", INFERENTIA2, Single()),
    InstanceType("inf2.24xlarge", INFERENTIA2, Chain(6)),
    InstanceType(
        "inf2.48xlarge",
        INFERENTIA2,
        Ring(12),
        pci_bus_ids=pci_addresses(
            "80:1e.0 90:1e.0 80:1d.0 90:1f.0 80:1f.0 90:1d.0 20:1e.0 20:1f.0 10:1e.0 10:1f.0 10:1d.0 20:1d.0"
        ),
        numa_nodes=(2, 3, 2, 3, 2, 3, 1, 1, 0, 0, 0, 1),
    ),
)

_TRAINIUM_TYPES = (
    # One report shows NUMA node -1: the host does not report it.
    InstanceType("trn1.2xlarge", TRAINIUM, Single(), pci_bus_ids=pci_addresses("00:1e.0")),
    InstanceType(
        "trn1.32xlarge",
        TRAINIUM,
        _TORUS,
        efa_bdfs=EFA_BDFS["trn1"],
        pci_bus_ids=pci_addresses(
            "10:1c.0 10:1d.0 a0:1c.0 a0:1d.0 20:1b.0 20:1c.0 90:1b.0 90:1c.0 "
            "20:1d.0 20:1e.0 90:1d.0 90:1e.0 10:1e.0 10:1b.0 a0:1e.0 a0:1b.0"
        ),
        numa_nodes=(0, 0, 1, 1) * 4,
    ),
    InstanceType("trn1n.32xlarge", TRAINIUM, _TORUS, efa_bdfs=EFA_BDFS["trn1n"]),
)

_TRAINIUM2_TYPES = (
    InstanceType("trn2.3xlarge", TRAINIUM2, Single(), pci_bus_ids=pci_addresses("33:00.0"), numa_nodes=(0,)),
    InstanceType(
        "trn2.48xlarge",
        TRAINIUM2,
        _TORUS,
        efa_bdfs=EFA_BDFS["trn2"],
        pci_bus_ids=pci_addresses(
            "cc:00.0 b5:00.0 b6:00.0 cb:00.0 6f:00.0 58:00.0 59:00.0 6e:00.0 "
            "9b:00.0 84:00.0 85:00.0 9a:00.0 f8:00.0 e1:00.0 e2:00.0 f7:00.0"
        ),
        numa_nodes=(1,) * 4 + (0,) * 8 + (1,) * 4,
    ),
    InstanceType("trn2u.48xlarge", TRAINIUM2, _TORUS, EFA_BDFS["trn2"], ultraserver=TRN2_ULTRASERVER),
    # The kernel driver prints the torus for any Trainium2 host with 16 chips.
    InstanceType("trn2n.48xlarge", TRAINIUM2, _TORUS, inferred=("fabric",)),
    InstanceType("trn2e.48xlarge", TRAINIUM2, _TORUS, EFA_BDFS["trn2"], inferred=("fabric",)),
    InstanceType("trn2p.48xlarge", TRAINIUM2, Unknown(), ultraserver=TRN2_ULTRASERVER, inferred=("ultraserver",)),
    InstanceType("trn2eu.48xlarge", TRAINIUM2, Unknown(), ultraserver=TRN2_ULTRASERVER, inferred=("ultraserver",)),
    InstanceType("trn2u-ac.24xlarge", TRAINIUM2, Unknown(), ultraserver=TRN2_ULTRASERVER, inferred=("ultraserver",)),
    InstanceType("trn2es.48xlarge", TRAINIUM2, Unknown(), ultraserver=TRN2_PARTITIONED, inferred=("ultraserver",)),
    InstanceType("trn2en.24xlarge", TRAINIUM2, Unknown(4), ultraserver=TRN2_RACK, inferred=("ultraserver",)),
    InstanceType("trn2-ac.24xlarge", TRAINIUM2, Unknown()),
)

# Trainium3 is switched wherever its architecture is described; the names below are known from software only, so the
# switch, and an UltraServer of 4 nodes, are inferred for each of them.
_SWITCHED_16 = Switched(16)
_CONCLUDED = ("fabric", "ultraserver")

_TRAINIUM3_TYPES = (
    InstanceType("trn3.48xlarge", TRAINIUM3, _SWITCHED_16, EFA_BDFS["trn3"], None, None, TRN3_PARTITIONED, _CONCLUDED),
    InstanceType("trn3p.48xlarge", TRAINIUM3, _SWITCHED_16, EFA_BDFS["trn3"], None, None, TRN3_ULTRASERVER, _CONCLUDED),
    InstanceType("trn3s.48xlarge", TRAINIUM3, _SWITCHED_16, EFA_BDFS["trn3"], inferred=("fabric",)),
    InstanceType("trn3pd98.48xlarge", TRAINIUM3, _SWITCHED_16, EFA_BDFS["trn3"], inferred=("fabric",)),
    InstanceType(
        "trn3-dev0.48xlarge", TRAINIUM3, _SWITCHED_16, EFA_BDFS["trn3pds"], None, None, TRN3_PARTITIONED, _CONCLUDED
    ),
    InstanceType(
        "trn3-dev1.48xlarge", TRAINIUM3, _SWITCHED_16, EFA_BDFS["trn3pds"], None, None, TRN3_PARTITIONED, _CONCLUDED
    ),
    # Its platform is the rack; 4 chips per node follow from the architecture of a Gen2 rack.
    InstanceType("trn3e.24xlarge", TRAINIUM3, Switched(4), ultraserver=TRN3_RACK, inferred=("devices", *_CONCLUDED)),
    InstanceType(
        "trn3e-dev0.24xlarge", TRAINIUM3, Switched(4), ultraserver=TRN3_RACK, inferred=("devices", *_CONCLUDED)
    ),
    InstanceType("trn3s-es.48xlarge", TRAINIUM3, Unknown(), ultraserver=TRN3_PARTITIONED, inferred=("ultraserver",)),
    InstanceType("trn3sn.48xlarge", TRAINIUM3, Unknown(), ultraserver=TRN3_PARTITIONED, inferred=("ultraserver",)),
    InstanceType("trn3sn-es.48xlarge", TRAINIUM3, Unknown(), ultraserver=TRN3_PARTITIONED, inferred=("ultraserver",)),
    InstanceType("trn3pd98.3xlarge", TRAINIUM3, Unknown()),
    InstanceType("trn3s-es.3xlarge", TRAINIUM3, Unknown()),
    InstanceType("trn3sn.3xlarge", TRAINIUM3, Unknown()),
    InstanceType("trn3sn-es.3xlarge", TRAINIUM3, Unknown()),
    InstanceType("trn3n.48xlarge", TRAINIUM3, Unknown()),
    InstanceType("trn3en.24xlarge", TRAINIUM3, Unknown()),
)

INSTANCE_TYPES: Mapping[str, InstanceType] = MappingProxyType(
    {row.name: row for row in (*_INFERENTIA_TYPES, *_TRAINIUM_TYPES, *_TRAINIUM2_TYPES, *_TRAINIUM3_TYPES)}
)
"""Rows by EC2 name."""


def lookup(name: str | None) -> InstanceType | None:
    """The row of an EC2 type, with or without HyperPod's prefix ``ml.``; None if there is none."""
    return None if name is None else INSTANCE_TYPES.get(name.removeprefix(HYPERPOD_PREFIX))


def near_matches(name: str) -> tuple[str, ...]:
    """Names of types similar to ``name``, best match first, for the error message about an unknown type."""
    import difflib

    bare = name.removeprefix(HYPERPOD_PREFIX).lower()[:64]
    same_beginning = [row for row in INSTANCE_TYPES if bare and row.startswith(f"{bare.partition('.')[0]}.")]
    similar = difflib.get_close_matches(bare, INSTANCE_TYPES, n=3, cutoff=0.85)
    return tuple(dict.fromkeys([*similar, *same_beginning]))[:3]


def resolve(name: str) -> InstanceType:
    """Like ``lookup``, but raises DriverError for an unknown name, with similar names in the message."""
    row = lookup(name)
    if row is None:
        raise _unknown(name, INSTANCE_TYPES)
    return row


def _unknown(name: str, among: Collection[str]) -> DriverError:
    near = [row for row in near_matches(name) if row in among]
    hint = f"did you mean {' or '.join(near)}?" if near else f"known types: {', '.join(among)}"
    return DriverError(f"unknown instance type {quoted(name)}", remedy=hint)


def of_family(name: str) -> InstanceType | None:
    """The largest type whose name before the dot is ``name`` (``trn2u``); None if no number of chips is known of it."""
    bare = name.removeprefix(HYPERPOD_PREFIX)
    rows = [row for row in INSTANCE_TYPES.values() if row.devices is not None and row.name.partition(".")[0] == bare]
    return max(rows, key=lambda row: row.devices or 0, default=None)


def resolve_emulation(name: str) -> InstanceType:
    """The type of an emulated host.

    Accepts a full name or the part before the dot, as ``of_family`` does. Raises DriverError, with similar names or a
    list of all types that can be emulated, for other names and for types whose number of chips is not public.
    """
    exact = lookup(name)
    largest = exact if exact is not None and exact.devices is not None else of_family(name)
    if largest is not None:
        return largest
    rows = [row.name for row in INSTANCE_TYPES.values() if row.devices is not None]
    if exact is None:
        raise _unknown(name, rows)
    raise DriverError(
        f"{quoted(name)} cannot be emulated: how many devices it has is not public",
        remedy=f"emulate one of {', '.join(rows)}",
    )
