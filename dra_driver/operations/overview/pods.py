"""Why a pod waits, does not run on its node, does not end, or runs on a sick chip, as the cluster says it.

Values in, values out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from dra_driver.kube.objects.core import PartialNode
from dra_driver.kube.objects.meta import Condition, seconds, timestamp
from dra_driver.kube.podstate import OUT_OF_MEMORY
from dra_driver.neuron.device_status import READY
from dra_driver.neuron.health.faults import REMEDIES
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.operations.overview.findings import RETRY_SECONDS, Finding, Who, finding, row_of
from dra_driver.operations.overview.objects import CREATE, ENDED, PREPARE, Claim, ClusterView, Pod, PodEvent
from dra_driver.operations.overview.rows import NodeRow
from dra_driver.operations.overview.uses import repeated
from dra_driver.util.text import first_of, one_line

REASON_BYTES: Final = 400
"""The scheduler lists a reason for each kind of node."""
LOOK_SECONDS: Final = 10
"""A scheduler that runs has looked at a pod by then, and the controller at its claims."""


@dataclass(frozen=True, slots=True)
class PodEvidence:
    """How a pod is. Texts are sentences without a full stop."""

    state: str
    findings: tuple[Finding, ...] = ()
    """Why it is not well, the cause first; none: nothing is in its way, as far as one sees."""
    bound: bool = True
    """Whether it has a node."""
    ended: bool = False
    """Whether it has no devices any more."""


# Pods without a node


def pending(pod: Pod, around: ClusterView) -> Finding:
    """Why a pod without a node has none yet."""
    namespace = pod.metadata.namespace
    if pod.ending:
        return _ending(pod)
    if pod.gates:
        return finding("SchedulingGated", f"scheduling gates: {first_of(pod.gates, 3)}", since=pod.created)
    if pod.templates:
        return _unmade(pod, around)
    gone = around.gone(pod)
    if gone:
        return finding("ClaimMissing", f"claim {first_of(gone, 3)} does not exist", namespace=namespace)
    ending = [claim.metadata for claim in around.own(pod) if claim.metadata.deletion_timestamp]
    if ending:
        each = [f"{item.name}, which {first_of(item.finalizers, 3) or 'nothing'} keeps" for item in ending]
        text = f"claim {first_of(each, 3)}, is being deleted"
        return finding("ClaimEnding", text, since=ending[0].deletion_timestamp or "", namespace=namespace)
    scheduled = pod.scheduled
    if scheduled is None or scheduled.status == "True":
        if pod.pod_group:
            return _without_group(pod, "kube-scheduler has not looked at it yet")
        if pod.scheduler in ("", _DEFAULT_SCHEDULER):
            return finding("NotScheduled", "no scheduler has looked at it yet", since=pod.created)
        name = one_line(pod.scheduler, 64)
        text = f"scheduler {name}, which its spec.schedulerName names, has not looked at it yet"
        return finding("OtherScheduler", text, since=pod.created, scheduler=name)
    text = one_line(scheduled.message or scheduled.reason, REASON_BYTES)
    reason = by_pattern(ADMISSION, scheduled.message) or scheduled.reason or "Unschedulable"
    return finding(reason, text, since=scheduled.last_transition_time or "")


def _ending(pod: Pod) -> Finding:
    """Why a pod that runs nowhere is still there."""
    meta = pod.metadata
    text = "it is being deleted" + (f", and kept by {first_of(meta.finalizers, 3)}" if meta.finalizers else "")
    since = meta.deletion_timestamp or ""
    return finding("Terminating", text, since=since, namespace=meta.namespace, pod=meta.name)


_DEFAULT_SCHEDULER: Final = "default-scheduler"
_NOT_YET: Final = frozenset({"NotScheduled", "OtherScheduler", "ClaimNotCreated", "PodGroupNotReady"})
"""Reasons that mean nothing of a pod that is seconds old."""


def by_pattern(patterns: Mapping[str, re.Pattern[str]], text: str) -> str:
    """The first reason whose pattern a text has; "" if none."""
    return next((name for name, pattern in patterns.items() if pattern.search(text)), "")


def _unmade(pod: Pod, around: ClusterView) -> Finding:
    """Why no claim is created from a template."""
    namespace, templates = pod.metadata.namespace, around.templates
    missing = [name for name in pod.templates if templates is not None and name not in templates]
    if missing:
        text = f"ResourceClaimTemplate {first_of(missing, 3)} does not exist in namespace {namespace}"
        return finding("TemplateMissing", text, namespace=namespace)
    event = around.last(pod, (CREATE,))
    if event is not None:
        reason = by_pattern(_CREATION, event.text) or CREATE
        text = f"kube-controller-manager cannot create its claim ({event.last}): {event.text}"
        return finding(reason, text, namespace=namespace)
    each = first_of([f"ResourceClaimTemplate {name}" for name in pod.templates], 3)
    doubt = "" if templates is not None else ", if it exists"
    text = f"no claim is created from {each} in its namespace{doubt}"
    return _without_group(pod, text) if pod.pod_group else finding("ClaimNotCreated", text, since=pod.created)


def _without_group(pod: Pod, text: str) -> Finding:
    text = f"{text}: it waits for its PodGroup {pod.pod_group}"
    return finding("PodGroupNotReady", text, since=pod.created, namespace=pod.metadata.namespace, group=pod.pod_group)


ADMISSION: Final = {
    "PolicyRefused": re.compile(r"ValidatingAdmissionPolicy '"),
    "WebhookRefused": re.compile(r"\bwebhook \""),
}
"""Reasons by what the API server says of a request that admission refuses, whoever has made it."""
_CREATION: Final = {
    "QuotaExceeded": re.compile(r"exceeded quota"),
    **ADMISSION,
    "TemplateMissing": re.compile(r"template .*not found"),
}
"""Reasons by what the controller says (``k8s.io/kubernetes/pkg/controller/resourceclaim``)."""


# Pods with a node


def node_not_ready(node: PartialNode) -> Finding | None:
    """Why a Node is not ready; None: it is, or does not say."""
    ready = next((item for item in node.status.conditions if item.type == "Ready"), None)
    if ready is None or ready.status == "True":
        return None
    text = f"node {node.metadata.name} is not ready: {one_line(ready.message or ready.reason, REASON_BYTES)}"
    if ready.status == "Unknown":
        text += ", so nobody sees what its pods do"
    return finding("NodeNotReady", text, since=ready.last_transition_time or "", node=node.metadata.name)


def lost_claims(pod: Pod, around: ClusterView) -> Finding | None:
    """Of a pod on a node whose claims are gone, while the node's driver goes on holding its devices for it."""
    gone = around.gone(pod)
    if not gone or not pod.node or pod.phase in ENDED:
        return None
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    text = f"claim {first_of(gone, 3)} of pod {name} does not exist any more, while the node's driver keeps its devices"
    return finding("ClaimGone", text)


