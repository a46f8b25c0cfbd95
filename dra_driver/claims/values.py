"""The values of this room: the plan of a claim, what decides it besides the claim, and the refusal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from dra_driver.util.errors import DriverError

DEVICE_PATH = "/dev/neuron"

Consumers = Mapping[str, frozenset[str] | None]
"""Pods (UIDs) that claims are reserved for now, by claim UID; None: could not be found out."""


class PrepareError(DriverError):
    """A claim that is not prepared. kubelet puts the text into the pod's event and tries again later."""


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What an administrator decides."""

    node_name: str
    """Name of the Node object, which is also the name of the pool."""
    device_numbering: Literal["renumber", "host"] = "renumber"
    """``renumber``: a claim's chips are /dev/neuron0..k-1 in host order; ``host``: they keep the host's numbers."""
    contiguity: Literal["refuse", "warn", "allow"] = "warn"
    """What to do with a claim whose host ids are no contiguous run."""


class ChipNode(msgspec.Struct, frozen=True, rename="camel"):
    """One chip in a container."""

    chip: int
    """N of ``/dev/neuronN`` on the host."""
    number: int
    """N of ``/dev/neuronN`` in the container."""
    major: int
    minor: int

    @property
    def host_path(self) -> str:
        """Device node on the host (which may not exist: a runtime needs major and minor only)."""
        return f"{DEVICE_PATH}{self.chip}"

    @property
    def container_path(self) -> str:
        """Device node in the container."""
        return f"{DEVICE_PATH}{self.number}"


class PlannedDevice(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One allocation result of this driver."""

    request: str
    """``name`` or ``name/subrequest``."""
    pool: str
    device: str
    nodes: tuple[ChipNode, ...]
    admin: bool = False
    """Admin access: the chips are shown, not held."""
    cdi_name: str = ""
    """Name of its CDI device. Kept, since kubelet passes it at each start of a container, also after an update."""


class Plan(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What one claim gets on this node. Journaled as it is; everything else is derived from it.

    New fields must have defaults, so that a file of an older version can still be read.
    """

    namespace: str
    name: str
    uid: str
    devices: tuple[PlannedDevice, ...]
    env: dict[str, str] = msgspec.field(default_factory=dict)
    """For every container that uses any device of the claim."""
    pods: tuple[str, ...] | None = ()
    """UIDs of the pods that the claim was reserved for; None: reserved for something that stands for unknown pods."""
    own_pod: str = ""
    """UID of the one pod that can ever use the claim (made from a template for it), or ""."""
    warnings: tuple[str, ...] = ()
    parameters: str | None = None
    """Digest of the allocation's opaque parameters for this driver, "" when it has none; None: kept by a version that
    did not look at them."""

    @property
    def reference(self) -> str:
        """``namespace/name`` for texts."""
        return f"{self.namespace}/{self.name}"

    @property
    def nodes(self) -> dict[int, ChipNode]:
        """All chips by container number."""
        return {node.number: node for device in self.devices for node in device.nodes}

    @property
    def held_chips(self) -> tuple[int, ...]:
        """Chips that no other claim may have, ascending."""
        return tuple(sorted({node.chip for device in self.devices if not device.admin for node in device.nodes}))


class Entry(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A plan as the journal keeps it."""

    plan: Plan
    boot_id: str = ""
    """Boot of the node in which the claim was last prepared: containers of an earlier boot are gone."""

    def outlived(self, boot_id: str) -> bool:
        """Whether the node was certainly booted since, so that no container runs that was given the plan."""
        return bool(self.boot_id and boot_id) and self.boot_id != boot_id
