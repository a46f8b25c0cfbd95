"""The extender's view of the cluster: nodes, pods with Neuron limits, and the choices made a moment ago.

What is taken on a node follows from the pods bound to it, as the watches deliver them, and from ``Choices``: what this
process has chosen for a pod, from before the choice is written until the pod has ended. Nothing is therefore given
twice between a choice and the news of it, and later edits of annotations free nothing.

``Followers`` feeds ``Cluster`` from the API server's watches, and ``UsageMaps`` writes the vendor's usage maps to the
nodes for their readers; no decision reads them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from dra_driver.kube.api.client import REQUEST_SECONDS, Transport
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import Collection, WatchEvent
from dra_driver.kube.api.watch import Reflector
from dra_driver.kube.objects.meta import version_number
from dra_driver.legacy.annotations import CORE_USAGE, DEVICE_USAGE, ContainerShare, RecordedAllocation, usage_map
from dra_driver.legacy.extender.preemption import Tenancy, Tenant
from dra_driver.legacy.extender.wire import (
    NODES,
    PODS,
    RUNNING,
    CapacityNode,
    ExtenderNode,
    ExtenderPod,
    LimitsPod,
    node_of,
    pod_of,
)
from dra_driver.legacy.placement import DoesNotFit, place, union
from dra_driver.legacy.resource_requests import PodRequest
from dra_driver.legacy.rules import NeuronResource, NodeHardware
from dra_driver.legacy.usage import Holding, NodeUsage, held_if_there, usage
from dra_driver.util.worker import Backoff, Worker


@dataclass(frozen=True, slots=True)
class Chosen:
    """What was chosen for a pod.

    Attributes:
        key: ``namespace/name`` of the pod.
        node: where the pod goes.
        allocation: the chosen devices.
        written: when the API server confirmed it (monotonic clock); None before.
    """

    key: str
    node: str
    allocation: RecordedAllocation
    written: float | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice and its effect on the node.

    Attributes:
        hardware: of the node.
        shares: by container.
        before: mask of the cores taken before.
        after: mask of the cores taken with it.
    """

    hardware: NodeHardware
    shares: tuple[ContainerShare, ...]
    before: int
    after: int


class Choices:
    """What this process has chosen, by UID of the pod and by node. Not thread-safe."""

    def __init__(self) -> None:
        self._chosen: dict[str, Chosen] = {}
        self._on: dict[str, set[str]] = {}

    def get(self, uid: str) -> Chosen | None:
        """What was chosen for a pod."""
        return self._chosen.get(uid)

    def on(self, node: str) -> Iterable[str]:
        """UIDs of the pods for which devices were chosen on a node."""
        return self._on.get(node, ())

    def all(self) -> list[tuple[str, Chosen]]:
        """All choices, with the UIDs of their pods."""
        return list(self._chosen.items())

    def put(self, uid: str, chosen: Chosen) -> None:
        """Store a choice; a former one for the pod must have been dropped."""
        self._chosen[uid] = chosen
        self._on.setdefault(chosen.node, set()).add(uid)

    def confirm(self, uid: str, now: float) -> None:
        """Mark a choice as written by the API server."""
        chosen = self._chosen.get(uid)
        if chosen is not None:
            self._chosen[uid] = replace(chosen, written=now)

    def drop(self, uid: str) -> Chosen | None:
        """Remove and return a choice."""
        chosen = self._chosen.pop(uid, None)
        if chosen is not None:
            there = self._on[chosen.node]
            there.discard(uid)
            if not there:
                del self._on[chosen.node]
        return chosen


_UNKNOWN: Final = DoesNotFit("The node is not known to the Neuron extender yet", lasting=False)