def evidence(pod: Pod, around: ClusterView, row: NodeRow | None, now: float) -> PodEvidence:
    """What the cluster says of a pod.

    Args:
        pod: the pod.
        around: what there is around it.
        row: its node; None: it has none, or nothing may be read of it.
        now: seconds since the epoch. Of a pod that is seconds old it means nothing that nobody has looked at it.
    """
    state = pod.state
    if pod.phase in ENDED:
        where = f" on node {pod.node}" if pod.node else ", without a node"
        text = f"{state.word}{where}" + (f": {state.detail}" if state.detail else "")
        failed = replace(finding("Failed", text, **_names(pod)), reason=state.word)
        # Who deletes a pod does not ask any more why it has failed.
        kept = pod.ending and pod.metadata.finalizers
        why = (_ending(pod),) if kept else (failed,) if pod.phase == "Failed" else ()
        return PodEvidence(text, why, ended=True)
    if not pod.node:
        item = pending(pod, around)
        since = f" since {item.since}" if item.since else ""
        created = seconds(pod.created)
        young = created is None or now - created < LOOK_SECONDS
        missed = item.reason in _NOT_YET and young
        return PodEvidence(f"it has no node{since}: {item.text}", () if missed else (item,), bound=False)
    since = f" since {state.since}" if state.since else ""
    text = f"its status is {state.word} on node {pod.node}{since}"
    return PodEvidence(text, tuple(dict.fromkeys(_on_node(pod, around, row))))


