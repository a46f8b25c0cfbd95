"""Who offers the devices of a node now and, if nobody does, why not. Values in, values out.

Slices, capacity and conditions outlast whoever wrote them; kubelet removes the slices of a driver that is gone after
half a minute, and sets allocatable to 0 for a device plugin that is. What is offered, and how the pod of the driver is
on that node, is therefore what counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver.kube.node_affinity import NodeSelectorError, unselected, untolerated
from dra_driver.kube.objects.apps import DaemonSet
from dra_driver.kube.objects.core import (
    ContainerStateTerminated,
    ContainerStatus,
    Node,
    PartialNode,
    ReportedPod,
    Toleration,
)
from dra_driver.kube.objects.meta import Condition
from dra_driver.neuron.health.condition import KERNEL_DRIVER, STOPPED_REASON, told
from dra_driver.neuron.health.condition import TYPE as HEALTH_CONDITION
from dra_driver.neuron.names import DEVICE_PLUGIN_POD, DRIVER_POD
from dra_driver.neuron.topology.instance_types import HYPERPOD_PREFIX, INSTANCE_TYPE_LABEL, lookup
from dra_driver.util.text import one_line

LINE_BYTES: Final = 300
"""Of a message that is shown in a row."""
NOT_LOADED: Final = "KernelDriverNotLoaded"
_CREATING: Final = frozenset({"ContainerCreating", "PodInitializing"})


@dataclass(frozen=True, slots=True)
class PodState:
    """What kubectl shows in the column STATUS, and more."""

    word: str
    """Such as ``Running``, ``ContainerCreating``, ``CrashLoopBackOff``, ``Evicted``, ``Terminating``."""
    since: str = ""
    """RFC 3339, or ""."""
    detail: str = ""
    """One line, or ""."""
    ready: bool = False


def state_of(pod: ReportedPod) -> PodState:
    """How a pod is, in the words of kubectl."""
    status, meta = pod.status, pod.metadata
    ready = next((entry for entry in status.conditions if entry.type == "Ready"), None)
    since = (ready.last_transition_time if ready is not None else "") or meta.creation_timestamp or ""
    if status.phase in ("Failed", "Succeeded"):
        return PodState(status.reason or status.phase, since, one_line(status.message, LINE_BYTES))
    if meta.deletion_timestamp is not None:
        return PodState("Terminating", meta.deletion_timestamp)
    for item in (*status.init_container_statuses, *status.container_statuses):
        found = _trouble(item)
        if found is not None:
            return PodState(found[0], since, found[1])
    if status.phase == "Running" and (ready is None or ready.status == "True"):
        return PodState("Running", since, ready=True)
    scheduled = next((entry for entry in status.conditions if entry.type == "PodScheduled"), None)
    detail = scheduled.message if scheduled is not None and scheduled.status != "True" else ""
    word = "NotReady" if status.phase == "Running" else status.phase
    # Between two crashes it runs for a moment.
    before = [(item, ended) for item in status.container_statuses if (ended := item.last_state.terminated) is not None]
    for item, ended in before if word == "NotReady" else ():
        detail = f"{_restarts(item)}; {_last_line(ended)}" if ended.exit_code else detail
    return PodState(word, since, one_line(detail, LINE_BYTES))


def _trouble(item: ContainerStatus) -> tuple[str, str] | None:
    """Word and detail of a container that does not run; None for one that does, or has done its work."""
    now, last = item.state, item.last_state.terminated
    if now.terminated is not None:
        ended = now.terminated
        return None if not ended.exit_code else (ended.reason or "Error", _last_line(ended))
    if now.waiting is None:
        return None
    word = now.waiting.reason or "Waiting"
    if last is None:
        return word, "" if word in _CREATING else one_line(now.waiting.message, LINE_BYTES)
    return word, f"{_restarts(item)}; {_last_line(last)}"


def _restarts(item: ContainerStatus) -> str:
    return f"{item.restart_count} restart{'s' if item.restart_count != 1 else ''}"


def _last_line(ended: ContainerStateTerminated) -> str:
    lines = [line.strip() for line in ended.message.splitlines() if line.strip()]
    return one_line(lines[-1] if lines else f"{ended.reason or 'ended'} with exit code {ended.exit_code}", LINE_BYTES)


@dataclass(frozen=True, slots=True)
class Daemon:
    """The pod of the driver, or of the device plugin, on a node."""

    pod: str
    """``namespace/name``."""
    plugin: bool
    state: PodState

    @property
    def kind(self) -> str:
        """In words."""
        return "device plugin" if self.plugin else "driver"


def daemon_of(pod: ReportedPod) -> Daemon | None:
    """None for any other pod. Only a DaemonSet's counts: anybody may put a label on a pod."""
    owned = any(owner.kind == "DaemonSet" and owner.controller for owner in pod.metadata.owner_references)
    labels = pod.metadata.labels
    plugin = labels.get(DEVICE_PLUGIN_POD[0]) == DEVICE_PLUGIN_POD[1]
    if not owned or not (plugin or labels.get(DRIVER_POD[0]) == DRIVER_POD[1]):
        return None
    return Daemon(f"{pod.metadata.namespace}/{pod.metadata.name}", plugin, state_of(pod))


