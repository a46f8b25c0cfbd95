"""Assigns emulated hosts to nodes of UltraServers: ``2x4`` is two servers of four nodes.

Nodes are numbered from 1, server by server, and all ids are derived from the number, so that hosts that are emulated
independently of each other form complete servers, with the ids that an election would assign.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Self

from dra_driver.neuron.emulation.options import EmulationOptions
from dra_driver.neuron.emulation.tree import DEFAULT_SERVER_ID
from dra_driver.neuron.topology.instance_types import InstanceType
from dra_driver.neuron.topology.ultraserver import Mode
from dra_driver.util.errors import DriverError

_FORM = re.compile(r"([1-9][0-9]{0,3})x([24])", re.ASCII)
_TRAILING_NUMBER = re.compile(r"([0-9]{1,6})\Z", re.ASCII)
_SERIAL_STEP = 16
"""Distance between the serial numbers of two servers; a pair of four nodes may use the one below its server's."""


@dataclass(frozen=True, slots=True)
class Servers:
    """A number of UltraServers with the same number of nodes each."""

    servers: int
    nodes: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``SERVERSxNODES``; raises DriverError for anything else."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise DriverError(
                f"{text[:60]!r} is not a number of UltraServers",
                remedy="write SxN, such as 2x4 for 2 servers of 4 nodes",
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.servers}x{self.nodes}"

    def options(self, kind: InstanceType, number: int, options: EmulationOptions | None = None) -> EmulationOptions:
        """``options`` with the position of host ``number``; a position that is already set is kept.

        With modes that exclude X4, the node is part of what an election finds on an incomplete server.

        Raises:
            DriverError: the number is out of range, or the type is not part of UltraServers.
        """
        given = options or EmulationOptions()
        if kind.ultraserver is None:
            raise DriverError(f"{kind.name} is not part of an UltraServer", remedy="leave the UltraServers out")
        if not 1 <= number <= self.servers * self.nodes:
            raise DriverError(
                f"{self} UltraServers have no node number {number}",
                remedy=f"numbers go from 1 to {self.servers * self.nodes}",
            )
        elected, modes = kind.ultraserver.files == "elected", given.ultraserver_modes
        if modes is None:
            modes = (Mode.X4, Mode.X2V, Mode.X1) if self.nodes == 4 else (Mode.X2V, Mode.X1)
        server, node_id = divmod(number - 1, self.nodes)
        serial, key = int(DEFAULT_SERVER_ID, 16) + server * _SERIAL_STEP, 4
        # Without an election there is one set of ids, keyed by the number of nodes of a complete server.
        if elected and Mode.X4 not in modes:
            serial, node_id, key = serial - node_id // 2, node_id % 2, 2
        in_set = not elected or any(mode.nodes == key for mode in modes)
        return replace(
            given,
            ultraserver_modes=modes,
            server_ids=({key: f"{serial:016x}"} if in_set else {}) | dict(given.server_ids),
            node_ids=({key: node_id} if in_set else {}) | dict(given.node_ids),
            node_count=self.nodes,
        )


def node_number(name: str) -> int:
    """The number at the end of a node's name: ``node-3`` is 3. Raises DriverError if there is none."""
    match = _TRAILING_NUMBER.search(name)
    if match is None:
        raise DriverError(
            f"the name of node {name[:60]!r} does not end with a number, which sets its place in an UltraServer",
            remedy="name nodes node-1, node-2 and so on, or leave the emulated UltraServers out",
        )
    return int(match[1])