def _on_node(pod: Pod, around: ClusterView, row: NodeRow | None) -> Iterator[Finding]:
    unserved = row.serving.finding if row is not None else None
    node = around.nodes_by_name.get(pod.node)
    not_ready = node_not_ready(node) if node is not None else None
    if not_ready is not None:
        yield not_ready
    if row is not None and unserved is not None:
        yield unserved if row.serving.serves else _unserved(pod, row, unserved)
    lost = lost_claims(pod, around)
    if lost is not None and not pod.ending:
        yield lost
    if not pod.state.ready and not pod.ending:
        answers = unserved is None or (row is not None and row.serving.answers)
        refusals = list(_refusals(pod, around, served=answers))
        yield from refusals or _containers(pod, around)
    elif not pod.ending:
        yield from _incomplete(pod, around)
    if row is not None:
        yield from _sick(pod, row)


def _incomplete(pod: Pod, around: ClusterView) -> Iterator[Finding]:
    """Of a pod that runs, while others of its group do not."""
    namespace, (key, size) = pod.metadata.namespace, pod.group
    members = around.groups.get((namespace, key), ()) if key else ()
    ready = sum(item.state.ready for item in members)
    others = sorted(item.metadata.name for item in members if not item.state.ready)
    if members and ready < size:
        missing = f": {first_of(others, 3)} not yet" if others else ": the others are not there"
        text = f"{ready} of the {size} pods of its group run{missing}, so the group does not work yet"
        yield finding("GroupIncomplete", text, namespace=namespace, other=others[0] if others else pod.metadata.name)


def _unserved(pod: Pod, row: NodeRow, item: Finding) -> Finding:
    """What the absence of the node's driver is in the way of."""
    what = f"nothing serves the devices of node {row.name}"
    consequence = f", so kubelet cannot {'unprepare' if pod.ending else 'prepare'} its claims"
    if row.serving.answers:
        what, consequence = f"the driver of node {row.name} is not well", ", and may refuse kubelet its claims"
    since = f" (since {item.since})" if item.since else ""
    return replace(item, text=f"{what}{'' if pod.state.ready else consequence}: {item.text}{since}")


def _refusals(pod: Pod, around: ClusterView, *, served: bool) -> Iterator[Finding]:
    """What its claims and kubelet's last Event say of preparations that failed.

    ``served``: whether kubelet had somebody to ask; if not, that is what has to be mended.
    """
    event = around.last(pod, (PREPARE,))
    refused = [(claim, item) for claim in around.own(pod) for _, item in claim.complaints if item.type == READY]
    retry = _retry(event)
    if event is not None and not any(repeated(item, event.text) for _, item in refused):
        reason, names = _of_kubelet(event.text, pod)
        text = f"kubelet's last attempt to prepare its claims failed ({event.last}): {event.text}"
        if (served and not (refused and reason == PREPARE)) or reason == "DriverNotRegistered":
            yield finding(reason, text, since=event.last, retry=retry, node=pod.node, **names)
        else:
            yield Finding(reason, text, since=event.last)
    for claim, item in {(claim.metadata.name, item.reason): (claim, item) for claim, item in refused}.values():
        yield _refused(claim, item, retry, served=served)


def _refused(claim: Claim, item: Condition, retry: str, *, served: bool) -> Finding:
    text = f"claim {claim.metadata.name} is refused: {item.message or item.reason}"
    since, name = item.last_transition_time or "", claim.metadata.name
    if not served:
        return Finding(item.reason, text, since=since, claim=name)
    return finding(item.reason, text, since=since, claim=name, retry=retry)


def _retry(event: PodEvent | None) -> str:
    """By when kubelet tries again, in words."""
    last = seconds(event.last) if event is not None else None
    within = f"{RETRY_SECONDS} seconds after its last attempt"
    return within if last is None else f"{within}, at {timestamp(int(last) + RETRY_SECONDS)}"


_NOT_REGISTERED: Final = re.compile(r"driver (\S+) is not\b")
_UNALLOCATED: Final = re.compile(r"not allowed to use ResourceClaim \w|ResourceClaim not created yet")
"""kubelet asks for the claims of a pod that has a node: a scheduler that knows claims has waited for them."""
_NOT_OWNED: Final = re.compile(r"not allowed to use ResourceClaim \w|was not created for Pod \S+ \(Pod is not owner\)")
"""kubelet knows no claims of PodGroups."""
_NO_ANSWER: Final = re.compile(r"DeadlineExceeded|deadline exceeded|code = Unavailable|connection refused")


