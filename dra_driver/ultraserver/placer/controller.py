"""Watches the cluster, decides, and carries out the decisions. Keeps no state that a successor needs in memory.

One thread decides and writes. Each write names the state of the object that it rests on (UID and resource version), and
the server's answer is taken into account before the next decision. A write without a clear answer may still be carried
out later: its pod counts as assigned until the answer is there or the pod has another version. What cannot be written
is tried again ever less often, and its namespace comes after all others for a while: its owners may have made objects
that are too large, or webhooks that fail or hang, and nobody else is to wait for them.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from dra_driver.kube.api.client import REQUEST_SECONDS, Transport
from dra_driver.kube.api.codec import ALLOCATED_CLAIMS, partial_nodes
from dra_driver.kube.api.election import Times
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.events import EventRecorder
from dra_driver.kube.api.leading import KeptText, Leading, Term
from dra_driver.kube.api.resources import Collection
from dra_driver.kube.api.watch import Informer
from dra_driver.kube.objects.core import ObjectReference
from dra_driver.kube.objects.meta import JsonObject, timestamp
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.ultraserver.placer.decide import decide
from dra_driver.ultraserver.placer.operator import Operator
from dra_driver.ultraserver.placer.servers import memberships
from dra_driver.ultraserver.placer.snapshot import read_kept, snapshot, write_kept
from dra_driver.ultraserver.placer.trouble import SHARE_SECONDS, Trouble, Turns
from dra_driver.ultraserver.placer.values import (
    GROUP_LABEL,
    LWS_GROUP_LABEL,
    PLACED_ANNOTATION,
    SINCE_ANNOTATION,
    STUCK_ANNOTATION,
    Annotate,
    Assign,
    EmitEvent,
    Evict,
    GroupPod,
    PlacerRecord,
    PodAction,
    Released,
    Rules,
    WarnNode,
)
from dra_driver.ultraserver.placer.watched import (
    MEMBERS,
    OFFERS,
    Member,
    has_our_devices,
    is_member,
    of_a_server,
    of_its_node,
)
from dra_driver.util.metrics import Sample
from dra_driver.util.worker import MAX_ROUND_SECONDS

NAME: Final = "neuron-dra-driver-placer"
KEY: Final = "state"

LEASE_NAME: Final = "neuron-dra-driver-placer"
log = logging.getLogger(__name__)


class Memory:
    """Which pods were assigned, which nodes servers had, and which groups stay away from which servers, in a ConfigMap.

    Read once a term, written before pods are assigned or a group is released: a pod that was not assigned after all
    still has the gate, so that its entry means nothing. Methods raise ApiError.
    """

    def __init__(self, transport: Transport, namespace: str) -> None:
        self._kept = KeptText(transport, namespace, NAME, KEY)

    def read(self) -> PlacerRecord:
        """What is kept."""
        return read_kept(self._kept.read())

    def place(self, placed: Mapping[str, str], members: Mapping[str, tuple[str, ...]], now: float) -> None:
        """Replace the record of where pods were assigned, and of the servers' nodes."""
        kept = self.read()
        if (placed, members) != (kept.placed, kept.members):
            self._kept.write(write_kept(PlacerRecord(placed, kept.released, members), now))

    def release(self, released: Released, now: float) -> None:
        """Record a released group and the server that it stays away from."""
        kept, same = self.read(), (released.namespace, released.group, released.server)
        others = [item for item in kept.released if (item.namespace, item.group, item.server) != same]
        self._kept.write(write_kept(PlacerRecord(kept.placed, (*others, released), kept.members), now))


LOOK_SECONDS: Final = 5.0
"""Longest time between two decisions; less for short timeouts."""
SLOW_SECONDS: Final = 1.0
"""Events of a namespace where one takes longer wait for a while: a webhook hangs, or the API server does."""
LATE_SECONDS: Final = 70.0
"""What the API server was sent is carried out within so long or never (kube-apiserver, ``--request-timeout``: 60 s)."""
MAX_EVENTS: Final = 100
"""Events that are written about what waits after one decision; the rest follows after the next ones."""

