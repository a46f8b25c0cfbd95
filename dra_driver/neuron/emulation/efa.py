"""The EFA devices of an emulated host, as AWS's EFA DRA driver offers them: for the simulator, tests and trials.

That driver is another program, DRANET: driver name ``dra.net``, DeviceClass ``efa.networking.k8s.aws``. It publishes
the device groups of ``topology.groups`` for its devices, so that one claim can ask for chips and EFA devices that
belong together. Here are the devices that follow from the pairing of an instance type, with those attributes that
follow from it too (the PCIe root as on emulated hosts, the NUMA node of the chips next to the device, where it is
known); DRANET's MTU and subsystem are left out.

Sources: the EKS user guide, "Manage EFA devices"; ResourceSlices captured on trn1.32xlarge nodes (github
``anson627/dranet``, ``examples/eks-neuron-efa-dranet``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dra_driver.kube import cdi
from dra_driver.kube.objects.resource import Device, DeviceAttribute
from dra_driver.neuron.emulation.tree import NULL_DEVICE, pcie_root
from dra_driver.neuron.names import GROUP_ATTRIBUTE_DOMAIN
from dra_driver.neuron.topology.groups import device_group_ids
from dra_driver.neuron.topology.instance_types import InstanceType

EFA_DRIVER_NAME: Final = "dra.net"
"""``driver`` of the slices, and the domain of the driver's own attributes."""
EFA_CLASS: Final = "efa.networking.k8s.aws"
"""The DeviceClass that claims name."""
_PRODUCT: Final = "Elastic Fabric Adapter (EFA)"
EFA_SELECTOR: Final = (
    f"device.driver == '{EFA_DRIVER_NAME}' && device.attributes['{EFA_DRIVER_NAME}'].pciDevice == '{_PRODUCT}'"
)
"""The class's selector: where DRANET manages all network devices of a node, it offers others too."""
EFA_CDI_KIND: Final = "emulated.dra.net/efa"


@dataclass(frozen=True, slots=True)
class EfaDevice:
    """One EFA device of a host."""

    address: str
    """PCI address, ``dddd:bb:dd.f``."""
    number: int
    """Of its device file, ``/dev/infiniband/uverbs<number>``: the kernel counts in the order of PCI addresses."""
    chips: tuple[int, ...]
    """Host indexes of the chips next to it, ascending; two on trn1."""

    @property
    def name(self) -> str:
        """Its name in ResourceSlices, such as ``pci-0000-10-1a-0``."""
        return "pci-" + self.address.replace(":", "-").replace(".", "-")

    @property
    def rdma_name(self) -> str:
        """What the kernel calls it: bus and slot in decimal numbers, such as ``rdmap16s26`` for ``0000:10:1a.0``."""
        _, bus, rest = self.address.split(":")
        return f"rdmap{int(bus, 16)}s{int(rest.partition('.')[0], 16)}"


def efa_devices(kind: InstanceType) -> tuple[EfaDevice, ...]:
    """The EFA devices of a host of this type, by PCI address; none if no pairing with chips is known."""
    chips: dict[str, list[int]] = {}
    for chip, address in enumerate(kind.efa_bdfs or ()):
        chips.setdefault(address, []).append(chip)
    return tuple(EfaDevice(address, number, tuple(chips[address])) for number, address in enumerate(sorted(chips)))


def published(kind: InstanceType) -> tuple[Device, ...]:
    """The devices of a host of this type as they stand in its ResourceSlice."""
    return tuple(_published(kind, device) for device in efa_devices(kind))


def _published(kind: InstanceType, device: EfaDevice) -> Device:
    own = {
        "pciAddress": DeviceAttribute(string=device.address),
        "pciDevice": DeviceAttribute(string=_PRODUCT),
        "pciVendor": DeviceAttribute(string="Amazon.com, Inc."),
        "rdma": DeviceAttribute(bool_=True),
        "rdmaDevice": DeviceAttribute(string=device.rdma_name),
    }
    if kind.numa_nodes is not None:
        own["numaNode"] = DeviceAttribute(int_=kind.numa_nodes[device.chips[0]])
    groups = device_group_ids(kind, device.chips[0])  # all chips next to it are in the same groups
    return Device(
        device.name,
        {f"{EFA_DRIVER_NAME}/{name}": value for name, value in own.items()}
        | {f"{GROUP_ATTRIBUTE_DOMAIN}/devicegroup{size}_id": DeviceAttribute(string=groups[size]) for size in groups}
        | {"resource.kubernetes.io/pcieRoot": DeviceAttribute(string=pcie_root(kind, device.address))},
    )


def cdi_spec(kind: InstanceType) -> cdi.Spec:
    """One CDI device for each EFA device: its device file, which is the null device as the emulated chips' are."""
    major, minor = NULL_DEVICE
    spec = cdi.Spec(
        "",
        EFA_CDI_KIND,
        tuple(
            cdi.CdiDevice(device.name, cdi.ContainerEdits(device_nodes=(_node(device.number, major, minor),)))
            for device in efa_devices(kind)
        ),
    )
    return cdi.Spec(cdi.minimum_version(spec), spec.kind, spec.devices)


def _node(number: int, major: int, minor: int) -> cdi.DeviceNode:
    return cdi.DeviceNode(
        f"/dev/infiniband/uverbs{number}", type="c", major=major, minor=minor, file_mode=0o666, permissions="rw"
    )
