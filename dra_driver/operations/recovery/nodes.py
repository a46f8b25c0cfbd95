"""What recovery knows of a node: from the Node's conditions, labels and taints to values, and its own marks on it.

All that a successor needs is on the Nodes: the mark, an annotation that is written together with the first change of a
Node and says which changes are ours. What another one has changed is never undone.

A node writes its own labels, condition, annotations (without the chart's policy, also these) and provider id, and one
that is compromised writes there what it likes. So its condition tells what is so now, and never since when; no label
makes it a node of a server unless the others agree (``decide.units``); and no provider id makes a machine its own
(``instances``).

Sources: Kubernetes 1.37 API; EKS (node monitoring agent, managed node groups), Karpenter 1.x (labels, taints),
cluster-autoscaler (taint).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

import msgspec

from dra_driver.kube.objects.core import MAX_NODE_TAINTS, PartialNode, Taint
from dra_driver.kube.objects.meta import MAX_SECONDS, Condition, timestamp
from dra_driver.neuron.health.condition import TYPE, parse
from dra_driver.neuron.health.faults import Remedy
from dra_driver.neuron.names import NODES_OF, PRESENT, SERVER_MODE
from dra_driver.operations.recovery.policy import Harmless

MARK: Final = "recovery.neuron.aws.com/mark"
"""Annotation: what was done to the Node and how far it is, as JSON (``Mark``)."""
REQUEST: Final = "recovery.neuron.aws.com/requested"
"""Annotation for the administrator's tools: ``{"action", "fault", "node", "at"}`` as JSON."""
MAX_HOOK_TRIES: Final = 1000
"""After which no more are counted."""
TAINT: Final = "recovery.neuron.aws.com/unhealthy"
"""Taint with the fault as value and the effect NoSchedule."""

GROUP_LABELS: Final = (
    "eks.amazonaws.com/nodegroup",
    "karpenter.sh/nodepool",
    "alpha.eksctl.io/nodegroup-name",
    "kops.k8s.io/instancegroup",
)
AWS_CONDITION: Final = "AcceleratedHardwareReady"
OTHERS_TAINTS: Final[Mapping[str, str]] = {
    "karpenter.sh/disrupted": "Karpenter is replacing it",
    "karpenter.sh/disruption": "Karpenter is replacing it",
    "ToBeDeletedByClusterAutoscaler": "cluster-autoscaler is removing it",
}

Verdict = Literal["sick", "well", "unknown"]


Seconds = Annotated[int, msgspec.Meta(ge=0, le=MAX_SECONDS)]


