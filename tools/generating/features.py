"""What works on which release of Kubernetes: the block ``features`` of the pages that show it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from dra_driver.driver.resourceslices.pool import MIN_RELEASE
from generating.blocks import filled

RELEASES: Final = ("1.33", "1.34", "1.35", "1.36", "1.37")
V1BETA1: Final = "`DynamicResourceAllocation`, and the API v1beta1"
LAB: Final = Path(__file__).resolve().parents[1] / "lab/gomodules"
_COUNTERS, _FORCED = (".".join(map(str, MIN_RELEASE[policy])) for policy in ("auto", "force"))


class Feature(NamedTuple):
    """A row: ``on`` is the first release that has it by default.

    From ``gated`` on, earlier ones have it with ``gate``. ``otherwise`` is what happens without it.
    """

    name: str
    on: str
    gated: str = ""
    gate: str = ""
    otherwise: str = ""

    def cell(self, release: str) -> str:
        """Whether a release has it."""
        if release >= self.on:
            return "yes"
        return "gate" if self.gated and release >= self.gated else "no"


FEATURES: Final = (
    Feature("claims for chips, groups, cores or whole nodes; status of claims", "1.34", "1.33", V1BETA1),
    Feature("groups of pods on UltraServers, with `dra-driver placer`", "1.34", "1.33", V1BETA1),
    Feature("taints of unhealthy chips", "1.36", "1.33", "`DRADeviceTaints`", "chips that no claim has are withdrawn"),
    Feature("health of chips in the pod's status", "1.36", "1.34", "`ResourceHealthStatus`", "Node condition, metrics"),
    Feature(
        "limits such as `aws.amazon.com/neuron` without a device plugin", "1.36", otherwise="convert the pods to claims"
    ),
    Feature(
        "several kinds of devices on one node, such as chips and cores",
        _COUNTERS,
        _FORCED,
        "none: `SHARED_COUNTERS=force`",
        "one kind on a node",
    ),
    Feature("taints by hand (DeviceTaintRule)", "1.37", "1.36", "`DRADeviceTaintRules`", "cordon the node"),
    Feature(
        "claims of PodGroups",
        "1.38",
        "1.37",
        "`GenericWorkload`, `DRAWorkloadResourceClaims` (tested with them)",
        "pods refer to one claim by name",
    ),
    Feature("device plugin and scheduler extender", "1.29"),
)
"""Gates: kubernetes.io, "Feature Gates"; all are off by default in the releases that are said to need them."""


def features() -> Iterator[str]:
    """The table by release."""
    yield f"| Kubernetes | {' | '.join(RELEASES)} | Gate | Otherwise |"
    yield f"|---|{'---|' * len(RELEASES)}---|---|"
    for row in FEATURES:
        yield f"| {row.name} | {' | '.join(map(row.cell, RELEASES))} | {row.gate} | {row.otherwise} |"
    yield f"| tested, on emulated devices | {' | '.join(map(_tested, RELEASES))} | | |"


def _tested(release: str) -> str:
    """Whether the lab has this release for the tests' clusters."""
    if any(LAB.glob(f"kubernetes-{release}.*")):
        return "yes"
    return "kubelet" if any(LAB.glob(f"kubelet-{release}.*")) else "no"


TABLES: Final = {"features": features}


def page(text: str) -> str:
    """A page with the block as it should be."""
    return filled(text, TABLES)
