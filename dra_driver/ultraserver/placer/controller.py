"""Watches the cluster, decides, and carries out the decisions. Keeps no state that a successor needs in memory.

One thread decides and writes. Each write names the state of the object that it rests on (UID and resource version), and
the server's answer is taken into account before the next decision. A write without an answer may still be carried out
later; it is repeated until the server answers, before anything else is decided.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from dra_driver.kube.api import Collection
from dra_driver.kube.client import Transport
from dra_driver.kube.election import REQUEST_SECONDS
from dra_driver.kube.errors import ApiError
from dra_driver.kube.events import LIFETIME_SECONDS, new_event
from dra_driver.kube.types import (
    CONFIG_MAPS,
    EVENTS,
    PARTIAL_NODES,
    PARTIAL_RESOURCE_SLICES,
    PODS,
    RESOURCE_CLAIMS,
    ConfigMap,
    ObjectMeta,
    ObjectReference,
    timestamp,
)
from dra_driver.kube.types import Pod as ApiPod
from dra_driver.kube.watch import Informer
from dra_driver.names import DRIVER_NAME
from dra_driver.ultraserver.placer.decide import decide
from dra_driver.ultraserver.placer.snapshot import read_released, snapshot, write_released
from dra_driver.ultraserver.placer.values import (
    GATE,
    GROUP_LABEL,
    LWS_GROUP_LABEL,
    PLACED_ANNOTATION,
    SINCE_ANNOTATION,
    STUCK_ANNOTATION,
    Action,
    Annotate,
    Assign,
    EmitEvent,
    Evict,
    Pod,
    Released,
    Rules,
)
from dra_driver.util.errors import DriverError
from dra_driver.util.worker import MAX_ROUND_SECONDS, Backoff, Worker

NAME: Final = "neuron-dra-driver-placer"
KEY: Final = "released"


class ReleasedGroups:
    """Which groups stay away from which servers: a ConfigMap, since the pods that could record it are deleted.

    Read once a term, written before a group is released. Methods raise ApiError.
    """

    def __init__(self, transport: Transport, namespace: str) -> None:
        self._maps = Collection(transport, CONFIG_MAPS, timeout=REQUEST_SECONDS)
        self._namespace = namespace
        self._known: tuple[Released, ...] | None = None
        self._version = ""

    def read(self) -> tuple[Released, ...]:
        """The released groups."""
        if self._known is None:
            try:
                self._learn(self._maps.get(self._namespace, NAME))
            except ApiError as error:
                if not error.object_missing:
                    raise
                self._known, self._version = (), ""
        return self._known or ()

    def add(self, released: Released, now: float) -> None:
        """Record a released group and the server that it stays away from."""
        same = (released.namespace, released.group, released.server)
        others = [item for item in self.read() if (item.namespace, item.group, item.server) != same]
        meta = ObjectMeta(name=NAME, namespace=self._namespace, resource_version=self._version)
        document = ConfigMap(meta, {KEY: write_released([*others, released], now)})
        try:
            if self._version:
                self._learn(self._maps.replace(self._namespace, NAME, document))
            else:
                self._learn(self._maps.create(self._namespace, document))
        except ApiError:
            self._known = None
            raise

    def _learn(self, stored: ConfigMap) -> None:
        self._known = read_released((stored.data or {}).get(KEY, ""))
        self._version = stored.metadata.resource_version


COMPONENT: Final = "neuron-dra-driver-placer"
PAUSE_SECONDS: Final = 30.0
"""Between two different messages with the same reason about one pod."""
MAX_MESSAGE_LENGTH: Final = 1000
"""Characters of a message; the API server takes 1024 bytes."""

log = logging.getLogger(__name__)


class EventRecorder:
    """Writes events on pods: what a pod waits for, where it goes, and why it was released. Few writes, no duplicates.

    An event's name is derived from pod and message, so a successor does not write the same event again.
    """

    def __init__(self, transport: Transport, clock: Callable[[], float] = time.monotonic) -> None:
        self._events = Collection(transport, EVENTS, timeout=REQUEST_SECONDS)
        self._clock = clock
        self._recorded: dict[tuple[str, str], tuple[str, float]] = {}

    def record(self, pod: Pod, reason: str, message: str, *, wrong: bool = False) -> None:
        """Write an event unless it was written already, or another one with this reason a moment ago.

        An event that cannot be written is logged, and no reason to stop.
        """
        message = message.encode("ascii", "replace").decode()[:MAX_MESSAGE_LENGTH]
        last, when = self._recorded.get((pod.uid, reason), ("", float("-inf")))
        passed = self._clock() - when
        if passed < (LIFETIME_SECONDS if last == message else PAUSE_SECONDS):
            return
        self._recorded[pod.uid, reason] = message, self._clock()
        try:
            about = ObjectReference("Pod", pod.namespace, pod.name, pod.uid)
            key = f"{reason} {message}"
            event = new_event(about, reason, message, COMPONENT, key=key, moment=time.time(), wrong=wrong)
            self._events.create(pod.namespace, event)
        except ApiError as error:
            if error.status != 409:
                log.warning("no event could be written about pod %s/%s: %s", pod.namespace, pod.name, error)

    def forget_all_but(self, uids: set[str]) -> None:
        """Forget all pods but those with these UIDs."""
        self._recorded = {key: value for key, value in self._recorded.items() if key[0] in uids}


LOOK_SECONDS: Final = 5.0
"""Longest time between two decisions, since deadlines pass without a change in the cluster; less for short timeouts."""
SETTLE_SECONDS: Final = 0.05
"""Pods of a group, and their claims, are created one after the other: they are handled together."""
REFUSED_SECONDS: Final = 60.0
"""A pod that the API server did not let us assign is left alone for so long, so that it blocks no UltraServer."""

_SELECTORS: Final = {
    "pods of LeaderWorkerSets": (("labelSelector", LWS_GROUP_LABEL),),
    "pods of other groups": (("labelSelector", f"{GROUP_LABEL},!{LWS_GROUP_LABEL}"),),
    # Only to tell those with the gate what is missing.
    "pods without node and group": (
        ("fieldSelector", "spec.nodeName="),
        ("labelSelector", f"!{GROUP_LABEL},!{LWS_GROUP_LABEL}"),
    ),
}

_GROUP_LABELS: Final = {GROUP_LABEL, LWS_GROUP_LABEL}
_NO_ANSWER: Final = frozenset({0, 401, 429})
"""HTTP statuses, besides 500 and above, that do not say whether the change was made."""


class Placer:
    """One term of a leader: from its election until it no longer leads.

    Args:
        transport: the API server.
        namespace: of the placer's own objects.
        rules: settings.
        may_act: asked before each write; see ``Election.may_act``.
        well: called after each decision with the seconds until the next one at the latest (see ``Worker.well``).
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        transport: Transport,
        namespace: str,
        rules: Rules,
        may_act: Callable[[], bool],
        well: Callable[[float], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._rules = rules
        self._may_act = may_act
        self._well = well
        self._clock = clock
        self._wake = threading.Event()
        self._nodes = Informer("nodes", Collection(transport, PARTIAL_NODES), self._wake.set)
        drivers = (("fieldSelector", f"spec.driver={DRIVER_NAME}"),)
        self._offers = Informer("slices", Collection(transport, PARTIAL_RESOURCE_SLICES, drivers), self._wake.set)
        self._claims = Informer("claims", Collection(transport, RESOURCE_CLAIMS), self._wake.set)
        self._members = {
            name: Informer(name, Collection(transport, PODS, query), self._wake.set)
            for name, query in _SELECTORS.items()
        }
        self._informers: tuple[Informer[Any], ...] = (
            self._nodes,
            self._offers,
            self._claims,
            *self._members.values(),
        )
        self._pods = Collection(transport, PODS, timeout=REQUEST_SECONDS)
        self._released_groups = ReleasedGroups(transport, namespace)
        self._recorder = EventRecorder(transport)
        self._unanswered: Assign | Annotate | None = None
        self._refused: dict[str, float] = {}
        self._surprised = False
        """A pod was not as expected, so the next round is due soon."""
        self._backoff = Backoff(cap=10.0)
        self.last_error = ""

    def run(self, stopping: Callable[[], bool]) -> None:
        """Watch, decide and act until ``stopping`` or ``may_act`` say otherwise."""
        for informer in self._informers:
            informer.start()
        try:
            while not stopping() and self._may_act():
                began = time.monotonic()
                wait = self._round()
                self._well(wait + MAX_ROUND_SECONDS)
                # In a large cluster a decision takes half a second; half of the time is left for incoming changes.
                spent = time.monotonic() - began
                if self._wake.wait(wait):
                    time.sleep(max(SETTLE_SECONDS, min(spent, LOOK_SECONDS)))
                    self._wake.clear()
        finally:
            for informer in self._informers:
                informer.stop(0)  # nobody is interested in what they see from now on

    @property
    def followers(self) -> list[Worker]:
        """The loops of its informers, for health reports."""
        return [informer.worker for informer in self._informers]

    @property
    def uncertain(self) -> bool:
        """Whether a write got no answer, so that it may still be carried out."""
        return self._unanswered is not None

    def wake(self) -> None:
        """Check ``stopping`` and ``may_act`` now."""
        self._wake.set()

    def _round(self) -> float:
        """One decision and its actions; returns the seconds until the next one if nothing changes."""
        try:
            self._look()
        except DriverError as error:
            self.last_error = str(error)
            asked = error.retry_after if isinstance(error, ApiError) else None
            wait = self._backoff.next(asked)
            log.warning("not everything could be done: %s (next try in %.1f s)", error, wait)
            return min(wait, LOOK_SECONDS) if asked is None else wait
        self.last_error = ""
        if self._surprised:
            self._surprised = False
            return self._backoff.next()
        self._backoff.reset()
        return min(LOOK_SECONDS, self._rules.timeout / 5)

    def _look(self) -> None:
        if not all(informer.current for informer in self._informers):
            trouble = next((informer.last_error for informer in self._informers if informer.last_error), "")
            if trouble:
                raise DriverError(trouble, consequence="nothing is decided until the cluster can be followed again")
            return
        if self._unanswered is not None:
            self._carry_out([self._unanswered])
        now = self._clock()
        seen = snapshot(
            self._nodes.objects(),
            self._offers.objects(),
            self._claims.objects(),
            self._candidates(now),
            self._released_groups.read(),
        )
        actions = decide(seen, now, self._rules)
        self._recorder.forget_all_but({pod.uid for pod in seen.pods})
        self._carry_out(actions)

    def _candidates(self, now: float) -> list[ApiPod]:
        """All pods of groups and those with the gate, except those that cannot be assigned at the moment."""
        self._refused = {uid: until for uid, until in self._refused.items() if until > now}
        found = {pod.metadata.uid: pod for informer in self._members.values() for pod in informer.objects()}
        return [
            pod
            for uid, pod in found.items()
            if (uid not in self._refused if _has_gate(pod) else pod.metadata.labels.keys() & _GROUP_LABELS)
        ]

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if not self._may_act():
                return
            match action:
                case Assign() | Annotate():
                    self._change(action)
                case Evict():
                    self._release(action)
                case EmitEvent(pod, message, wrong):
                    self._recorder.record(
                        pod, "UltraServerGroup" if wrong else "WaitsForUltraServer", message, wrong=wrong
                    )

    def _change(self, action: Assign | Annotate) -> None:
        self._unanswered = action
        pod = action.pod
        try:
            self._take(self._pods.patch(pod.namespace, pod.name, _patch(action)))
        except ApiError as error:
            if error.status in _NO_ANSWER or error.status >= 500:
                raise
            self._unanswered = None
            self._refuse(pod, error)
            return
        self._unanswered = None
        if isinstance(action, Assign):
            log.info("pod %s/%s goes to %s", pod.namespace, pod.name, action.server)
            self._recorder.record(
                pod, "Placed", f"UltraServer {action.server} is its group's: {', '.join(action.nodes)}"
            )

    def _refuse(self, pod: Pod, error: ApiError) -> None:
        """The pod has changed or is gone (read it again), or the server refuses the change (wait)."""
        if error.status not in (404, 409):
            log.warning("pod %s/%s cannot be changed: %s", pod.namespace, pod.name, error)
            self._refused[pod.uid] = self._clock() + REFUSED_SECONDS  # matters only while it has the gate
            self._recorder.record(pod, "NotPlaced", f"the API server refuses to place it: {error.message}", wrong=True)
        self._renew(pod)

    def _release(self, action: Evict) -> None:
        self._released_groups.add(action.released, self._clock())
        for pod in action.pods:
            if not self._may_act():
                return
            log.info("pod %s/%s is deleted, so that its group is recreated: %s", pod.namespace, pod.name, action.why)
            avoid = f"it stays away from {action.released.server} until {timestamp(action.released.until)}"
            self._recorder.record(pod, "Released", f"{action.why}; the group is recreated, and {avoid}", wrong=True)
            try:
                self._pods.delete(pod.namespace, pod.name, pod.uid, foreground=True)
            except ApiError as error:
                if error.status not in (404, 409):
                    raise
            self._renew(pod)

    def _renew(self, pod: Pod) -> None:
        """Read a pod, so that the next decision rests on its current state."""
        self._surprised = True
        try:
            found = self._pods.get(pod.namespace, pod.name)
        except ApiError as error:
            if not error.object_missing:
                raise
            found = None
        if found is not None and found.metadata.uid == pod.uid:
            self._take(found)
        else:
            for informer in self._members.values():
                informer.gone(pod.namespace, pod.name, pod.uid)

    def _take(self, pod: ApiPod) -> None:
        for informer in self._members.values():
            informer.wrote(pod)


def _patch(action: Assign | Annotate) -> dict[str, object]:
    """The change as a JSON merge patch that applies to exactly this state of the pod."""
    pod = action.pod
    meta = {"uid": pod.uid, "resourceVersion": pod.version}
    times = {SINCE_ANNOTATION: action.since, STUCK_ANNOTATION: action.stuck if isinstance(action, Annotate) else None}
    notes = {name: None if moment is None else timestamp(moment, micro=True) for name, moment in times.items()}
    if isinstance(action, Annotate):
        return {"metadata": {**meta, "annotations": notes}}
    return {
        "metadata": {**meta, "annotations": {PLACED_ANNOTATION: action.server, **notes}},
        "spec": {
            "nodeSelector": {action.label: action.server},
            "schedulingGates": [{"name": name} for name in pod.other_gates],
        },
    }


def _has_gate(pod: ApiPod) -> bool:
    return any(gate.name == GATE for gate in pod.spec.scheduling_gates)