class Mark(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"):
    """Our own note on a Node. Times are whole seconds of Unix time; 0: not yet."""

    fault: str
    """Code for which it was begun."""
    node: str
    """Name of the node that has the fault: another one of the same UltraServer, or itself."""
    began: Seconds
    did: tuple[Harmless, ...] = ()
    """What of these was us."""
    drained: Seconds = 0
    requested: Seconds = 0
    action: Remedy | None = None
    """What was requested."""
    hook_done: Seconds = 0
    """When the hook for this request succeeded."""
    hook_tries: Annotated[int, msgspec.Meta(ge=0, le=MAX_HOOK_TRIES)] = 0
    hook_next: Seconds = 0
    """Not again before this."""
    replaced: Seconds = 0
    """When Auto Scaling was told."""
    since: Seconds = 0
    """Since when the fault had been seen."""
    unit: str = ""
    """The UltraServer whose nodes were begun together; "" for a node alone."""


@dataclass(frozen=True, slots=True)
class NeuronNode:
    """A node with Neuron devices."""

    name: str
    uid: str
    verdict: Verdict = "unknown"
    since: float = 0.0
    """Time since which the verdict has been the same."""
    faults: Mapping[str, float] = field(default_factory=dict)
    """Fault code to the time since which it has been seen; a node that is well may have some that degrade it."""
    chips: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Fault code to chips, as far as they are known."""
    unit: str = ""
    """The UltraServer that its labels name (``label=id``), else its own name."""
    linked: bool = False
    """Whether it says that it is linked with all nodes of that server now."""
    joined: float = 0.0
    """Time since which it has said both; 0 if it did when it was first looked at by this leader, with all others."""
    server_since: float = 0.0
    """Time since which this leader has seen it name that server."""
    dispute: str = ""
    """Why no server is made of the nodes that name the same one, if there are others or the id means none."""
    group: str = ""
    """The node group; "" for all that have none."""
    ready: bool = True
    deleting: bool = False
    cordoned: bool = False
    tainted: bool = False
    """With our taint."""
    agent: bool = False
    """Whether the EKS node monitoring agent reports its accelerators."""
    others: str = ""
    """Who else is removing it, or ""."""
    mark: Mark | None = None
    drains_since: float | None = None
    """Time since which this leader has evicted its pods; None if it does not."""
    illegible: bool = False
    """Whether it has a mark that cannot be read."""
    provider_id: str = ""
    refused: str = ""
    """Why its Node could not be changed a short time ago, or ""."""
    doubt: str = ""
    """Why the machine that its provider id names may not be its own, or "" (``instances``)."""


class Sightings:
    """Since when each thing that a node says has been seen, by the leader's own clock. In memory.

    A condition has one time for all its faults, which its node writes, so nobody else's times count but those that a
    predecessor has written. All else that a leader finds at its first look counts from then.
    """

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, float]] = {}
        self._looked = False

    def since(self, uid: str, said: Iterable[str], told: Mapping[str, float], now: float) -> dict[str, float]:
        """Take in what a node says now; ``told``: since when, as far as that is known at the first look."""
        before = self._seen.get(uid, {}) if self._looked else told
        self._seen[uid] = {what: before.get(what, now) for what in said}
        return self._seen[uid]

    def looked(self, uids: set[str]) -> None:
        """All nodes have been taken in; forget the other ones."""
        self._looked = True
        self._seen = {uid: found for uid, found in self._seen.items() if uid in uids}


def view(node: PartialNode, sightings: Sightings, now: float) -> NeuronNode | None:
    """The node as recovery sees it; None for nodes without Neuron devices. ``now``: a clock that never jumps."""
    meta, labels = node.metadata, node.metadata.labels
    conditions = {condition.type: condition for condition in node.status.conditions}
    health = conditions.get(TYPE)
    marked = meta.annotations.get(MARK)
    if health is None and marked is None and labels.get(PRESENT) != "true":
        return None
    mark = decode_mark(marked) if marked is not None else None
    verdict, by_chip = _verdict(health)
    chips = {
        code: tuple(sorted(chip for chip, its in by_chip.items() if chip is not None and code in its))
        for codes in by_chip.values()
        for code in codes
    }
    agent, ready = conditions.get(AWS_CONDITION), conditions.get("Ready")
    label = next((label for label in NODES_OF if labels.get(label)), None)
    unit = f"{label}={labels[label]}" if label else meta.name
    linked = label is not None and str(NODES_OF[label]) in labels.get(SERVER_MODE, "").split("_")
    server, place = f"server {unit}", f"{unit} {linked}"
    # Who came to name a server just before this leader began has not named it for long.
    told = {place: 0.0}
    if mark is not None and mark.node == meta.name:
        told[mark.fault] = min(mark.since, now)
    times = sightings.since(meta.uid, (*chips, verdict, server, place), told, now)
    return NeuronNode(
        name=meta.name,
        uid=meta.uid,
        verdict=verdict,
        since=times[verdict],
        faults={code: times[code] for code in chips},
        chips=chips,
        unit=unit,
        linked=linked,
        joined=times[place],
        server_since=times[server],
        group=next((f"{label}={labels[label]}" for label in GROUP_LABELS if labels.get(label)), ""),
        ready=ready is not None and ready.status == "True",
        deleting=meta.deletion_timestamp is not None,
        cordoned=node.spec.unschedulable,
        tainted=any(taint.key == TAINT for taint in node.spec.taints),
        agent=agent is not None and agent.status == "False",
        others=_others(node.spec.taints),
        mark=mark,
        illegible=marked is not None and mark is None,
        provider_id=node.spec.provider_id,
    )


def _others(taints: Sequence[Taint]) -> str:
    """Why the node is left to others, or ""."""
    if len(taints) > MAX_NODE_TAINTS:
        return f"it has more than {MAX_NODE_TAINTS:,} taints"
    return next((OTHERS_TAINTS[taint.key] for taint in taints if taint.key in OTHERS_TAINTS), "")


def _verdict(health: Condition | None) -> tuple[Verdict, Mapping[int | None, tuple[str, ...]]]:
    if health is None or health.status not in ("True", "False"):
        return "unknown", {}
    return "sick" if health.status == "True" else "well", parse(health.reason, health.message)


# The mark as text


def encode_mark(mark: Mark) -> str:
    """The annotation's value."""
    return msgspec.json.encode(mark).decode()


def decode_mark(text: str) -> Mark | None:
    """The mark; None for a text that ``encode_mark`` cannot have made."""
    try:
        return msgspec.json.decode(text, type=Mark)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


# Changes as JSON merge patches, each for exactly one state of the Node


def marking(node: PartialNode, mark: Mark, *, request: bool = False) -> dict[str, object]:
    """The patch that writes the mark and, with it, what the mark says was done; ``request``: or was requested."""
    notes = {MARK: encode_mark(mark)}
    if request:
        told = {"action": mark.action, "fault": mark.fault, "node": mark.node, "at": timestamp(mark.requested)}
        notes[REQUEST] = msgspec.json.encode(told).decode()
    spec: dict[str, object] = {}
    if "cordon" in mark.did and not node.spec.unschedulable:
        spec["unschedulable"] = True
    if "taint" in mark.did and all(taint.key != TAINT for taint in node.spec.taints):
        spec["taints"] = _plain((*node.spec.taints, Taint(TAINT, mark.fault, "NoSchedule")))
    return _patch(node, notes, spec)


def clearing(node: PartialNode, mark: Mark) -> dict[str, object]:
    """The patch that takes back what the mark says was done, and the mark."""
    spec: dict[str, object] = {}
    # The taint that the node controller adds for a cordon goes with the cordon.
    if "cordon" in mark.did and node.spec.unschedulable:
        spec["unschedulable"] = None
    if "taint" in mark.did:
        left = tuple(taint for taint in node.spec.taints if taint.key != TAINT)
        if left != node.spec.taints:
            spec["taints"] = _plain(left) or None
    return _patch(node, {MARK: None, REQUEST: None}, spec)


def _patch(node: PartialNode, notes: Mapping[str, str | None], spec: Mapping[str, object]) -> dict[str, object]:
    meta = {"uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version, "annotations": dict(notes)}
    return {"metadata": meta, **({"spec": dict(spec)} if spec else {})}


def _plain(taints: Iterable[Taint]) -> list[object]:
    made: list[object] = msgspec.to_builtins(list(taints))
    return made
