"""UltraServers: several instances whose chips are linked across nodes.

Sources: aws-neuron-sdk ``deploy/eks/ultraserver.rst``, ``about-neuron/arch/neuron-hardware``; the files that the Neuron
kernel driver offers below ``/sys/class/neuron_device``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class UltraServerShape:
    """What an instance of this type is a part of, and where its kernel driver tells the node's place in it."""

    files: Literal["elected", "pds", "max"]
    """Which class files carry the ids. ``elected``: ``node_id_2``, ``node_id_4``, ``server_id_2``, ``server_id_4``, the
    result of an election over the links. ``pds`` and ``max``: ``node_id``, ``node_cnt``, ``reservation_id``, set from
    outside. All have ``ultraserver_mode``."""
    nodes: int | None
    """Nodes of a complete UltraServer; None where no public source says. ``node_cnt`` on the host knows better."""
    usable_nodes: tuple[int, ...]
    """Numbers of nodes that one workload can take."""
    links: Literal["ring", "switch"] | None
    """``ring``: chips of the same index on all nodes form a ring. ``switch``: any chip reaches any. None: unknown."""

    def node_sets(self, count: int) -> tuple[tuple[int, ...], ...]:
        """The sets of node ids that form a server of ``count`` nodes; empty when that is not offered or not known.

        Pairs are known for elected ids only: nodes 0 and 1, nodes 2 and 3.
        """
        if self.nodes is None or count not in self.usable_nodes or (self.files != "elected" and 1 < count < self.nodes):
            return ()
        return tuple(tuple(range(start, start + count)) for start in range(0, self.nodes, count))


TRN2_ULTRASERVER = UltraServerShape(files="elected", nodes=4, usable_nodes=(1, 2, 4), links="ring")
TRN2_PARTITIONED = UltraServerShape(files="pds", nodes=4, usable_nodes=(1, 2, 4), links=None)
TRN2_RACK = UltraServerShape(files="max", nodes=None, usable_nodes=(1, 2, 4), links=None)
TRN3_ULTRASERVER = UltraServerShape(files="elected", nodes=4, usable_nodes=(1, 2, 4), links="switch")
TRN3_PARTITIONED = UltraServerShape(files="pds", nodes=4, usable_nodes=(1, 2, 4), links="switch")
TRN3_RACK = UltraServerShape(files="max", nodes=None, usable_nodes=(1, 2, 4), links="switch")
"""The partitioned ones have 4 nodes unless the firmware says otherwise (``node_cnt``). A Trn3 Gen2 rack has up to 36
nodes of 4 chips; which EC2 names belong to it is not public, so the number is left open."""