def _of_kubelet(text: str, pod: Pod) -> tuple[str, dict[str, str]]:
    """Reason of an Event about a preparation, and names for its remedy (``k8s.io/kubernetes/pkg/kubelet/cm/dra``)."""
    unregistered = _NOT_REGISTERED.search(text)
    if unregistered is not None:
        return "DriverNotRegistered", {"driver": one_line(unregistered[1], 64)}
    if pod.pod_group and _NOT_OWNED.search(text):
        return "PodGroupClaimRefused", {}
    if _UNALLOCATED.search(text):
        return "ClaimNotAllocated", {}
    if "with same name" in text:
        return "OldClaimPrepared", {}
    if _NO_ANSWER.search(text):
        return "DriverDoesNotAnswer", {"driver": DRIVER_NAME}
    return PREPARE, {}


def _containers(pod: Pod, around: ClusterView) -> Iterator[Finding]:
    """What kubelet says of containers that do not run, and of what keeps it from starting them."""
    state, names = pod.state, _names(pod)
    node = around.nodes_by_name.get(pod.node)
    for item in node.status.conditions if node is not None else ():
        if item.type in _PRESSURES and item.status == "True":
            text = f"node {pod.node} has {item.type}: {one_line(item.message, REASON_BYTES)}"
            yield finding("NodeUnderPressure", text, since=item.last_transition_time or "", node=pod.node)
    if state.detail:
        reason = by_pattern(_BY_TEXT, state.detail) or state.word
        yield _of_kubelets(reason, f"{state.word}: {state.detail}", state.since, names)
        also = around.last(pod, _BESIDE.get(row_of(reason), ()))
        if also is not None and not also.text.startswith("Readiness"):  # which ends no container
            yield finding(also.reason, f"kubelet says ({also.last}): {also.text}", since=also.last, **names)
        return
    event = around.last(pod, _WARNINGS)
    if event is not None:
        reason = by_pattern(_BY_TEXT, event.text) or event.reason
        yield _of_kubelets(reason, f"{event.reason} ({event.last}): {event.text}", event.last, names)


def _of_kubelets(reason: str, text: str, since: str, names: dict[str, str]) -> Finding:
    return replace(finding(row_of(reason), text, since=since, **names), reason=reason)


def _names(pod: Pod) -> dict[str, str]:
    """For remedies that name the pod."""
    meta = pod.metadata
    return {"namespace": meta.namespace, "pod": meta.name, "node": pod.node, "log": pod.state.log or meta.name}


_BY_TEXT: Final = {
    "UnresolvableDevices": re.compile(r"unresolvable CDI devices"),
    "RuntimeHandlerMissing": re.compile(r"no runtime for \"\w|find runtime handler|failed to get RuntimeClass"),
    "OutOfMemory": re.compile(rf"{OUT_OF_MEMORY} with exit code"),
}
"""Reasons by what kubelet, containerd and CRI-O say."""
_BESIDE: Final = {"ImagePullBackOff": ("FailedToRetrieveImagePullSecret",), "CrashLoopBackOff": ("Unhealthy",)}
"""Reasons of Events that say more of a container than its own reason does."""
_PRESSURES: Final = frozenset({"DiskPressure", "MemoryPressure", "PIDPressure"})
_WARNINGS: Final = frozenset(
    {"FailedCreatePodSandBox", "FailedMount", "FailedAttachVolume", "Failed", "NetworkNotReady", "Unhealthy"}
)
"""Reasons of kubelet's Events about pods whose containers say nothing yet."""


def _sick(pod: Pod, row: NodeRow) -> Iterator[Finding]:
    """Each fault of the pod's chips, and what mends it."""
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    for chip in row.chips:
        for fault in chip.faults if name in chip.holders else ():
            text = f"its chip neuron{chip.index} is {chip.state}: {fault.code}"
            text += f", {fault.row.text}" if fault.row else ""
            mend = fault.row is not None and fault.row.remedy != "nothing"
            remedy = f"repair neuron{chip.index}: {REMEDIES[fault.row.remedy]}" if fault.row and mend else ""
            yield Finding(fault.code, text, remedy, Who.ADMINISTRATOR if mend else Who.NOBODY, fault.since)