_SELECTORS: Final = {
    "pods of LeaderWorkerSets": (("labelSelector", LWS_GROUP_LABEL),),
    "pods of other groups": (("labelSelector", f"{GROUP_LABEL},!{LWS_GROUP_LABEL}"),),
    # Only to tell those with the gate what is missing.
    "pods without node and group": (
        ("fieldSelector", "spec.nodeName="),
        ("labelSelector", f"!{GROUP_LABEL},!{LWS_GROUP_LABEL}"),
    ),
}


@dataclass(frozen=True, slots=True)
class Doubt:
    """An assignment of which nobody knows whether it was made."""

    action: Assign
    sent: float
    """When it was sent without a clear answer for the last time."""
    refused: bool = False
    """Whether it was refused when it was sent again; what was sent before may still be carried out."""


@dataclass(frozen=True, slots=True)
class News:
    """What an Event is to say."""

    about: ObjectReference
    reason: str
    message: str
    wrong: bool = False


class Placer(Term):
    """One term of a leader: from its election until it no longer leads.

    Args:
        transport: the API server.
        namespace: of the placer's own objects.
        rules: settings.
        may_act: asked before each write; see ``Election.may_act``.
        well: called after each decision with the seconds until the next one at the latest (see ``Worker.well``).
        clock: see ``Term``.
        operator: whether it serves NeuronUltraServerWorkloads as well.
    """

    def __init__(
        self,
        transport: Transport,
        namespace: str,
        rules: Rules,
        may_act: Callable[[], bool],
        well: Callable[[float], None],
        clock: Callable[[], float] = time.time,
        *,
        operator: bool = False,
    ) -> None:
        super().__init__(may_act, well, min(LOOK_SECONDS, rules.timeout / 5), clock)
        self._rules = rules
        self._nodes = Informer("nodes", Collection(transport, partial_nodes()), self._wake.set, of_a_server)
        drivers = (("fieldSelector", f"spec.driver={DRIVER_NAME}"),)
        self._offers = Informer("slices", Collection(transport, OFFERS, drivers), self._wake.set, of_its_node)
        self._claims = Informer("claims", Collection(transport, ALLOCATED_CLAIMS), self._wake.set, has_our_devices)
        self._members = {
            name: Informer(name, Collection(transport, MEMBERS, query), self._wake.set, is_member)
            for name, query in _SELECTORS.items()
        }
        self._operator: Operator | None = None
        if operator:
            self._operator = Operator(transport, namespace, self._wake.set, may_act, well, self._clock)
        self._informers: tuple[Informer[Any], ...] = (
            self._nodes,
            self._offers,
            self._claims,
            *self._members.values(),
            *(self._operator.informers() if self._operator is not None else ()),
        )
        self._pods = Collection(transport, MEMBERS, timeout=REQUEST_SECONDS)
        self._memory = Memory(transport, namespace)
        self._recorder = EventRecorder(transport, NAME)
        self._doubts: dict[str, Doubt] = {}
        """By UID of the pod."""
        self._began: float | None = None
        """When it looked first."""
        self._trouble = Trouble()
        """By UID of a pod, or key of a group that is to be released."""
        self._event_trouble = Trouble()
        """By namespace: where Events are slow."""
        self._outcomes: list[News] = []
        """What was done, and is yet to be told."""

    def informers(self) -> Sequence[Informer[Any]]:
        """What is watched."""
        return self._informers

    @property
    def uncertain(self) -> bool:
        """Whether a write got no answer, so that it may still be carried out."""
        return bool(self._doubts)

    @property
    def left_out_nodes(self) -> int:
        """Nodes that get nothing, since they said that they were a workload's and were not."""
        return self._operator.left_out_nodes if self._operator is not None else 0

    def look(self) -> None:
        """One decision and its actions.

        Raises ApiError if the API server gives no clear answer to any write, or the record cannot be written.
        """
        now, record = self._clock(), self._memory.read()
        if self._began is None:
            self._began = now
            self._take_over(record, now)
        seen = snapshot(
            self._nodes.objects(), self._offers.objects(), self._claims.objects(), self._candidates(now), record
        )
        seen = replace(seen, in_trouble=self._trouble.namespaces(now))
        self._well(MAX_ROUND_SECONDS)  # a tenant may have made the decision long
        if self._operator is not None:
            seen = self._operator.add_to(seen)
        decided = decide(seen, now, self._rules, self._began)
        actions = [action for action in decided if isinstance(action, PodAction)]
        self._well(MAX_ROUND_SECONDS)
        assigned = {action.pod.uid: action.place for action in actions if isinstance(action, Assign)}
        members = memberships(seen)
        unrecorded: ApiError | None = None
        if (assigned or members != seen.members) and self._may_act():
            # What has ended holds nothing, and there may be many thousands of it.
            placed = {pod.uid: "=".join(pod.placed) for pod in seen.pods if pod.placed and not pod.gone}
            try:
                self._memory.place(placed | assigned, members, now)
            except ApiError as error:
                unrecorded = error
                actions = [action for action in actions if not isinstance(action, Assign)]
        servers = self._operator.uids() if self._operator is not None else set()
        self._recorder.forget_all_but({pod.uid for pod in seen.pods} | {node.uid for node in seen.nodes} | servers)
        try:
            try:
                self._act([*actions, *(doubt.action for doubt in self._doubts.values() if not doubt.refused)])
            finally:
                # Also where pods of some namespaces cannot be written: workloads are others'.
                if self._operator is not None:
                    surprised = self._operator.carry_out(one for one in decided if not isinstance(one, PodAction))
                    self._surprised = self._surprised or surprised
        finally:
            # Not before: a tenant may have thousands of groups wait, and others should not wait until they are told.
            self._write_events([*_turns(_news(actions)), *self._foreign_news()])
            self._surprised = self._surprised or bool(self._doubts)
        if unrecorded is not None:
            raise unrecorded

    def _foreign_news(self) -> Iterator[News]:
        for about, text in self._operator.news() if self._operator is not None else ():
            yield News(about, "ForeignOperator", text, wrong=True)

    def _take_over(self, record: PlacerRecord, now: float) -> None:
        """What the leader before recorded and nobody sees yet may have been sent, and take effect late."""
        for pod in self._pods_by_uid().values():
            if pod.gated and (place := record.placed.get(pod.uid)):
                label, _, server = place.partition("=")
                self._doubts[pod.uid] = Doubt(Assign(pod, label, server, now), now, refused=True)

    def _pods_by_uid(self) -> dict[str, GroupPod]:
        return {member.pod.uid: member.pod for informer in self._members.values() for member in informer.objects()}

    def _candidates(self, now: float) -> list[GroupPod]:
        """All pods of groups and those with the gate, except those that could not be assigned a short time ago."""
        self._trouble.forget(now)
        self._event_trouble.forget(now)
        pods = self._pods_by_uid()
        self._doubts = {
            uid: doubt
            for uid, doubt in self._doubts.items()
            if uid in pods
            and pods[uid].version == doubt.action.pod.version
            and not (doubt.refused and now > doubt.sent + LATE_SECONDS)
        }
        for uid, doubt in self._doubts.items():
            pods[uid] = replace(pods[uid], gated=False, placed=(doubt.action.label, doubt.action.server))
        return [pod for uid, pod in pods.items() if not pod.gated or self._trouble.is_due(uid, now)]

    def _act(self, actions: Iterable[PodAction]) -> None:
        """What fails for one namespace does not keep the others waiting.

        Raises ApiError if all fails for several, or a release cannot be recorded.
        """
        unrecorded: ApiError | None = None
        turns = self._turns(self._trouble)
        writes = (action for action in actions if not isinstance(action, EmitEvent | WarnNode))
        for action in turns.of(writes, _item, _namespace):
            namespace, item = _namespace(action), _item(action)
            # Into an object of ours, so that no namespace answers for it. If it fails once, it is not tried for others.
            if isinstance(action, Evict) and (unrecorded := unrecorded or self._record_release(action, self._clock())):
                continue
            try:
                done = self._release(action) if isinstance(action, Evict) else self._change(action)
                turns.answered = True
            except ApiError as error:
                log.warning("namespace %s: %s", namespace, error)
                done = False
                turns.note_unclear(namespace, error)
            except Exception:
                # A defect: what one tenant has made is nobody else's trouble.
                log.exception("namespace %s: internal error", namespace)
                done = False
            if done:
                self._trouble.note_success(item)
            else:
                self._trouble.note_failure(item, namespace, self._clock())
        self._surprised = self._surprised or turns.cut
        if failure := unrecorded or turns.failure:
            raise failure

    def _turns(self, trouble: Trouble) -> Turns:
        return Turns(trouble, self._may_act, self._well, self._clock)

    def _record_release(self, action: Evict, now: float) -> ApiError | None:
        """Record which server the group stays away from; returns what went wrong."""
        try:
            self._memory.release(action.released, now)
        except ApiError as error:
            return error
        return None

    def _write_events(self, waits: Iterable[News]) -> None:
        outcomes, self._outcomes = self._outcomes, []
        left = MAX_EVENTS + len(outcomes)
        for news in self._turns(self._event_trouble).of([*outcomes, *waits], _whose, _whose):
            if not left:
                return
            namespace, started = _whose(news), self._clock()
            left -= self._recorder.record(news.about, news.reason, news.message, wrong=news.wrong)
            if self._clock() - started > SLOW_SECONDS:
                self._event_trouble.note_failure(namespace, namespace, self._clock())

    def _change(self, action: Assign | Annotate) -> bool:
        """Returns whether the pod has changed, by this or something else. Raises ApiError for no clear answer."""
        pod = action.pod
        try:
            self._take(self._pods.patch(pod.namespace, pod.name, _patch(action)))
        except ApiError as error:
            if error.undecided:
                self._doubt(action)
                raise
            changed = error.status in (404, 409)
            if changed:
                self._doubts.pop(pod.uid, None)
            elif pod.uid in self._doubts:
                self._doubts[pod.uid] = replace(self._doubts[pod.uid], refused=True)
            self._refuse(pod, error)
            return changed
        self._doubts.pop(pod.uid, None)
        if isinstance(action, Assign):
            log.info("pod %s/%s goes to %s", pod.namespace, pod.name, action.server)
            text = f"UltraServer {action.server} is its group's: {', '.join(action.nodes)}"
            self._outcomes.append(News(_reference(pod), "Placed", text))
        return True

    def _doubt(self, action: Assign | Annotate) -> None:
        if isinstance(action, Annotate):
            return  # the next decision makes up for it
        self._doubts[action.pod.uid] = Doubt(action, self._clock())
        text = f"the API server gives no clear answer whether it goes to {action.server}; it is asked again"
        self._outcomes.append(News(_reference(action.pod), "NotPlaced", text, wrong=True))

    def _refuse(self, pod: GroupPod, error: ApiError) -> None:
        """The pod has changed or is gone (read it again), or the server refuses the change (wait)."""
        if error.status not in (404, 409):
            log.warning("pod %s/%s cannot be changed: %s", pod.namespace, pod.name, error)
            text = f"the API server refuses to place it: {error.message}"
            self._outcomes.append(News(_reference(pod), "NotPlaced", text, wrong=True))
        self._renew(pod)

    def _release(self, action: Evict) -> bool:
        began = self._clock()
        for pod in action.pods:
            # Of a group of thousands, the rest is released after the next decision.
            if not self._may_act() or self._clock() > began + SHARE_SECONDS:
                self._surprised = True
                return True
            self._well(MAX_ROUND_SECONDS)
            log.info("pod %s/%s is deleted, so that its group is recreated: %s", pod.namespace, pod.name, action.why)
            avoid = f"it stays away from {action.released.server} until {timestamp(action.released.until)}"
            text = f"{action.why}; the group is recreated, and {avoid}"
            self._outcomes.append(News(_reference(pod), "Released", text, wrong=True))
            try:
                self._pods.delete(pod.namespace, pod.name, pod.uid, foreground=True)
            except ApiError as error:
                if error.status not in (404, 409):
                    raise
            self._renew(pod)
        return True

    def _renew(self, pod: GroupPod) -> None:
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

    def _take(self, member: Member) -> None:
        for informer in self._members.values():
            informer.wrote(member)


