"""Pods as groups: which belong together, how many nodes they need, and their progress."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from dra_driver.kube.matching import tolerates
from dra_driver.kube.objects.core import Taint, Toleration
from dra_driver.neuron.names import NODES_OF, SERVER_2, SERVER_4
from dra_driver.ultraserver.placer.values import GROUP_LABEL, LWS_TOPOLOGY, NODES_ANNOTATION, GroupPod, ServerNode

MAX_GATED: Final = 2 * NODES_OF[SERVER_4]
"""Pods with the gate that count of one group: more than any group may have, and few, however many name it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a group requires."""

    size: int
    """Pods, each on a node of its own."""
    label: str
    """Node label whose value the nodes share; a whole server or a half is given."""
    led: bool
    """Only the first pod has the gate; the others are created, pinned to its server, once it has a node."""

    @property
    def nodes(self) -> int:
        """Number of nodes that the group is given, which may exceed its number of pods."""
        return NODES_OF[self.label]


class Admission:
    """Which nodes the node selectors and tolerations of all of these pods admit.

    A decision asks that of each node for each waiting group, so a taint that many nodes have is judged once, and only
    if the labels of one of them are right.
    """

    def __init__(self, pods: Iterable[GroupPod]) -> None:
        self._pods = tuple(pods)
        self._tolerated: dict[tuple[str, str, str], bool] = {}

    def admits(self, node: ServerNode) -> bool:
        """Whether each of the pods may run on the node."""
        labels, selector = node.labels, self._selector
        if selector is None or any(labels.get(key) != value for key, value in selector.items()):
            return False
        return all(map(self._tolerates, node.taints))

    @cached_property
    def _selector(self) -> dict[str, str] | None:
        """The labels that a node must have; None if two pods demand different values of one."""
        selector: dict[str, str] = {}
        for pod in self._pods:
            for key, value in pod.demands.selector.items():
                if selector.setdefault(key, value) != value:
                    return None
        return selector

    @cached_property
    def _tolerations(self) -> list[dict[str, list[Toleration]]]:
        """Of each pod, by key."""
        by_pod = []
        for pod in self._pods:
            by_key: dict[str, list[Toleration]] = {}
            for toleration in pod.demands.tolerations:
                by_key.setdefault(toleration.key, []).append(toleration)
            by_pod.append(by_key)
        return by_pod

    def _tolerates(self, taint: Taint) -> bool:
        what = taint.key, taint.value, taint.effect
        if what not in self._tolerated:
            self._tolerated[what] = all(
                any(tolerates(toleration, taint) for key in (taint.key, "") for toleration in by_key.get(key, ()))
                for by_key in self._tolerations
            )
        return self._tolerated[what]


@dataclass(frozen=True)
class PodGroup:
    """Pods of one namespace with one group key, the leader first. Never empty."""

    namespace: str
    key: str
    pods: tuple[GroupPod, ...]

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.namespace}/{self.pods[0].name}"

    @cached_property
    def gated(self) -> tuple[GroupPod, ...]:
        """Pods that are waiting for a server."""
        return tuple(pod for pod in self.pods if pod.gated and not pod.ending and not pod.finished)

    @cached_property
    def admission(self) -> Admission:
        """Which nodes its waiting pods may have."""
        return Admission(self.gated)

    def forget_admission(self) -> None:
        """Drop what was read of its pods' demands: of thousands of groups at once that takes hundreds of megabytes."""
        self.__dict__.pop("admission", None)

    @cached_property
    def placed(self) -> tuple[GroupPod, ...]:
        """Pods that were assigned to a server and should stay there."""
        return tuple(pod for pod in self.pods if pod.placed and not pod.ending and not pod.finished)

    @cached_property
    def servers(self) -> frozenset[tuple[str, str]]:
        """Label and value of each server to which pods of the group are assigned."""
        return frozenset(pod.placed for pod in self.pods if pod.placed and not pod.gone)

    @property
    def scheduled(self) -> int:
        """How many of its pods have a node; those that have succeeded count."""
        return sum(bool(pod.node) and pod.phase != "Failed" and not pod.ending for pod in self.pods)

    @property
    def remains(self) -> tuple[GroupPod, ...]:
        """Pods without the gate that hold nodes or a server."""
        return tuple(pod for pod in self.pods if not pod.gated and not pod.gone and (pod.node or pod.placed))

    @property
    def since(self) -> float | None:
        """Since when the group lacks nodes, from its pods' annotations."""
        return min((pod.since for pod in self.placed if pod.since is not None), default=None)

    @property
    def stuck(self) -> float | None:
        """Since when the scheduler finds no node for one of its pods, from its pods' annotations."""
        return min((pod.stuck for pod in self.placed if pod.stuck is not None), default=None)

    @property
    def unschedulable(self) -> GroupPod | None:
        """The first of its pods for which the scheduler finds no node."""
        return next((pod for pod in self.pods if pod.unschedulable and not pod.ending), None)

    @property
    def arrival(self) -> tuple[float, str, str]:
        """Position in the queue: creation time of the first waiting pod, then names."""
        return min(pod.created for pod in self.gated), self.namespace, self.key


