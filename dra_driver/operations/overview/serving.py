"""Who offers the devices of a node now and, if nobody does, why not. Values in, values out.

Slices, capacity and conditions outlast whoever wrote them; kubelet removes the slices of a driver that is gone after
half a minute, and sets allocatable to 0 for a device plugin that is. What is offered, and how the pod of the driver is
on that node, is therefore what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dra_driver.kube.kubelet.versions import kubelet_problem
from dra_driver.kube.node_affinity import NodeSelectorError, unselected, untolerated
from dra_driver.kube.objects.apps import DaemonSet
from dra_driver.kube.objects.core import (
    Node,
    PartialNode,
    PodSpec,
    ReportedPod,
    Toleration,
)
from dra_driver.kube.objects.meta import Condition, ObjectMeta
from dra_driver.kube.podstate import OUT_OF_MEMORY, PodState, state_of
from dra_driver.neuron.health.condition import DEVICE_PLUGIN, KERNEL_DRIVER, KUBELET, STOPPED_REASON
from dra_driver.neuron.health.condition import TYPE as HEALTH_CONDITION
from dra_driver.neuron.names import DEVICE_PLUGIN_POD, DRIVER_POD
from dra_driver.neuron.topology.instance_types import HYPERPOD_PREFIX, INSTANCE_TYPE_LABEL, lookup
from dra_driver.operations.overview.findings import Finding, finding
from dra_driver.util.text import one_line

CONDITION_BYTES: Final = 600
"""Of a Node's condition, which says what to do at its end."""
NOBODY: Final = "None"
"""Word of a node without a pod of the driver."""
NOT_LOADED: Final = KERNEL_DRIVER.reason


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


_REGISTRY: Final = "plugins_registry"
_DEVICE_PLUGINS: Final = "device-plugins"
"""Directories of kubelet in which a driver and a device plugin have their sockets."""


def daemon_of(pod: ReportedPod) -> Daemon | None:
    """None for any other pod. Labels and owners tell nothing: anybody may put them on a pod, or run a DaemonSet."""
    owned = any(owner.kind == "DaemonSet" and owner.controller for owner in pod.metadata.owner_references)
    labels = pod.metadata.labels
    plugin = labels.get(DEVICE_PLUGIN_POD[0]) == DEVICE_PLUGIN_POD[1]
    if not owned or not (plugin or labels.get(DRIVER_POD[0]) == DRIVER_POD[1]):
        return None
    if not _mounts(pod.spec, _DEVICE_PLUGINS if plugin else _REGISTRY):
        return None
    return Daemon(f"{pod.metadata.namespace}/{pod.metadata.name}", plugin, state_of(pod))


def _mounts(spec: PodSpec, directory: str) -> bool:
    """Whether a pod mounts that directory of its node's kubelet: who may do that is root there, and needs no lies."""
    paths = ((volume.get("hostPath") or {}).get("path") or "" for volume in spec.volumes)
    return any(path.rstrip("/").rpartition("/")[2] == directory for path in paths)


@dataclass(frozen=True, slots=True)
class Serving:
    """Who serves a node's devices."""

    word: str
    """For a column: ``Ready``, or what is the matter, such as ``None`` and ``CrashLoopBackOff``."""
    finding: Finding | None = None
    """Why nobody offers devices there, or why their driver is not ready; None if all is well."""

    @property
    def problem(self) -> str:
        """Of the finding, or ""."""
        return self.finding.text if self.finding is not None else ""

    @property
    def remedy(self) -> str:
        """What an administrator does about it; "" where the problem says that itself."""
        return self.finding.remedy if self.finding is not None else ""

    @property
    def since(self) -> str:
        """RFC 3339, or ""."""
        return self.finding.since if self.finding is not None else ""

    @property
    def serves(self) -> bool:
        """Whether a program of the node is there for kubelet, and well."""
        return self.word in ("Ready", "-")

    @property
    def answers(self) -> bool:
        """Whether one may answer kubelet: what a driver answers may be why it is not ready."""
        return self.serves or self.word == "NotReady"


def serving(
    node: Node | PartialNode,
    offered: bool,
    daemons: Sequence[Daemon],
    daemon_sets: Sequence[DaemonSet] | None = None,
    refusal: Callable[[ObjectMeta], str] = lambda _: "",
    *,
    known: bool = True,
    claims: bool = False,
) -> Serving:
    """Who serves the devices of a node.

    What the Node's conditions say comes first: they name the cause, and a pod's state what follows from it.

    Args:
        node: the node.
        offered: whether any are offered now, by slices or by a device plugin.
        daemons: the pods of driver and device plugin on the node.
        daemon_sets: of the driver; None: they could not be read.
        refusal: why no pods can be created for a DaemonSet, or "".
        known: whether all pods could be read.
        claims: whether pods there have claims, which only the driver can prepare and unprepare, whatever device plugin
            runs there.
    """
    conditions = node.status.conditions
    able = [item for item in daemons if not (claims and item.plugin)]
    # During an update with surge, two are there. The pod of somebody else's DaemonSet may have the label, too.
    best = min(able, key=lambda item: (not item.state.ready, item.plugin), default=None)
    withheld = _withheld(node)
    if best is not None and not best.state.ready:
        problem = withheld if withheld is not None and best.state.word == "NotReady" else _not_ready(best)
        return Serving(best.state.word, problem)
    unloaded = _condition(conditions, KERNEL_DRIVER.type)
    if unloaded is not None and unloaded.status == "True" and (best is not None or not known):
        # Slices may have the chips that were there before, each with a taint.
        return Serving(NOT_LOADED, withheld)
    health = _condition(conditions, HEALTH_CONDITION)
    stopped = health is not None and health.reason == STOPPED_REASON and health.status != "False"
    if offered and not (stopped and best is None and known):
        late = [_late(item, best) for item in able if item.state.word in _FAILED and best is not None]
        return Serving("Ready" if best is not None else "-", late[0] if late else None)
    if best is not None:
        return Serving("NothingOffered", withheld or _of_pod("NothingOffered", best, _IDLE.format(best.kind)))
    if not known:
        return Serving("Unknown", withheld or finding("NotKnown", "no devices are published there"))
    since = (health.last_transition_time if stopped and health is not None else "") or ""
    return Serving(NOBODY, _absence(node, daemon_sets, since, refusal))


