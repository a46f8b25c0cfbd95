"""Why a pod that has a node does not run there, does not end, or runs on a sick chip. Values in, values out."""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.legacy.resource_requests import ENDED
from dra_driver.neuron.device_status import READY
from dra_driver.neuron.health.faults import REMEDIES
from dra_driver.operations.overview.objects import Pod
from dra_driver.operations.overview.view import ClusterView, NodeRow, repeated, view


@dataclass(frozen=True, slots=True)
class BoundPod:
    """How a pod is on its node. Texts are sentences without a full stop."""

    state: str
    causes: tuple[str, ...]
    """Why it is not well; none: nothing is known to be in its way."""
    remedies: tuple[str, ...]
    ended: bool = False
    """Whether it has no devices any more."""


def bound(pod: Pod, around: ClusterView) -> BoundPod:
    """What is known of a pod that has a node.

    Args:
        pod: the pod.
        around: it, its claims, its node with the slices and daemons there, and what kubelet said of its claims.
    """
    state = pod.state
    if pod.phase in ENDED:
        text = f"{state.word} on node {pod.node}" + (f": {state.detail}" if state.detail else "")
        return BoundPod(text, (text,) if pod.phase == "Failed" else (), (), ended=True)
    since = f" since {state.since}" if state.since else ""
    text = f"its status is {state.word} on node {pod.node}{since}"
    row = next(iter(view(around, nodes=(pod.node,)).nodes), None)
    causes: list[str] = []
    remedies: list[str] = []
    if row is not None and row.serving.problem:
        served = row.serving
        lasting = f" (since {served.since})" if served.since else ""
        cannot = "unprepare" if pod.ending else "prepare"
        consequence = "" if state.ready else f", so kubelet cannot {cannot} its claims"
        causes.append(f"nothing serves the devices of node {row.name}{consequence}: {served.problem}{lasting}")
        remedies.append(served.remedy)
    refusal = max(around.refusals, key=lambda item: item.last, default=None)
    refused = [item for claim in around.claims for _, item in claim.complaints if item.type == READY]
    if (refusal is not None or refused) and not state.ready and not pod.ending:
        # What the claims say is told with them.
        if refusal is not None and not any(repeated(item, refusal.text) for item in refused):
            causes.append(f"kubelet's last attempt to prepare its claims failed ({refusal.last}): {refusal.text}")
        if not remedies:  # else kubelet had nobody to ask
            remedies.append(
                "if a parameter is wrong, correct it in the ResourceClaimTemplate or DeviceClass and recreate the "
                "pod, because a claim keeps its parameters; otherwise, kubelet retries automatically"
            )
    elif state.detail and not state.ready:
        causes.append(f"{state.word}: {state.detail}")
    for what, mend in _sick(pod, row) if row is not None else ():
        causes.append(what)
        remedies.append(mend)
    return BoundPod(text, tuple(causes), tuple(dict.fromkeys(filter(None, remedies))))


def _sick(pod: Pod, row: NodeRow) -> list[tuple[str, str]]:
    """Each fault of the pod's chips, and what mends it."""
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    return [
        (
            f"its chip neuron{chip.index} is {chip.state}: {fault.code}" + (f", {fault.row.text}" if fault.row else ""),
            f"repair neuron{chip.index}: {REMEDIES[fault.row.remedy]}"
            if fault.row and fault.row.remedy != "nothing"
            else "",
        )
        for chip in row.chips
        if name in chip.holders
        for fault in chip.faults
    ]