def _whose(news: News) -> str:
    return news.about.namespace


def _namespace(action: PodAction) -> str:
    match action:
        case Evict(_, released):
            return released.namespace
        case WarnNode():
            return ""
        case Assign(pod) | Annotate(pod) | EmitEvent(pod):
            return pod.namespace


def _item(action: PodAction) -> Hashable:
    """The object that an action writes, for ``Trouble``."""
    match action:
        case Evict(_, released):
            return released.namespace, released.group
        case WarnNode(node):
            return node.uid
        case Assign(pod) | Annotate(pod) | EmitEvent(pod):
            return pod.uid


def _news(actions: Iterable[PodAction]) -> Iterator[News]:
    for action in actions:
        match action:
            case WarnNode(node, message, reason):
                yield News(ObjectReference("Node", "", node.name, node.uid), reason, message, wrong=True)
            case EmitEvent(pod, message, wrong):
                yield News(_reference(pod), "UltraServerGroup" if wrong else "WaitsForUltraServer", message, wrong)


def _turns(news: Iterable[News]) -> Iterator[News]:
    """One of each namespace in turn."""
    queues: dict[str, deque[News]] = {}
    for item in news:
        queues.setdefault(item.about.namespace, deque()).append(item)
    waiting = deque(queues.values())
    while waiting:
        queue = waiting.popleft()
        yield queue.popleft()
        if queue:
            waiting.append(queue)


