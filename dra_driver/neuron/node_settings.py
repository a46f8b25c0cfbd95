"""Settings that the node agents have in common: the DRA driver's and the device plugin's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dra_driver.util.options import Option


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """What an administrator sets for an agent of a node."""

    node_name: Annotated[str, Option("--node-name", "NODE_NAME", "", "name of this node's Node object (required)")]
    host_root: Annotated[
        Path, Option("--host-root", "HOST_ROOT", "/", "directory with the host's /sys, /proc, /dev and /opt")
    ]
    cdi_root: Annotated[
        Path, Option("--cdi-root", "CDI_ROOT", "/var/run/cdi", "directory of the CDI specs", made_of="cdiRoot")
    ]
    rescan_seconds: Annotated[
        float,
        Option(
            "--rescan-seconds",
            "RESCAN_SECONDS",
            "10",
            "interval between scans of the host",
            bounds=(0.1, 3600.0),
            chart="rescanSeconds",
        ),
    ]
    """A scan takes 2 ms of CPU."""
    health_hints_dir: Annotated[
        Path | None,
        Option(
            "--health-hints-dir",
            "HEALTH_HINTS_DIR",
            "/run/neuron-health",
            "directory in which the node problem detector writes faults from the kernel log",
        ),
    ]
    """Where another program leaves what the kernel log says of the chips; None: nowhere."""