class Cluster:
    """Nothing here blocks or fails; all methods are thread-safe. Holding ``lock`` freezes the state."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.touched: Callable[[str], None] = lambda _: None
        """Called under the lock with a node's name when something about it has changed."""
        self._nodes: dict[str, ExtenderNode] = {}
        self._pods: dict[str, ExtenderPod] = {}
        self._bound: dict[str, dict[str, ExtenderPod]] = {}
        """Pods by node and UID."""
        self._choices = Choices()
        self._usage: dict[str, NodeUsage] = {}
        self._stale_maps: dict[str, float] = {}
        """By node, since when its usage maps may be out of date."""
        self.touched_at = 0.0
        """When any node last changed, apart from its usage maps (monotonic clock)."""
        self._listed: set[str] = set()
        self._told = 0
        """Newest version of a pod that the watch has delivered."""

    def begin(self) -> None:
        """Expect new lists of nodes and pods."""
        with self.lock:
            self._listed.clear()

    # Called by the watches

    def nodes_listed(self, items: Iterable[CapacityNode]) -> None:
        """Replace all nodes."""
        found = {item.metadata.name: node_of(item) for item in items}
        with self.lock:
            for name in self._nodes.keys() - found.keys():
                self._set_node(name, None)
            for name, node in found.items():
                self._set_node(name, node)
            self._listed.add("nodes")

    def node_changed(self, item: CapacityNode, *, gone: bool = False) -> None:
        """A node was added, has changed, or is gone."""
        node = None if gone else node_of(item)
        with self.lock:
            self._set_node(item.metadata.name, node)

    def pods_listed(self, items: Iterable[ExtenderPod], started: float) -> None:
        """Replace all pods that count; the list was requested at ``started`` (monotonic clock)."""
        found = {pod.key: pod for pod in items}
        uids = {pod.uid for pod in found.values()}
        newest = max(map(_version, found.values()), default=0)
        with self.lock:
            self._told = max(self._told, newest)
            for key in self._pods.keys() - found.keys():
                self._set_pod(key, None)
            for key, pod in found.items():
                self._set_pod(key, pod)
            for uid, chosen in self._choices.all():
                # A pod newer than the list may be missing from it; see `unconfirmed`.
                if uid not in uids and chosen.written is not None and chosen.written < started:
                    self._forget(uid)
            self._listed.add("pods")

    def pod_changed(self, item: LimitsPod, *, gone: bool = False) -> None:
        """A pod was added, has changed, has ended, or is gone."""
        pod = pod_of(item)
        with self.lock:
            self._told = max(self._told, _version(pod))
            if pod.counts and not gone:
                self._set_pod(pod.key, pod)
            else:
                known = self._pods.get(pod.key)
                # A newer pod of the same name may have been read already.
                if known is not None and known.uid == pod.uid:
                    self._set_pod(pod.key, None)
                self._forget(pod.uid)

    # Called by the handlers

    @property
    def listed(self) -> bool:
        """Whether all nodes and pods are known."""
        return len(self._listed) == 2

    def pod(self, key: str) -> ExtenderPod | None:
        """A pod that requests Neuron resources, if known."""
        return self._pods.get(key)

    def knows(self, name: str) -> bool:
        """Whether there is a node of that name."""
        return name in self._nodes

    def look(self, name: str) -> tuple[NodeHardware, int] | DoesNotFit:
        """A node's hardware and taken cores, or why it cannot be used at all."""
        with self.lock:
            node, used = self._nodes.get(name), self._used(name)
        if node is None:
            return _UNKNOWN
        if node.hardware is None or used is None:
            return DoesNotFit(_sentence(node.trouble), lasting=False)
        return node.hardware, used.taken

    def has_counted(self, name: str) -> bool:
        """Whether it is known what is taken on a node, or need not be: ``look`` then takes no time."""
        return name in self._usage or name not in self._nodes

    def explained(self, name: str, refusal: DoesNotFit) -> DoesNotFit:
        """Extend a refusal by the reason why the node reserves devices, if it does."""
        with self.lock:
            used = self._used(name)
        if refusal.lasting or used is None or not used.trouble:
            return refusal
        return replace(refusal, text=f"{refusal.text}. {_sentence(used.trouble)}")

    def tenancy(self, name: str) -> Tenancy | None:
        """The pods of a node; None if its hardware is unknown."""
        with self.lock:
            node = self._nodes.get(name)
            if node is None or node.hardware is None:
                return None
            holdings = self._holdings(node, node.hardware)
            pods = {uid: self._pod(uid, item.pod) for uid, item in holdings.items()}
            tenants = [Tenant(uid, holdings[uid], pod.priority if pod else None) for uid, pod in pods.items()]
            return Tenancy(node.hardware, node.unusable, tenants)

    # Choosing

    def choose(self, uid: str, key: str, node: str, requests: PodRequest) -> Choice | DoesNotFit:
        """Choose sets for a pod on a node and reserve them; a former choice for it is dropped."""
        with self.lock:
            self._forget(uid)
            seen = self.look(node)
            if isinstance(seen, DoesNotFit):
                return seen
            hardware, taken = seen
            found = place(hardware, taken, requests)
            if isinstance(found, DoesNotFit):
                return self.explained(node, found)
            shares = tuple(
                ContainerShare(request.container, request.resource, hardware.ids(request.resource, mask))
                for request, mask in zip(requests, found, strict=True)
            )
            self._choose(uid, Chosen(key, node, RecordedAllocation(shares, hardware.cores_per_device).whole))
            return Choice(hardware, shares, taken, taken | union(found))

    def has_choice(self, uid: str) -> bool:
        """Whether devices were chosen for a pod, and not given up."""
        with self.lock:
            return self._choices.get(uid) is not None

    def written(self, uid: str) -> None:
        """Record that the API server confirmed the choice for a pod."""
        with self.lock:
            self._choices.confirm(uid, time.monotonic())

    def give_up(self, uid: str) -> None:
        """Drop the choice for a pod, which was not and will not be written."""
        with self.lock:
            self._forget(uid)

    def found_bound(self, item: LimitsPod) -> None:
        """Add a bound pod that was read from the API server, before the watch delivers it."""
        pod = pod_of(item)
        if not pod.counts or not pod.node:
            return
        with self.lock:
            known = self._pods.get(pod.key)
            # Meanwhile the watch may have told that it is gone, and will not tell again.
            if (known is None or known.uid != pod.uid) and _version(pod) < self._told:
                return
            self._set_pod(pod.key, pod)
            # A choice is certain; doubtful annotations are none.
            held_ = pod.holding.allocations if pod.holding and not pod.holding.trouble else ()
            if held_ and self._choices.get(pod.uid) is None:
                self._choose(pod.uid, Chosen(pod.key, pod.node, held_[0], time.monotonic()))

    def unconfirmed(self, before: float) -> list[tuple[str, Chosen]]:
        """Choices written before that time whose pods are not known to be bound.

        Such a pod may have been deleted while the watch was down; a read decides.
        """
        with self.lock:
            return [
                (uid, chosen)
                for uid, chosen in self._choices.all()
                if chosen.written is not None
                and chosen.written <= before
                and uid not in self._bound.get(chosen.node, {})
            ]

    # Reported to others

    def stale_maps(self, before: float) -> Iterator[tuple[ExtenderNode, tuple[str, str]]]:
        """Nodes whose usage maps are out of date and that changed before that time, with the correct maps."""
        with self.lock:
            due = [name for name, since in self._stale_maps.items() if since <= before]
        for name in due:
            with self.lock:
                self._stale_maps.pop(name, None)
                node, used = self._nodes.get(name), self._used(name)
            if node is None or node.hardware is None or used is None:
                continue
            hardware = node.hardware
            maps = tuple(usage_map(hardware, used.taken, kind) for kind in (NeuronResource.DEVICE, NeuronResource.CORE))
            if maps != node.usage_maps:
                yield node, (maps[0], maps[1])

    def postpone_maps(self, name: str, pause: float = 0.0) -> None:
        """Have the usage maps of a node, which could not be written, written again after so many seconds."""
        with self.lock:
            self._stale_maps[name] = time.monotonic() + pause

    def counts(self) -> dict[str, int]:
        """Values for the metrics."""
        with self.lock:
            ready = [(name, node.hardware) for name, node in self._nodes.items() if node.hardware is not None]
        used: list[tuple[NodeHardware, NodeUsage | None]] = []
        for name, hardware in ready:
            with self.lock:  # one node at a time: whoever binds or filters need not wait for all
                used.append((hardware, self._used(name)))
        return {
            "nodes": len(ready),
            "uncertain_nodes": sum(1 for _, item in used if item is not None and item.trouble),
            "pods": len(self._pods),
            "bound_pods": sum(map(len, self._bound.values())),
            "pending_choices": sum(1 for _, chosen in self._choices.all() if chosen.written is None),
            "cores": sum(hardware.cores for hardware, _ in used),
            "taken_cores": sum(item.taken.bit_count() for _, item in used if item is not None),
        }

    # Under the lock

    def _set_node(self, name: str, node: ExtenderNode | None) -> None:
        old = self._nodes.get(name)
        if old == node:
            return
        if node is None:
            del self._nodes[name]
        else:
            self._nodes[name] = node
        if old is not None and node is not None and replace(old, usage_maps=node.usage_maps) == node:
            # Mostly written by this process, and nothing else depends on them.
            self._stale_maps.setdefault(name, time.monotonic())
        else:
            self._touch(name)

    def _set_pod(self, key: str, pod: ExtenderPod | None) -> None:
        old = self._pods.get(key)
        # Also of another pod of its name: versions increase from the one to the next.
        if old is not None and pod is not None and _version(pod) < _version(old):
            return
        self._pods.pop(key, None)
        if old is not None and (pod is None or old.uid != pod.uid):
            self._unbind(old)
        if pod is None:
            return
        if old is not None and old.uid != pod.uid:
            self._forget(old.uid)
        self._pods[key] = pod
        chosen = self._choices.get(pod.uid)
        if chosen is not None and pod.node and pod.node != chosen.node:
            self._forget(pod.uid)
        known = self._bound.get(pod.node, {}).get(pod.uid) if pod.node else None
        if pod.node and (known is None or known.holding != pod.holding):
            self._bound.setdefault(pod.node, {})[pod.uid] = pod
            self._touch(pod.node)

    def _unbind(self, pod: ExtenderPod) -> None:
        there = self._bound.get(pod.node, {})
        if there.pop(pod.uid, None) is not None:
            self._touch(pod.node)
        if not there:
            self._bound.pop(pod.node, None)

    def _choose(self, uid: str, chosen: Chosen) -> None:
        self._choices.put(uid, chosen)
        self._touch(chosen.node)

    def _forget(self, uid: str) -> None:
        chosen = self._choices.drop(uid)
        if chosen is not None:
            self._touch(chosen.node)

    def _touch(self, name: str) -> None:
        """Invalidate everything derived from a node."""
        self._usage.pop(name, None)
        self.touched(name)
        self.touched_at = time.monotonic()
        self._stale_maps.setdefault(name, self.touched_at)

    def _used(self, name: str) -> NodeUsage | None:
        """What is taken on a node; None if the node is unknown."""
        found = self._usage.get(name)
        node = self._nodes.get(name)
        if found is None and node is not None and node.hardware is not None:
            found = self._usage[name] = self._compute(node, node.hardware)
        return found

    def _compute(self, node: ExtenderNode, hardware: NodeHardware) -> NodeUsage:
        return usage(hardware, self._holdings(node, hardware).values(), node.unusable)

    def _holdings(self, node: ExtenderNode, hardware: NodeHardware) -> dict[str, Holding]:
        """What the pods hold that are bound to a node or for which devices were chosen there, by UID."""
        pods = self._bound.get(node.name, {})
        found = {uid: pod.holding for uid, pod in pods.items() if pod.holding is not None}
        for uid in self._choices.on(node.name):
            chosen, said = self._choices.get(uid), found.get(uid)
            if chosen is not None:
                # Whatever others write to its annotations, it holds what was chosen for it.
                more = [part for part in (said.allocations if said else ()) if held_if_there(hardware, part)]
                pod = self._pod(uid, chosen.key)
                found[uid] = Holding(chosen.key, (chosen.allocation, *more), pod.requests if pod else None)
        return found

    def _pod(self, uid: str, key: str) -> ExtenderPod | None:
        pod = self._pods.get(key)
        return pod if pod is not None and pod.uid == uid else None


