"""UltraServers: several instances whose chips are linked across nodes.

Sources: aws-neuron-sdk ``deploy/eks/ultraserver.rst``, ``about-neuron/arch/neuron-hardware``; the files of the Neuron
kernel driver below ``/sys/class/neuron_device``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from dra_driver.util.errors import DriverError


class Mode(Enum):
    """How a node takes part in an UltraServer, by name; the values are the kernel driver's numbers.

    The numbers are used only at the interface to the kernel driver: users and logs see names. Source of names and
    numbers: aws-neuron-sdk, ``deploy/eks/ultraserver.rst``.
    """

    X4 = 1
    """Four nodes."""
    X2H = 2
    """Two nodes over the horizontal link: the remainder of an incomplete server."""
    X2V = 3
    """Two nodes over the vertical link."""
    X1 = 4
    """Stand-alone."""

    @classmethod
    def named(cls, number: str) -> str:
        """The name of the mode with this number in a container's variable; the number itself if there is none."""
        return next((str(mode) for mode in cls if str(mode.value) == number), number)

    @property
    def nodes(self) -> int:
        """Number of nodes that work together in this mode."""
        return {Mode.X4: 4, Mode.X2H: 2, Mode.X2V: 2, Mode.X1: 1}[self]

    def __str__(self) -> str:
        return self.name


PREFERENCE = (Mode.X4, Mode.X2V, Mode.X2H, Mode.X1)
"""Order in which modes are listed and chosen: that of AWS's own init script (aws-neuron-sdk,
``src/k8/k8s-ultraserver-init-script.sh``)."""


def parse_modes(text: str) -> tuple[Mode, ...]:
    """Parse names of modes, such as ``X4,X2V,X1``; "" is none. Raises DriverError for an unknown name."""
    names = [name.strip() for name in text.split(",")] if text else []
    for name in names:
        if name not in Mode.__members__:
            legal = ", ".join(str(mode) for mode in PREFERENCE)
            raise DriverError(f"there is no UltraServer mode {name[:60]!r}", remedy=f"modes are {legal}")
    return tuple(mode for mode in PREFERENCE if mode.name in names)


def mode_for(nodes: int, offered: tuple[Mode, ...]) -> Mode | None:
    """The mode in which ``nodes`` nodes (1, 2 or 4) work together: X4; X2V, else X2H; X1. None: not offered."""
    return next((mode for mode in PREFERENCE if mode.nodes == nodes and mode in offered), None)


@dataclass(frozen=True, slots=True)
class UltraServerShape:
    """The UltraServer that a type is part of, and where its kernel driver publishes the node's position in it."""

    files: Literal["elected", "pds", "max"]
    """Which class files contain the ids.

    ``elected``: ``node_id_2``, ``node_id_4``, ``server_id_2``, ``server_id_4``, the result of an election over the
    links. ``pds`` and ``max``: ``node_id``, ``node_cnt``, ``reservation_id``, set externally. All have
    ``ultraserver_mode``.
    """
    nodes: int | None
    """Nodes of a complete UltraServer; None if not documented. ``node_cnt`` on the host takes precedence."""
    usable_nodes: tuple[int, ...]
    """Numbers of nodes that one workload can use."""
    links: Literal["ring", "switch"] | None
    """``ring``: chips of the same index on all nodes form a ring. ``switch``: any chip reaches any. None: unknown."""


TRN2_ULTRASERVER = UltraServerShape(files="elected", nodes=4, usable_nodes=(1, 2, 4), links="ring")
TRN2_PARTITIONED = UltraServerShape(files="pds", nodes=4, usable_nodes=(1, 2, 4), links=None)
TRN2_RACK = UltraServerShape(files="max", nodes=None, usable_nodes=(1, 2, 4), links=None)
TRN3_ULTRASERVER = UltraServerShape(files="elected", nodes=4, usable_nodes=(1, 2, 4), links="switch")
TRN3_PARTITIONED = UltraServerShape(files="pds", nodes=4, usable_nodes=(1, 2, 4), links="switch")
TRN3_RACK = UltraServerShape(files="max", nodes=None, usable_nodes=(1, 2, 4), links="switch")
"""Partitioned servers have 4 nodes unless the firmware reports another number (``node_cnt``). A Trn3 Gen2 rack has
up to 36 nodes of 4 chips; which EC2 names belong to it is not public, so the number is left open."""
