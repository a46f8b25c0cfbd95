"""What an administrator sets for a node's device plugin: one row each, from the option to the value that it uses.

Loads little: the help of all commands and their completion read these rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from dra_driver.neuron.names import VISIBLE_CORES, VISIBLE_DEVICES
from dra_driver.neuron.node_settings import NodeSettings
from dra_driver.util.options import Option, Ports

if TYPE_CHECKING:
    from dra_driver.legacy.device_plugin.devices import AnswerSettings


@dataclass(frozen=True, kw_only=True)
class DevicePluginSettings(Ports, NodeSettings):
    """One value for each option, checked."""

    kubelet_directory: Annotated[
        Path,
        Option(
            "--kubelet-directory",
            "kubelet's directory; device-plugins/ and pod-resources/ below it are used",
            "/var/lib/kubelet",
            made_of="kubeletRoot",
        ),
    ]
    cdi_root: Annotated[
        Path,
        Option(
            "--cdi-root",
            "directory of the CDI specs; used with --device-injection cdi",
            "/var/run/cdi",
            made_of="cdiRoot",
        ),
    ]
    device_injection: Annotated[
        Literal["nodes", "cdi"],
        Option(
            "--device-injection",
            "nodes: give kubelet paths of device nodes; cdi: names of CDI devices (requires a runtime with CDI)",
            "nodes",
            made_of=".deviceInjection",
        ),
    ]
    device_numbering: Annotated[
        Literal["host", "renumber"],
        Option(
            "--device-numbering",
            "host: host numbers; renumber: devices in containers start at /dev/neuron0",
            "host",
            chart="deviceNumbering",
        ),
    ]
    visible_cores_variable: Annotated[
        Literal["NEURON_RT_VISIBLE_CORES", "AWS_NEURON_VISIBLE_DEVICES"],
        Option(
            "--visible-cores-variable",
            f"{VISIBLE_CORES}, or {VISIBLE_DEVICES} to name the chips to the OCI hook as well",
            VISIBLE_CORES,
            chart="visibleCoresVariable",
        ),
    ]
    state_dir: Annotated[
        Path,
        Option(
            "--state-dir", "directory for the plugin's record of the chips' health", "/var/lib/neuron-device-plugin"
        ),
    ]
    """What is remembered of the chips' health."""
    node_directory: str = "/dev"
    """Directory of the host's device nodes, as kubelet sees it."""
    look_seconds: float = 1.0
    """Between looks at kubelet's socket and the own ones."""
    guard_seconds: float = 60.0
    """Between looks whether the DRA driver has come to the node."""

    @property
    def answer(self) -> AnswerSettings:
        """How containers are given their devices."""
        from dra_driver.legacy.device_plugin.devices import AnswerSettings

        return AnswerSettings(
            self.device_injection, self.device_numbering, self.visible_cores_variable, self.node_directory
        )

    def on_host(self, root: Path) -> Self:
        """The same for an emulated host with its files at ``root``."""
        return replace(self, host_root=root, node_directory=str(root.absolute() / "dev"))