def _version(pod: ExtenderPod) -> int:
    return version_number(pod.version)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


class Followers:
    """Feeds the cluster from the API server's watches: one thread for pods, one for nodes.

    Args:
        transport: the API server.
        cluster: to feed.
    """

    def __init__(self, transport: Transport, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pods = Collection(transport, PODS, RUNNING, timeout=60.0)
        self._nodes = Collection(transport, NODES, timeout=60.0)
        self._started = 0.0
        self._over = False
        self._reflectors: tuple[Reflector[Any], ...] = (
            Reflector(
                "pods",
                self._list_pods,
                self._pods.watch,
                self._pods_listed,
                self._pod_changed,
                backoff=Backoff(cap=10.0),
            ),
            Reflector(
                "nodes",
                self._nodes.list_all,
                self._nodes.watch,
                self._nodes_listed,
                self._node_changed,
                backoff=Backoff(cap=10.0),
            ),
        )

    def start(self) -> None:
        """Start watching."""
        for reflector in self._reflectors:
            reflector.start()

    def stop(self) -> None:
        """Stop without waiting: what a thread delivers from now on is ignored."""
        with self._cluster.lock:
            self._over = True
        for reflector in self._reflectors:
            reflector.stop(0)

    @property
    def workers(self) -> list[Worker]:
        """Its loops, for health reports."""
        return [reflector.worker for reflector in self._reflectors]

    def problems(self) -> list[str]:
        """Why something is currently not being watched."""
        return [reflector.last_error for reflector in self._reflectors if reflector.last_error]

    def _list_pods(self) -> tuple[list[ExtenderPod], str]:
        # Called in the same thread as `_pods_listed`, before it.
        self._started = time.monotonic()
        return self._pods.select(self._counting)

    def _counting(self, item: LimitsPod) -> ExtenderPod | None:
        self._reflectors[0].worker.beat()  # a list of many pages may take longer than a round
        pod = pod_of(item)
        return pod if pod.counts else None

    def _pods_listed(self, items: list[ExtenderPod]) -> None:
        self._deliver(lambda: self._cluster.pods_listed(items, self._started))

    def _pod_changed(self, event: WatchEvent[LimitsPod]) -> None:
        pod, gone = event.object, event.type == "DELETED"
        if pod is not None:
            self._deliver(lambda: self._cluster.pod_changed(pod, gone=gone))

    def _nodes_listed(self, items: list[CapacityNode]) -> None:
        self._deliver(lambda: self._cluster.nodes_listed(items))

    def _node_changed(self, event: WatchEvent[CapacityNode]) -> None:
        node, gone = event.object, event.type == "DELETED"
        if node is not None:
            self._deliver(lambda: self._cluster.node_changed(node, gone=gone))

    def _deliver(self, news: Callable[[], None]) -> None:
        with self._cluster.lock:  # who waits for it while the term ends has nothing to say in the next one
            if not self._over:
                news()


SETTLE_SECONDS: Final = 1.0
"""Nodes are written when none has changed for so long: a write for each pod of a burst, with its watch events, would
take CPU time from scheduling."""
LATEST_SECONDS: Final = 10.0
"""A node is written after so long at the latest."""
PAUSE_SECONDS: Final = 10.0
"""After a failed write, no node is written for so long; after a refusal, the node that it is about."""
OWN_REFUSALS: Final = frozenset({400, 413, 422, 500})
"""Status codes that may be about one Node, which may write so much into itself that nobody can write more (500: where
it gets too large for etcd)."""

log = logging.getLogger(__name__)


class UsageMaps:
    """Writes the usage maps that are out of date, one node after another.

    Args:
        transport: the API server.
        cluster: the view of the cluster.
        may_act: called before each write.
    """

    def __init__(self, transport: Transport, cluster: Cluster, may_act: Callable[[], bool]) -> None:
        self._nodes = Collection(transport, NODES, timeout=REQUEST_SECONDS)
        self._cluster = cluster
        self._may_act = may_act
        self._not_before = 0.0
        self.last_error = ""

    def write_due(self) -> None:
        """Bring the annotations of all nodes up to date; what cannot be written now is left for the next call."""
        now = time.monotonic()
        if now < self._not_before:
            return
        quiet = now - self._cluster.touched_at >= SETTLE_SECONDS
        for node, maps in self._cluster.stale_maps(now - (SETTLE_SECONDS if quiet else LATEST_SECONDS)):
            if not self._may_act():
                self._cluster.postpone_maps(node.name)
                return
            annotations = dict(zip((DEVICE_USAGE, CORE_USAGE), maps, strict=True))
            metadata = {"uid": node.uid, "annotations": annotations}
            try:
                self._nodes.patch("", node.name, {"metadata": metadata})
                self.last_error = ""
            except ApiError as error:
                is_refused = error.status in OWN_REFUSALS and not error.undecided
                self._cluster.postpone_maps(node.name, PAUSE_SECONDS if is_refused else 0.0)
                if error.object_missing or error.status == 409:
                    continue
                self.last_error = str(error)
                log.warning("the usage maps of node %s could not be written: %s", node.name, error)
                if is_refused:
                    continue
                self._not_before = now + max(PAUSE_SECONDS, error.retry_after or 0.0)
                return