@dataclass(frozen=True, slots=True)
class Serving:
    """Who serves a node's devices."""

    word: str
    """For a column: ``Ready``, or what is the matter, such as ``None`` and ``CrashLoopBackOff``."""
    problem: str = ""
    """Why nobody offers devices there, or why their driver is not ready; "" if all is well."""
    remedy: str = ""
    """What an administrator does about it; "" where the problem says that itself."""
    since: str = ""
    """RFC 3339, or ""."""


def serving(
    node: Node | PartialNode,
    offered: bool,
    daemons: Sequence[Daemon],
    daemon_sets: Sequence[DaemonSet] | None = None,
    *,
    known: bool = True,
    withheld: str = "",
) -> Serving:
    """Who serves the devices of a node.

    Args:
        node: the node.
        offered: whether any are offered now, by slices or by a device plugin.
        daemons: the pods of driver and device plugin on the node.
        daemon_sets: of the driver; None: they could not be read.
        known: whether all pods could be read.
        withheld: why the driver itself offers nothing, as far as the Node says it.
    """
    conditions = node.status.conditions
    # During an update with surge, two are there. The pod of somebody else's DaemonSet may have the label, too.
    best = min(daemons, key=lambda item: (not item.state.ready, item.plugin), default=None)
    if best is not None and not best.state.ready:
        state = best.state
        problem = f"the {best.kind}'s pod {best.pod} {_IS.get(state.word, f'is in {state.word}')}"
        problem += f" ({state.detail})" if state.detail else ""
        return Serving(state.word, problem, _read_why(best.pod, state.word), state.since)
    unloaded = _condition(conditions, KERNEL_DRIVER.type)
    if unloaded is not None and unloaded.status == "True" and (best is not None or not known):
        # Slices may have the chips that were there before, each with a taint.
        problem = told(KERNEL_DRIVER, conditions)
        return Serving(NOT_LOADED, problem, since=unloaded.last_transition_time or "")
    if offered:
        return Serving("Ready" if best is not None else "-")
    if best is not None:
        problem = withheld or f"the {best.kind} runs, but offers no devices"
        return Serving("NothingOffered", problem, "" if withheld else _read_why(best.pod, ""))
    if not known:
        return Serving("Unknown", withheld or "no devices are published there")
    health = _condition(conditions, HEALTH_CONDITION)
    stopped = health is not None and health.reason == STOPPED_REASON
    since = (health.last_transition_time if stopped and health is not None else "") or ""
    cause, remedy = _absence(node, daemon_sets)
    return Serving("None", f"no pod of the driver runs there{cause}", remedy, since)


_IS: Final = {
    "NotReady": "is not ready",
    "Pending": "is pending",
    "Terminating": "is being deleted",
    "Evicted": "was evicted",
    "Failed": "has failed",
    "Error": "ended with an error",
}
_CRASHED: Final = frozenset({"CrashLoopBackOff", "Error", "OOMKilled"})


def _condition(conditions: Sequence[Condition], kind: str) -> Condition | None:
    return next((item for item in conditions if item.type == kind), None)


