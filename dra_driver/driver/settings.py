"""What an administrator sets for a node's agent: one row each, from the option to the value that the agent uses.

Loads little: the help of all commands and their completion read these rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.node_settings import NodeSettings
from dra_driver.neuron.topology.partitions import Partitions
from dra_driver.util.options import Option, Ports

if TYPE_CHECKING:
    from dra_driver.neuron.health.policy import HealthPolicy

PARTITIONS_LABEL: Final = "neuron.aws.com/partitions"
"""Label of a Node with which an administrator sets ``partitions`` for it alone."""


@dataclass(frozen=True, kw_only=True)
class DriverSettings(Ports, NodeSettings):
    """One value for each option, checked."""

    pod_uid: Annotated[
        str | None, Option("--pod-uid", "UID of this pod; gives each instance its own sockets during a rolling update")
    ]
    registrar_dir: Annotated[
        Path,
        Option(
            "--registrar-dir",
            "kubelet's plugin registry",
            "/var/lib/kubelet/plugins_registry",
            variable="KUBELET_REGISTRAR_DIRECTORY_PATH",
            made_of="kubeletRoot",
        ),
    ]
    plugins_dir: Annotated[
        Path,
        Option(
            "--plugins-dir",
            "kubelet's plugin data directory; the driver keeps its state in neuron.aws.com/ below it",
            "/var/lib/kubelet/plugins",
            variable="KUBELET_PLUGINS_DIRECTORY_PATH",
            made_of="kubeletRoot",
        ),
    ]
    device_numbering: Annotated[
        Literal["renumber", "host"],
        Option(
            "--device-numbering",
            "renumber: devices in containers start at /dev/neuron0; host: host numbers",
            "renumber",
            chart="deviceNumbering",
        ),
    ]
    contiguity: Annotated[
        Literal["refuse", "warn", "allow"],
        Option(
            "--contiguity",
            "refuse, warn about or allow claims whose host numbers are not contiguous",
            "warn",
            variable="CONTIGUITY_POLICY",
            chart="contiguity",
        ),
    ]
    partitions: Annotated[
        Partitions | None,
        Option(
            "--partitions",
            "what nodes offer: some of chip, core, group, group4, node, joined by dots; the label of a Node overrides "
            "it",
            parse=Partitions.parse,
            chart="partitions",
        ),
    ]
    """What nodes offer, of any type; None: nothing in particular."""
    shared_counters: Annotated[
        Literal["auto", "force"],
        Option(
            "--shared-counters",
            "API servers for which overlapping devices are published; auto: Kubernetes 1.37 and later; force: 1.36 too",
            "auto",
            chart="sharedCounters",
        ),
    ]
    ultraserver_labels: Annotated[
        bool,
        Option(
            "--ultraserver-labels",
            "on or off: whether to label nodes of UltraServers with mode and ids",
            "on",
            chart="ultraserverLabels",
        ),
    ]
    ultraserver_namespace: Annotated[
        str | None,
        Option(
            "--ultraserver-namespace",
            "namespace of the NeuronUltraServer objects, which say whose workload a node is allocated to; without it, "
            "nodes are allocated to none",
            made_of="ultraserverOperator.enabled",
        ),
    ]
    """None: UltraServers are not allocated to workloads."""
    present_label: Annotated[
        bool,
        Option(
            "--present-label",
            "on or off: whether to label the node neuron.amazonaws.com/present=true, for AWS's monitoring",
            "on",
            chart="presentLabel",
        ),
    ]
    node_status: Annotated[
        bool,
        Option(
            "--node-status",
            "on or off: whether to write labels and conditions of the node at all; off needs no right to patch nodes",
            "on",
            chart="nodeStatus",
        ),
    ]
    """Whether anything is written to the Node: labels, conditions."""
    device_metadata: Annotated[
        bool,
        Option(
            "--device-metadata",
            "on or off: whether containers see files with the attributes of their devices (KEP-5304)",
            "off",
            chart="deviceMetadata",
        ),
    ]
    claim_status: Annotated[
        bool,
        Option(
            "--claim-status",
            "on or off: whether to write devices and their health to the status of claims",
            "on",
            chart="claimStatus",
        ),
    ]
    health_policy_file: Annotated[
        Path | None,
        Option(
            "--health-policy",
            "health policy: what faults of chips mean for the scheduler, YAML or JSON (default: an empty table)",
            made_of=".healthPolicy",
        ),
    ]

    @cached_property
    def health_policy(self) -> HealthPolicy:
        """What faults of chips mean for the scheduler: the file at the first look. UsageError: it is no policy."""
        from dra_driver.neuron.health.policy import HealthPolicy

        file = self.health_policy_file
        return HealthPolicy.default() if file is None else HealthPolicy.load(file)

    @property
    def state_dir(self) -> Path:
        """The driver's own directory: the socket and the checkpoint."""
        return self.plugins_dir / DRIVER_NAME

    @property
    def health_dir(self) -> Path:
        """Of the record of what is wrong with the chips."""
        return self.state_dir / "health"