def groups_of(pods: Iterable[GroupPod]) -> list[PodGroup]:
    """All groups; see ``_belongs`` for which pods are in them, and ``MAX_GATED``."""
    members: dict[tuple[str, str], list[GroupPod]] = {}
    for pod in pods:
        if _belongs(pod):
            members.setdefault((pod.namespace, pod.group), []).append(pod)
    ordered = {
        key: sorted(found, key=lambda pod: (not pod.leader, pod.name, pod.uid)) for key, found in members.items()
    }
    return [PodGroup(namespace, key, _within_bounds(found)) for (namespace, key), found in sorted(ordered.items())]


def _within_bounds(pods: Iterable[GroupPod]) -> tuple[GroupPod, ...]:
    left = MAX_GATED
    found = []
    for pod in pods:
        left -= pod.gated
        if left >= 0 or not pod.gated:
            found.append(pod)
    return tuple(found)


def _belongs(pod: GroupPod) -> bool:
    """Whether the pod is one of the group that it names: it has or had the gate, or is of a controller that is no node.

    Any kubelet can make a mirror pod with the namespace and the key of any group. The API server sees to it that its
    controller is the kubelet's own Node (kubernetes ``plugin/pkg/admission/noderestriction``, ``admitPodCreate``). One
    that was assigned is no mirror pod: whatever controller it names by now, it has its server.
    """
    if not pod.group or (pod.owner == "Node" and not pod.placed):
        return False
    return bool(pod.owner or pod.gated or pod.placed or pod.finished)


_SIZES = {str(size): size for size in range(1, NODES_OF[SERVER_4] + 1)}


def shape_of(group: PodGroup) -> Shape | str:
    """What the group requires, or a message why that cannot be determined."""
    first = (group.gated or group.pods)[0]
    size = _SIZES.get(first.size)
    if size is None:
        return f"a group has 1 to 4 pods, but this one says it has {first.size[:20]!r}" + _where(first)
    if first.topology not in ("", *NODES_OF):
        return (
            f"its annotation {LWS_TOPOLOGY} is {first.topology[:80]!r}, which is not an UltraServer label; "
            f"use {SERVER_4} or {SERVER_2}"
        )
    label = first.topology or (SERVER_2 if size <= NODES_OF[SERVER_2] else SERVER_4)
    if size > NODES_OF[label]:
        return f"its {size} pods do not fit into the {NODES_OF[label]} nodes that share {label}; use {SERVER_4}"
    return Shape(size, label, led=bool(first.topology))


def _where(pod: GroupPod) -> str:
    return "" if pod.of_lws else f"; give it the label {GROUP_LABEL} and the annotation {NODES_ANNOTATION}: '4' or '2'"
