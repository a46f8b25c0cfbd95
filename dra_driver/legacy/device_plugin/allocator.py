"""Answers kubelet for both resources: finds the container, decides, and remembers what was handed out.

Handles one request at a time, as kubelet sends them. The pod is read again before a decision rests on it: the watch may
be a moment behind, and another pod of the same name may have replaced it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.kubelet.client import CallError
from dra_driver.kube.kubelet.devicecheckpoint import AllocatedContainer
from dra_driver.kube.kubelet.deviceplugin import ContainerDevices
from dra_driver.kube.kubelet.podresources import PodDevices
from dra_driver.kube.objects.meta import version_number
from dra_driver.legacy.annotations import ContainerShare
from dra_driver.legacy.device_plugin.choosing import (
    AllocateError,
    ChosenDevices,
    WaitingContainer,
    awaits_unknown_pod,
    choose,
    find,
    prefer,
)
from dra_driver.legacy.device_plugin.devices import AnswerSettings, PluginOffer, answer
from dra_driver.legacy.device_plugin.recording import Record, record_of
from dra_driver.legacy.device_plugin.snapshot import Listed, NodeSnapshot, PluginPod, learn, numbers, waits
from dra_driver.legacy.resource_requests import ENDED
from dra_driver.legacy.rules import NeuronResource
from dra_driver.util.errors import DriverError
from dra_driver.util.metrics import Operations
from dra_driver.util.text import ranges

OPERATIONS: Final = ("prefer", "allocate")
"""kubelet's calls, as the metrics name them."""

REMEMBER_SECONDS: Final = 5.0
"""How long a pod is remembered that was read and has not appeared in the watch."""

WATCH_LAG_SECONDS: Final = 0.5
"""How far behind the watch may be before the pods are listed instead."""

REJECTION_SECONDS: Final = 1.0
"""How long kubelet may take to tell the API server that it rejected a pod."""

log = logging.getLogger(__name__)


class ReadPods:
    """Pods that were read, kept until the watch, which may be behind, delivers them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pods: dict[str, tuple[float, PluginPod]] = {}
        self._told: set[str] = set()

    def add(self, pod: PluginPod) -> None:
        """Add a pod as currently stored."""
        self._pods[pod.metadata.uid] = (self._clock(), pod)

    def joined(self, told: Iterable[PluginPod]) -> dict[str, PluginPod]:
        """The newest version of each pod, from the watch or a read, by UID."""
        now = self._clock()
        found = {pod.metadata.uid: pod for pod in told}
        gone = self._told - set(found)
        self._told = set(found)
        for uid, (at, pod) in list(self._pods.items()):
            known = found.get(uid)
            if uid in gone or now - at > REMEMBER_SECONDS or (known is not None and _version(known) >= _version(pod)):
                del self._pods[uid]
            else:
                found[uid] = pod
        return found


def _version(pod: PluginPod) -> int:
    return version_number(pod.metadata.resource_version)


class Sources(Protocol):
    """Where the allocator gets its facts from."""

    def pods(self) -> Sequence[PluginPod]:
        """Pods of the node, from the watch."""
        ...

    def list_pods(self) -> Sequence[PluginPod]:
        """The same as currently stored. Raises ApiError."""
        ...

    def get_pod(self, namespace: str, name: str) -> PluginPod:
        """One pod as currently stored. Raises ApiError."""
        ...

    def listed(self) -> Sequence[PodDevices]:
        """The pods and devices that kubelet lists. Raises CallError."""
        ...

    def allocations(self) -> Sequence[AllocatedContainer]:
        """To containers, as kubelet's checkpoint has them. Raises DriverError if that is too long."""
        ...

    def registrations(self) -> int:
        """How often kubelet has accepted the plugin: when it has restarted, it admits pods once more."""
        ...

    def offer(self) -> PluginOffer | None:
        """The node's devices, None while it has none."""
        ...

    def record(self, record: Record) -> None:
        """Write annotations of a pod. Raises ApiError."""
        ...


