"""What an administrator sets for a node's agent; the command line documents each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from dra_driver.driver.resourceslices.pool import SharedCounters
from dra_driver.neuron.health.policy import HealthPolicy
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.partitions import Partitions

PARTITIONS_LABEL: Final = "neuron.aws.com/partitions"
"""Label of a Node with which an administrator sets ``partitions`` for it alone."""


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """One value for each option, checked."""

    node_name: str
    pod_uid: str | None
    host_root: Path
    cdi_root: Path
    registrar_dir: Path
    plugins_dir: Path
    health_port: int
    health_address: str
    node_address: str
    metrics_port: int
    metrics_address: str
    device_numbering: Literal["renumber", "host"]
    contiguity: Literal["refuse", "warn", "allow"]
    partitions: Partitions | None
    """What nodes offer, of any type; None: nothing in particular."""
    shared_counters: SharedCounters
    ultraserver_labels: bool
    present_label: bool
    device_metadata: bool
    claim_status: bool
    rescan_seconds: float
    health_policy: HealthPolicy
    """What faults of chips mean for the scheduler."""
    health_hints_dir: Path | None
    """Where another program leaves what the kernel log says of the chips; None: nowhere."""

    @property
    def state_dir(self) -> Path:
        """The driver's own directory: the socket and the checkpoint."""
        return self.plugins_dir / DRIVER_NAME

    @property
    def health_dir(self) -> Path:
        """Of the record of what is wrong with the chips."""
        return self.state_dir / "health"