def _read_why(pod: str, word: str) -> str:
    """Where the reason is for which a pod is not well; ``word``: as of its state, or "" for one that runs."""
    namespace, _, name = pod.partition("/")
    if word in ("", "NotReady"):
        return f"read why: kubectl -n {namespace} logs {name} --tail 20"
    if word not in _CRASHED:
        return f"read why: kubectl -n {namespace} describe pod {name}"
    return (
        "if it began with a change of settings or image, correct or revert that (helm rollback to a revision from helm "
        "history; the installer script with the previous settings; kubectl rollout undo --to-revision), and with "
        "updateStrategy OnDelete, delete the pod afterwards; else read why: "
        f"kubectl -n {namespace} logs {name} --previous"
    )


def _absence(node: Node | PartialNode, daemon_sets: Sequence[DaemonSet] | None) -> tuple[str, str]:
    """Why the DaemonSet has no pod on a node, to be appended to that, and what helps."""
    name = node.metadata.name
    if daemon_sets is None:
        label = "=".join(DRIVER_POD)
        return "", (
            f"compare the labels and taints of node {name} (kubectl describe node {name}) with the selector and "
            f"affinity of the driver's DaemonSet (kubectl get daemonset -A -l {label} "
            "-o jsonpath='{.items[*].spec.template.spec.nodeSelector}{.items[*].spec.template.spec.affinity}'); "
            "if there is no DaemonSet, install the driver"
        )
    if not daemon_sets:
        return ", because there is no DaemonSet of it", "install the driver"
    obstacles = {f"{item.metadata.namespace}/{item.metadata.name}": _left_out(node, item) for item in daemon_sets}
    selecting = next((key for key, obstacle in obstacles.items() if not obstacle), "")
    if selecting:
        namespace, _, daemon_set = selecting.partition("/")
        return (
            f", although DaemonSet {selecting} selects the node",
            f"read why: kubectl -n {namespace} describe daemonset {daemon_set}",
        )
    each = [f"DaemonSet {key} leaves the node out: {obstacle}" for key, obstacle in obstacles.items()]
    return f", because {'; '.join(each)}", (
        f"correct the label (kubectl label node {name} KEY=VALUE --overwrite, or KEY- to remove it) or taint (kubectl "
        f"taint node {name} KEY-) of the node, or the driver's nodeSelector, affinity or tolerations in its settings"
    )


def _left_out(node: Node | PartialNode, daemon_set: DaemonSet) -> str:
    """Why a DaemonSet makes no pod on a node, as half a sentence; "" if it should."""
    spec = daemon_set.spec.template.spec
    try:
        found = unselected(node, spec.node_selector, spec.affinity.required_nodes)
    except NodeSelectorError as error:
        return str(error)
    return found or untolerated(node, (*spec.tolerations, *_DAEMONS_TOLERATE))


_DAEMONS_TOLERATE: Final = tuple(
    Toleration(f"node.kubernetes.io/{key}", "Exists", effect=effect)
    for key, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
)
"""What the controller of DaemonSets adds to every pod (``k8s.io/kubernetes/pkg/controller/daemon/util``)."""


def unserved(
    nodes: Sequence[Node],
    offered: Collection[str],
    daemons: Mapping[str, Sequence[Daemon]],
    daemon_sets: Sequence[DaemonSet] | None,
) -> dict[str, str]:
    """The nodes on which claims get nothing, or where their driver is not well: why, and what helps.

    Args:
        nodes: of the cluster.
        offered: names of those with slices that offer devices.
        daemons: the pods of driver and device plugin, by node.
        daemon_sets: as of ``serving``.
    """
    found = {}
    for node in nodes:
        name, kind = node.metadata.name, node.metadata.labels.get(INSTANCE_TYPE_LABEL, "")
        here = [item for item in daemons.get(name, ()) if not item.plugin]
        if name in daemons and not here and name not in offered:
            found[name] = "the device plugin runs there in place of the DRA driver"
        elif here or lookup(kind.removeprefix(HYPERPOD_PREFIX)) is not None:
            state = serving(node, name in offered, here, daemon_sets)
            found[name] = "; ".join(filter(None, (state.problem, state.remedy)))
    return {name: text for name, text in found.items() if text}