class Allocator:
    """Allocates the devices of one node.

    Args:
        sources: facts about the node.
        settings: how containers are given their devices.
        changed: called after devices were handed out.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        sources: Sources,
        settings: AnswerSettings,
        changed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = sources
        self._settings = settings
        self._changed = changed
        self._clock = clock
        self._lock = threading.RLock()
        self._handed: dict[str, dict[str, ContainerShare]] = {}
        self._placed: set[str] = set()
        """UIDs of pods that got the devices that an extender had chosen."""
        self._read = ReadPods(clock)
        self._refused: set[str] = set()
        """UIDs of pods on which this kubelet has given up."""
        self._registrations = 0
        self.kubelet_trouble = ""
        """Why kubelet does not list its pods and devices, or ""."""
        self.checkpoint_trouble = ""
        """Why kubelet's checkpoint of devices cannot be read, or ""."""

    def prefer(
        self, resource: NeuronResource, available: frozenset[str], must_include: frozenset[str], size: int
    ) -> Sequence[str]:
        """The ids that the container will get, for kubelet to count. Raises DriverError if it will get none."""
        with self._lock:
            world, match = self._find(resource, size)
            ids = prefer(world, match, resource, numbers(available), numbers(must_include), size)
        return [str(number) for number in ids]

    def allocate(self, resource: NeuronResource, ids: frozenset[str]) -> ContainerDevices:
        """The devices for the container that kubelet is starting. A DriverError fails its pod."""
        with self._lock:
            world, match = self._find(resource, len(ids))
            if match is None:
                raise _nobody(world, resource, len(ids))
            try:
                choice = self._chosen(world, match, numbers(ids))
            except DriverError:
                self._refused.add(match.pod.uid)
                raise
            share = choice.share
            # kubelet admits one pod at a time: others that it lists already and that have nothing were rejected.
            self._refused.update(
                pod.uid
                for pod in world.pods
                if pod.uid != match.pod.uid and pod.key in (world.listed or {}) and waits(world, pod)
            )
            self._handed.setdefault(match.pod.uid, {})[share.container] = share
            if choice.annotated and not match.pod.by_plugin:
                self._placed.add(match.pod.uid)
        log.info(
            "container %s of pod %s gets %s %s (%s%s)",
            share.container,
            match.pod,
            resource.value,
            ranges(share.ids),
            "as its annotations say" if choice.annotated else "without an extender's choice",
            "" if match.listed else "; found by age, because kubelet does not list the pod",
        )
        self._changed()
        return answer(world.offer, share, self._settings)

    def world(self) -> NodeSnapshot | None:
        """Everything known at this moment; None while the node has no devices."""
        with self._lock:
            return self._world(self._sources.pods(), self._listed())[0]

    def _chosen(self, world: NodeSnapshot, match: WaitingContainer, counted: frozenset[int]) -> ChosenDevices:
        choice = choose(world, match, counted)
        if not choice.annotated and frozenset(choice.share.ids) != counted:
            # kubelet will count other ids than those handed out, so after a restart they could not be learned from it.
            record = record_of(world, match.pod, choice.share, time.time_ns())
            if record is not None:
                self._sources.record(record)
        return choice

    def _find(self, resource: NeuronResource, count: int) -> tuple[NodeSnapshot, WaitingContainer | None]:
        """The snapshot and the container that kubelet means; its pod is as current as this call.

        Without the API server, the watch has to do. Raises AllocateError if it remains unknown which of several
        containers is meant.
        """
        listed = self._listed()
        world, known = self._world(self._sources.pods(), listed)
        if world is None:
            raise AllocateError(
                "this node has no Neuron device", remedy="look at the log of the device plugin on this node"
            )
        if self.checkpoint_trouble:
            raise AllocateError(self.checkpoint_trouble)
        match = None if awaits_unknown_pod(world, known) else find(world, resource, count, self._refused)
        if match is not None and not match.rivals and self._is_as_stored(match):
            # Include what the watch delivered meanwhile: another pod's devices may have been chosen a moment ago.
            world = self._world(self._sources.pods(), listed)[0] or world
            return world, match
        end = self._clock() + REJECTION_SECONDS
        while True:
            world, match = self._find_stored(world, listed, resource, count)
            if match is None or not match.rivals:
                return world, match
            if self._clock() >= end:
                # One of them is refused by this, and kubelet has given up on the others before.
                self._refused.update(pod.uid for pod in (match.pod, *match.rivals))
                raise _several(match, resource, count)
            time.sleep(REJECTION_SECONDS / 10)

    def _find_stored(
        self, world: NodeSnapshot, listed: Listed | None, resource: NeuronResource, count: int
    ) -> tuple[NodeSnapshot, WaitingContainer | None]:
        """The same, based on all pods as currently stored; without the API server, the watch has to do."""
        try:
            pods = self._sources.list_pods()
        except ApiError as error:
            log.warning("the pods of this node cannot be read, so the pods from the watch are used: %s", error)
            return world, find(world, resource, count, self._refused)
        for pod in pods:
            self._read.add(pod)
        world = self._world(pods, listed)[0] or world
        match = find(world, resource, count, self._refused) or find(world, resource, count, self._refused, again=True)
        return world, match

    def _is_as_stored(self, match: WaitingContainer) -> bool:
        """Whether the pod is unchanged, and the watch has delivered everything up to its last change."""
        try:
            stored = self._sources.get_pod(match.pod.namespace, match.pod.name)
        except ApiError as error:
            # Without an answer, the watch has to do; if the pod is gone, the search starts again.
            return not error.object_missing
        self._read.add(stored)
        return stored.bound == match.pod and self._is_told(stored)

    def _is_told(self, stored: PluginPod) -> bool:
        """Whether the watch has delivered this version of a pod; waits a moment for it."""
        end = self._clock() + WATCH_LAG_SECONDS
        while not any(
            pod.metadata.uid == stored.metadata.uid and _version(pod) >= _version(stored)
            for pod in self._sources.pods()
        ):
            if self._clock() >= end:
                return False
            time.sleep(0.005)
        return True

    def _listed(self) -> Listed | None:
        try:
            found = {(pod.namespace, pod.name): pod for pod in self._sources.listed()}
        except CallError as error:
            if self.kubelet_trouble == "":
                log.warning("kubelet does not report which pods have which devices: %s", error)
            self.kubelet_trouble = str(error)
            return None
        self.kubelet_trouble = ""
        return found

    def _allocations(self) -> Sequence[AllocatedContainer]:
        try:
            allocations = self._sources.allocations()
        except DriverError as error:
            self.checkpoint_trouble = str(error)
            return ()
        self.checkpoint_trouble = ""
        return allocations

    def _world(
        self, pods: Iterable[PluginPod], listed: Listed | None
    ) -> tuple[NodeSnapshot | None, set[tuple[str, str]]]:
        """The snapshot, and the namespaces and names of all known pods."""
        told = self._read.joined(pods)
        offer = self._sources.offer()
        for uid in [uid for uid in self._handed if uid not in told]:
            del self._handed[uid]
        if offer is not None:
            learn(self._handed, offer, [entry for entry in self._allocations() if entry.pod in told])
        self._placed &= self._handed.keys()
        registrations = self._sources.registrations()
        self._refused = self._refused & told.keys() if registrations == self._registrations else set()
        self._registrations = registrations
        known = {(pod.metadata.namespace, pod.metadata.name) for pod in told.values()}
        if offer is None:
            return None, known
        bound = [pod.bound for pod in told.values() if pod.bound is not None]
        handed = {uid: dict(shares) for uid, shares in self._handed.items()}
        unknown_pods = tuple(found for key, found in (listed or {}).items() if key not in known)
        # kubelet may list a pod for a while after it has ended; its devices are free.
        over = {(pod.metadata.namespace, pod.metadata.name) for pod in told.values() if pod.phase in ENDED}
        ended = over - {pod.key for pod in bound}
        living = None if listed is None else {key: found for key, found in listed.items() if key not in ended}
        return NodeSnapshot(offer, bound, living, handed, unknown_pods, frozenset(self._placed)), known


