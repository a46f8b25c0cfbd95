"""What an administrator sets for a node's device plugin; the command line documents each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dra_driver.legacy.deviceplugin.answer import AnswerSettings


@dataclass(frozen=True, slots=True)
class DevicePluginSettings:
    """One value for each option, checked."""

    node_name: str
    host_root: Path
    kubelet_directory: Path
    cdi_root: Path
    health_port: int
    health_address: str
    metrics_port: int
    metrics_address: str
    rescan_seconds: float
    answer: AnswerSettings
    look_seconds: float = 1.0
    """Between looks at kubelet's socket and the own ones."""
    guard_seconds: float = 60.0
    """Between looks whether the DRA driver has come to the node."""
