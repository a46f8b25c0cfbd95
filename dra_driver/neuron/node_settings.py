"""Settings that the node agents have in common: the DRA driver's and the device plugin's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dra_driver.util.options import Option


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """What an administrator sets for an agent of a node."""

    node_name: Annotated[str, Option("--node-name", "name of this node's Node object (required)")]
    host_root: Annotated[Path, Option("--host-root", "directory with the host's /sys, /proc, /dev and /opt", "/")]
    cdi_root: Annotated[Path, Option("--cdi-root", "directory of the CDI specs", "/var/run/cdi", made_of="cdiRoot")]
    rescan_seconds: Annotated[
        float,
        Option(
            "--rescan-seconds", "interval between scans of the host", "10", bounds=(0.1, 3600.0), chart="rescanSeconds"
        ),
    ]
    """A scan takes 2 ms of CPU."""
    health_hints_dir: Annotated[
        Path | None,
        Option(
            "--health-hints-dir",
            "directory in which the node problem detector writes faults from the kernel log",
            "/run/neuron-health",
        ),
    ]
    """Where another program leaves what the kernel log says of the chips; None: nowhere."""