def _nobody(world: NodeSnapshot, resource: NeuronResource, count: int) -> AllocateError:
    """Why no container was found."""
    unreadable = next((pod for pod in world.pods if pod.requests is None and waits(world, pod)), None)
    if unreadable is not None:
        return AllocateError(f"pod {unreadable}: {unreadable.trouble}")
    return AllocateError(
        f"no pod of this node is known that waits for {count} of {resource.value}",
        consequence="no devices are given, because it is not known which were chosen for it",
        remedy="if the API server could not be asked (see the device plugin's log), recreate the pod",
    )


def _several(match: WaitingContainer, resource: NeuronResource, count: int) -> AllocateError:
    """Why it is unknown which of the containers is meant."""
    pods = (match.pod, *match.rivals)
    # Whose event this is, is not known.
    alike = len({pod.namespace for pod in pods}) == 1
    names = f"pods {' and '.join(sorted(map(str, pods)))}" if alike else f"{len(pods)} pods of several namespaces"
    return AllocateError(
        f"{names} wait for {count} of {resource.value}, and kubelet lists them all",
        consequence="no devices are given, because it is not known which of them kubelet means",
        remedy="recreate the pod once the API server knows which of them kubelet has rejected",
    )


class ResourceAnswers:
    """The allocator as the plugin of one resource (``kube.kubelet.deviceplugin.ResourcePlugin``), timing its calls.

    Args:
        allocator: makes the decisions.
        resource: the one it serves.
        operations: receives the durations of the calls.
        renew: called before each allocation; a DriverError fails the pod.
    """

    def __init__(
        self, allocator: Allocator, resource: NeuronResource, operations: Operations, renew: Callable[[], None]
    ) -> None:
        self._allocator = allocator
        self._resource = resource
        self._operations = operations
        self._renew = renew

    def prefer(self, available: frozenset[str], must_include: frozenset[str], size: int) -> Sequence[str]:
        """See ``Allocator``."""
        with self._operations.measured("prefer"):
            return self._allocator.prefer(self._resource, available, must_include, size)

    def allocate(self, ids: frozenset[str]) -> ContainerDevices:
        """See ``Allocator``."""
        with self._operations.measured("allocate"):
            self._renew()
            return self._allocator.allocate(self._resource, ids)