_IDLE: Final = "the {} runs, but offers no devices"
_IS: Final = {
    "NotReady": "is not ready",
    "Pending": "is pending",
    "Terminating": "is being deleted",
    "Evicted": "was evicted",
    "Failed": "has failed",
    "Error": "ended with an error",
    "OOMKilled": "was ended by the kernel",
}
_REASONS: Final = {
    "NotReady": "DriverNotReady",
    **dict.fromkeys(("CrashLoopBackOff", "Error", "OOMKilled"), "DriverCrashes"),
    **dict.fromkeys(("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"), "DriverImage"),
}
"""By the state of the pod."""
_FAILED: Final = frozenset({*_REASONS, "CreateContainerError"} - {"NotReady"})
"""States of a pod that will not become ready soon."""


def _condition(conditions: Sequence[Condition], kind: str) -> Condition | None:
    return next((item for item in conditions if item.type == kind), None)


def _withheld(node: Node | PartialNode) -> Finding | None:
    """Why the driver itself offers less than the node has, as the Node says it."""
    conditions = node.status.conditions
    for problem in (KERNEL_DRIVER, DEVICE_PLUGIN):
        item = _condition(conditions, problem.type)
        if item is not None and item.status == "True":
            text = one_line(item.message, CONDITION_BYTES)
            return finding(problem.reason, text, since=item.last_transition_time or "")
    info = getattr(node.status, "node_info", None)
    unsupported = kubelet_problem(info.kubelet_version) if info is not None else ""
    return finding(KUBELET.reason, unsupported) if unsupported else None


def _not_ready(daemon: Daemon) -> Finding:
    state = daemon.state
    text = f"the {daemon.kind}'s pod {daemon.pod} {_IS.get(state.word, f'is in {state.word}')}"
    text += f" ({state.detail})" if state.detail else ""
    reason = "DriverOutOfMemory" if OUT_OF_MEMORY in state.detail else _REASONS.get(state.word, "DriverNotStarted")
    return _of_pod(reason, daemon, text, state.since)


def _late(daemon: Daemon, best: Daemon) -> Finding:
    """Of a rollout that does not go on: the former pod serves until the new one is ready."""
    item = _not_ready(daemon)
    return replace(item, text=f"{item.text}, so the update does not go on; {best.pod} still serves")


def _of_pod(reason: str, daemon: Daemon, text: str, since: str = "") -> Finding:
    namespace, _, pod = daemon.pod.partition("/")
    return finding(reason, text, since=since, namespace=namespace, pod=pod, log=daemon.state.log or pod)


def _absence(
    node: Node | PartialNode, daemon_sets: Sequence[DaemonSet] | None, since: str, refusal: Callable[[ObjectMeta], str]
) -> Finding:
    """Why the DaemonSet has no pod on a node."""
    name, text = node.metadata.name, "no pod of the driver runs there"
    if daemon_sets is None:
        return finding("NoDriver", text, since=since, node=name, label="=".join(DRIVER_POD))
    own = [item for item in daemon_sets if _mounts(item.spec.template.spec, _REGISTRY)]
    # Pod Security keeps pods from mounting that, and no DaemonSet from saying so: what is a tenant's has no pods.
    own = [item for item in own if item.status.current_number_scheduled] or own
    if not own:
        return finding("NoDaemonSet", f"{text}, because there is no DaemonSet of it", since=since)
    obstacles = [(item.metadata, _left_out(node, item)) for item in own]
    selecting = next((meta for meta, obstacle in obstacles if not obstacle), None)
    if selecting is not None:
        why = refusal(selecting)
        text += f", although DaemonSet {selecting.full_name} selects the node" + (f": {why}" if why else "")
        reason, names = "DriverNotCreated" if why else "DaemonSetMakesNoPod", {"namespace": selecting.namespace}
        return finding(reason, text, since=since, daemon_set=selecting.name, **names)
    each = [f"DaemonSet {meta.full_name} leaves the node out: {obstacle}" for meta, obstacle in obstacles]
    return finding("DaemonSetLeavesNodeOut", f"{text}, because {'; '.join(each)}", since=since, node=name)


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
    texts = {}
    for node in nodes:
        name, kind = node.metadata.name, node.metadata.labels.get(INSTANCE_TYPE_LABEL, "")
        here = [item for item in daemons.get(name, ()) if not item.plugin]
        if name in daemons and not here and name not in offered:
            texts[name] = "the device plugin runs there in place of the DRA driver"
        elif here or lookup(kind.removeprefix(HYPERPOD_PREFIX)) or _condition(node.status.conditions, HEALTH_CONDITION):
            state = serving(node, name in offered, here, daemon_sets)
            if not state.serves:
                texts[name] = "; ".join(filter(None, (state.problem, state.remedy)))
    return {name: text for name, text in texts.items() if text}