def _reference(pod: GroupPod) -> ObjectReference:
    return ObjectReference("Pod", pod.namespace, pod.name, pod.uid)


def _patch(action: Assign | Annotate) -> dict[str, object]:
    """The change as a JSON merge patch that applies to exactly this state of the pod."""
    pod = action.pod
    meta = {"uid": pod.uid, "resourceVersion": pod.version}
    times = {SINCE_ANNOTATION: action.since, STUCK_ANNOTATION: action.stuck if isinstance(action, Annotate) else None}
    notes = {name: None if moment is None else timestamp(moment, micro=True) for name, moment in times.items()}
    if isinstance(action, Annotate):
        return {"metadata": {**meta, "annotations": notes}}
    spec = {
        "nodeSelector": {action.label: action.server},
        "schedulingGates": [{"name": name} for name in pod.demands.other_gates],
    }
    if action.rivals:
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _without(action)}}
    return {"metadata": {**meta, "annotations": {PLACED_ANNOTATION: action.server, **notes}}, "spec": spec}


def _without(action: Assign) -> dict[str, object]:
    """The pod's node affinity, without the nodes that are not the server's. A field has one value in a requirement."""
    rivals = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in action.rivals]
    terms: list[JsonObject] = msgspec.to_builtins(action.pod.demands.terms) or [{"matchFields": []}]
    # A term without requirements admits no node, and is not to be changed.
    return {
        "nodeSelectorTerms": [
            {**term, "matchFields": [*term.get("matchFields", ()), *rivals]} if term else term for term in terms
        ]
    }


class PlacerService(Leading):
    """Runs in threads of its own.

    Args:
        transport: the API server.
        namespace: of the lease and the ConfigMap.
        identity: in the lease; unique to this process.
        rules: settings.
        times: of the election.
        operator: whether it serves NeuronUltraServerWorkloads as well.
    """

    def __init__(
        self,
        transport: Transport,
        namespace: str,
        identity: str,
        rules: Rules,
        times: Times | None = None,
        *,
        operator: bool = False,
    ) -> None:
        super().__init__(
            "the placer",
            transport,
            namespace,
            LEASE_NAME,
            identity,
            lambda may_act, well: Placer(transport, namespace, rules, may_act, well, operator=operator),
            times,
        )

    def samples(self) -> Iterator[Sample]:
        """The numbers of now, for Prometheus."""
        term = self._term
        nodes = term.left_out_nodes if isinstance(term, Placer) and self.leads else 0
        yield Sample("placer_leads", "1 while this replica decides.", float(self.leads))
        text = "Nodes that get nothing, since they said that they were an UltraServer workload's and were not."
        yield Sample("placer_left_out_nodes", text, float(nodes))
