"""What a container is given for its ids: device nodes or CDI names, and variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from msgspec.structs import replace

from dra_driver.cdi import spec
from dra_driver.kubeletplugin.deviceservice import ContainerDevices, DeviceNode
from dra_driver.legacy.annotations import Share
from dra_driver.legacy.deviceplugin.offer import Offer
from dra_driver.legacy.hardware import Hardware
from dra_driver.legacy.names import Resource

VISIBLE_CORES: Final = "NEURON_RT_VISIBLE_CORES"
"""Read by the Neuron runtime: logical cores by number, as the container counts chips."""
VISIBLE_DEVICES: Final = "AWS_NEURON_VISIBLE_DEVICES"
"""Read by the vendor's OCI hook, which shows these chips by itself."""
CDI_KIND: Final = "k8s.neuron.aws.com/chip"
"""CDI devices that stay the same for the life of the node: one for each chip."""
CDI_OWNER: Final = "node"

_ANYBODY_READS_AND_WRITES: Final = 0o666


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """What an administrator sets.

    Attributes:
        injection: whether kubelet is told device nodes, or names of CDI devices.
        numbering: ``host``: a chip keeps its number in containers; ``renumber``: containers count from 0.
        visible: the variable that tells a container what it has. With VISIBLE_DEVICES, chips are named to the OCI
            hook too; cores are told in VISIBLE_CORES in any case.
        node_directory: where the host has its device nodes, as kubelet sees it.
    """

    injection: Literal["nodes", "cdi"] = "nodes"
    numbering: Literal["host", "renumber"] = "host"
    visible: str = VISIBLE_CORES
    node_directory: str = "/dev"


def answer(found: Offer, share: Share, settings: AnswerSettings) -> ContainerDevices:
    """What the container of ``share`` is given."""
    chips = found.hardware.ids(Resource.DEVICE, found.hardware.mask(share.resource, share.ids))
    as_ = {chip: rank if settings.numbering == "renumber" else chip for rank, chip in enumerate(chips)}
    env = dict(found.env)
    if share.resource is Resource.CORE:
        # Single numbers as in the vendor's figures, no ranges: programs split the text at its commas.
        env[VISIBLE_CORES] = ",".join(str(_core(found.hardware, core, as_)) for core in share.ids)
    if settings.visible == VISIBLE_DEVICES:
        env[VISIBLE_DEVICES] = ",".join(map(str, chips))
    if settings.injection == "cdi":
        return ContainerDevices(env, (), tuple(f"{CDI_KIND}={cdi_name(chip, as_[chip])}" for chip in chips))
    nodes = tuple(DeviceNode(f"/dev/neuron{as_[chip]}", f"{settings.node_directory}/neuron{chip}") for chip in chips)
    return ContainerDevices(env, nodes)


def _core(machine: Hardware, core: int, as_: Mapping[int, int]) -> int:
    chip, within = divmod(core, machine.cores_per_device)
    return as_[chip] * machine.cores_per_device + within


def cdi_name(chip: int, number: int) -> str:
    """Name of the CDI device that shows a chip as ``/dev/neuron<number>``."""
    return f"neuron{chip}" if chip == number else f"neuron{chip}-as-{number}"


def cdi_spec(found: Offer, settings: AnswerSettings) -> spec.Spec:
    """The CDI spec of a node. A chip can be shown under any number that it may have in a container."""
    pairs = [
        (chip, number)
        for chip in sorted(found.numbers)
        for number in (range(chip + 1) if settings.numbering == "renumber" else (chip,))
    ]
    devices = tuple(spec.Device(cdi_name(chip, number), _edits(found, chip, number)) for chip, number in pairs)
    made = spec.Spec(cdi_version="", kind=CDI_KIND, devices=devices)
    return replace(made, cdi_version=spec.minimum_version(made))


def _edits(found: Offer, chip: int, number: int) -> spec.ContainerEdits:
    major, minor = found.numbers[chip]
    node = spec.DeviceNode(
        path=f"/dev/neuron{number}",
        host_path=None if chip == number else f"/dev/neuron{chip}",
        type="c",
        major=major,
        minor=minor,
        file_mode=_ANYBODY_READS_AND_WRITES,
        permissions="rw",
    )
    return spec.ContainerEdits(device_nodes=(node,))
