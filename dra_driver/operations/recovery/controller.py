"""Watches the Nodes, decides, and carries out the decisions; a candidate in an election that acts while it leads.

All state is on the Nodes. Each write of a Node names the version that it rests on; before a pod is evicted, a program
called or an instance replaced, the Node is read again, and if it has changed, the decision is made anew. So nothing
rests on old information, and a successor goes on where this one was killed. What is not on the Nodes (since when a
fault or health has been seen, when a node was last finished) counts from the beginning of a term: that delays, and
never hastens.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dra_driver.kube.api.client import REQUEST_SECONDS, Transport
from dra_driver.kube.api.codec import partial_nodes
from dra_driver.kube.api.election import Times
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.events import EventRecorder
from dra_driver.kube.api.eviction import Evictor
from dra_driver.kube.api.leading import Leading, Term
from dra_driver.kube.api.resources import Collection
from dra_driver.kube.api.watch import Informer
from dra_driver.kube.objects.core import ObjectReference, PartialNode
from dra_driver.neuron.health.faults import FAULTS
from dra_driver.operations.recovery.aws import Aws
from dra_driver.operations.recovery.decide import ON_MACHINES, Action, Kind, after_hook, decide, disputes, drain_is_long
from dra_driver.operations.recovery.hook import Hook
from dra_driver.operations.recovery.instances import Hostnames, contradiction, doubts, instance_of, names_instance
from dra_driver.operations.recovery.nodes import MARK, NeuronNode, Sightings, clearing, marking, view
from dra_driver.operations.recovery.policy import Policy
from dra_driver.util.errors import DriverError
from dra_driver.util.metrics import Operations, Sample
from dra_driver.util.text import first_of
from dra_driver.util.worker import MAX_ROUND_SECONDS

NAME: Final = "neuron-dra-driver-recovery"
"""Of the lease, and of who reports the events."""
LOOK_SECONDS: Final = 5.0
"""Longest time between two decisions: times pass, and pods end, without a change of a Node."""
SAID_PODS: Final = 5

EVENTS: Final[Mapping[Kind, tuple[str, bool]]] = {
    "begin": ("NeuronRecoveryBegan", True),
    "drain": ("NeuronRecoveryDrains", False),
    "request": ("NeuronRecoveryRequested", True),
    "hook": ("NeuronRecoveryHook", False),
    "replace": ("NeuronRecoveryReplaces", True),
    "undo": ("NeuronRecoveryEnded", False),
}
"""Kind of action to the reason of its Event, and whether that is a warning."""

MAX_FAILED: Final = 3
"""Answers 500 in a row to one write, after which it counts as refused: whatever fails there, fails for this Node."""
REFUSED_SECONDS: Final = 60.0
"""A Node that the API server did not let us change is left alone for so long, so that no other one waits for it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """How recovery acts."""

    policy: Policy = field(default_factory=Policy)
    act: bool = False
    """False: a dry run, which says what it would do."""
    hook: Hook | None = None
    cloudwatch: bool = False
    """Whether each node that is begun is counted in CloudWatch."""


@dataclass(slots=True)
class Drain:
    """The drain of a node, as far as this leader has come with it."""

    since: float
    pods: frozenset[str] | None = None
    """UIDs of the pods that it waits for; None: they could not be listed yet."""
    turn: float = 0.0
    """When its pods were last asked to leave."""


@dataclass(slots=True)
class Numbers:
    """What the metrics show; outlives terms."""

    done: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Actions by kind and result."""
    waits: Counter[str] = field(default_factory=Counter)
    nodes: Counter[str] = field(default_factory=Counter)
    disputes: Counter[str] = field(default_factory=Counter)
    """Nodes by what is in dispute about them."""
    operations: Operations = field(default_factory=lambda: Operations(tuple(EVENTS)))


class Recovery(Term):
    """One term of a leader.

    Args:
        transport: the API server.
        settings: what it may do.
        numbers: for the metrics.
        aws: the edge to AWS.
        may_act: see ``Term``.
        well: see ``Term``.
        clock: see ``Term``.
    """

    def __init__(
        self,
        transport: Transport,
        settings: RecoverySettings,
        numbers: Numbers,
        aws: Aws,
        may_act: Callable[[], bool],
        well: Callable[[float], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(may_act, well, LOOK_SECONDS, clock)
        self._settings = settings
        self._numbers = numbers
        self._aws = aws
        self._informer = Informer("nodes", Collection(transport, partial_nodes(MARK)), self._wake.set)
        self._nodes = Collection(transport, partial_nodes(MARK), timeout=REQUEST_SECONDS)
        self._evictor = Evictor(transport, may_act, well)
        self._recorder = EventRecorder(transport, NAME)
        self._sightings = Sightings()
        self._seen: dict[str, PartialNode] = {}
        """The Nodes of the current decision."""
        self._unanswered: tuple[str, Mapping[str, object]] | None = None
        """Node and patch without an answer: repeated before anything else is decided, as it may still be applied."""
        self._failed = 0
        """Answers 500 to it."""
        self._refused: dict[str, tuple[float, str]] = {}
        """UID of a node that the API server does not let us change, to when it is left alone until, and why."""
        self._drains: dict[str, Drain] = {}
        """By UID of a node."""
        self._contradictions: dict[str, Hostnames] = {}
        """UID of a node to what EC2 says against it, which is not asked again in this term."""
        self._last = self._clock()
        """When a node was last begun or finished; a leader before this one may have finished one just before."""
        self._under_way: set[str] = set()
        """UIDs of the nodes that this leader has begun, or found begun at its first look: a mark that comes or goes
        otherwise is not ours, and no other node waits for it."""
        self._looked = False

    def informers(self) -> Sequence[Informer[Any]]:
        """What is watched."""
        return (self._informer,)

    @property
    def uncertain(self) -> bool:
        """Whether a write got no answer."""
        return self._unanswered is not None

    def look(self) -> None:
        """One decision and its actions."""
        if self._unanswered is not None:
            self._patch(*self._unanswered)
            self._last = self._clock()  # a node may have been begun or finished, unless that was refused
        now = self._clock()
        self._seen = {node.metadata.name: node for node in self._informer.objects()}
        views = [found for node in self._seen.values() if (found := view(node, self._sightings, now)) is not None]
        self._refused = {uid: item for uid, item in self._refused.items() if item[0] > now}
        views = [
            replace(
                found,
                refused=self._refused.get(found.uid, (0.0, ""))[1],
                drains_since=drain.since if (drain := self._drains.get(found.uid)) else None,
            )
            for found in self._with_doubts(views)
        ]
        known = {found.uid for found in views}
        self._sightings.looked(known)
        self._recorder.forget_all_but(known)
        marked = {found.uid for found in views if found.mark}
        if not self._looked:
            self._under_way, self._looked = marked, True
        if not self._under_way <= {node.metadata.uid for node in self._seen.values()}:
            self._last = now  # replaced; a kubelet may not delete its Node
        self._under_way &= marked
        decision = decide(views, self._last, self._settings.policy, now, hook=self._settings.hook is not None)
        # One that was interrupted begins anew: pods may have come in a way that nobody keeps them from.
        draining = {action.node.uid for action in decision.actions if action.kind == "drain"}
        self._drains = {uid: drain for uid, drain in self._drains.items() if uid in draining}
        self._numbers.waits = Counter(wait.reason for wait in decision.waits)
        self._numbers.nodes = Counter([*(found.verdict for found in views), *["acted-on"] * len(marked)])
        self._numbers.disputes = disputes(views)
        for wait in decision.waits:
            # A fault that has just come often goes again, and "remedy" only says that there is nothing left to do.
            if wait.reason not in ("persist", "remedy"):
                self._say(wait.node, "NeuronRecoveryWaits", f"nothing is done now: {wait.text}")
        self._carry_out(decision.actions)

    def _with_doubts(self, views: Sequence[NeuronNode]) -> list[NeuronNode]:
        """The nodes with what other Nodes say against their machines, and what EC2 has said."""
        names = {view.uid: view.name for view in views}
        self._contradictions = {uid: item for uid, item in self._contradictions.items() if uid in names}
        of_ec2 = {names[uid]: contradiction(names[uid], item, self._seen) for uid, item in self._contradictions.items()}
        texts = of_ec2 | doubts({name: node.spec.provider_id for name, node in self._seen.items()})
        return [replace(view, doubt=texts.get(view.name, "")) for view in views]

    def _carry_out(self, actions: Iterable[Action]) -> None:
        """What fails for one node does not keep the others waiting."""
        failure: DriverError | None = None
        self._evictor.begin()
        for action in sorted(actions, key=self._turn):
            if not self._may_act():
                return
            if action.node.uid in self._refused:
                continue
            if not self._settings.act:
                text = f"dry run, nothing was done; it would: {action.text}"
                if self._say(action.node, "NeuronRecoveryDryRun", text):
                    self._numbers.done[action.kind, "dry-run"] += 1
                continue
            self._well(MAX_ROUND_SECONDS)  # each hook of an UltraServer's nodes takes its time
            started = time.perf_counter()
            try:
                done = self._attempt(action)
            except DriverError as error:
                self._numbers.done[action.kind, "error"] += 1
                self._numbers.operations.observe(action.kind, time.perf_counter() - started, ok=False)
                self._say(action.node, "NeuronRecoveryFailed", f"{action.kind}: {error}", wrong=True)
                failure = failure or error
                if self._unanswered is not None:
                    break
                continue
            if done:
                self._numbers.done[action.kind, "done"] += 1
                self._numbers.operations.observe(action.kind, time.perf_counter() - started, ok=True)
        if failure is not None:
            raise failure

    def _turn(self, action: Action) -> tuple[int, float]:
        """Its place among the actions of a look.

        The hook may take a minute for each node, and all else rests on what was seen of several nodes. Evictions take
        their time, too, which may be enough for one node alone: it is the last one the next time.
        """
        drain = self._drains.get(action.node.uid)
        return {"drain": 1, "hook": 2}.get(action.kind, 0), drain.turn if drain else 0.0

    def _attempt(self, action: Action) -> bool:
        """``_do``, where a defect is an error like any other: what one Node says is no other one's trouble."""
        try:
            return self._do(action)
        except DriverError:
            raise
        except Exception as error:
            log.exception("node %s: internal error", action.node.name)
            raise DriverError(f"internal error: {type(error).__name__}: {error}") from error

    def _do(self, action: Action) -> bool:
        """One action; returns whether it is done."""
        node = self._seen[action.node.name]
        if action.kind in ON_MACHINES and not self._may_touch_machine(action.node):
            return False
        match action.kind:
            case "begin":
                return self._begin(action, node)
            case "drain":
                return self._unchanged(node) and self._drain(action, node)
            case "request":
                return self._write(action, node, marking(node, action.mark, request=True))
            case "hook":
                return self._unchanged(node) and self._call_hook(action, node)
            case "replace":
                return self._unchanged(node) and self._replace(action, node)
            case "undo":
                return self._undo(action, node)

    def _may_touch_machine(self, node: NeuronNode) -> bool:
        """Whether nothing speaks against the machine that the node names. Raises DriverError.

        EC2 is asked where instances are replaced, for which there is a role at AWS; a hook may do without one. Without
        an answer nothing is done: what is done to a machine cannot be undone.
        """
        if node.doubt or not self._settings.policy.replaces or not names_instance(node.provider_id):
            return not node.doubt
        hostnames = self._aws.hostnames(instance_of(node.provider_id))
        if contradiction(node.name, hostnames, self._seen):
            self._contradictions[node.uid] = hostnames
            self._surprised = True
            return False
        return self._may_act()  # AWS may have taken its time

    def _begin(self, action: Action, node: PartialNode) -> bool:
        first = action.node.mark is None
        if first:
            self._under_way.add(action.node.uid)  # also if the answer gets lost
        if not self._write(action, node, marking(node, action.mark)):
            return False
        if first:
            self._last = self._clock()
        if self._settings.cloudwatch and action.mark.node == action.node.name:
            try:
                if self._may_touch_machine(action.node):
                    self._aws.count(instance_of(action.node.provider_id), FAULTS[action.mark.fault].reason)
            except DriverError as error:
                # A number that is missing is no reason not to act.
                log.warning("node %s is not counted in CloudWatch: %s", action.node.name, error)
        return True

    def _undo(self, action: Action, node: PartialNode) -> bool:
        if not self._write(action, node, clearing(node, action.mark)):
            return False
        if action.node.uid in self._under_way:
            self._last = self._clock()
        return True

    def _drain(self, action: Action, node: PartialNode) -> bool:
        """Evict its pods; done when those that were there in its first ``drain_seconds`` are gone.

        As for ``kubectl drain``, pods that are made later do not count: their owner may do that without end, by
        ``spec.nodeName`` or a toleration of the cordon. They are known by their UIDs, since the time of a pod and of
        the mark are of two clocks: if one were wrong, pods would be ended that a disruption budget protects.
        """
        # Before the list: while it fails, others wait for this node no longer than for any other.
        drain = self._drains.setdefault(action.node.uid, Drain(self._clock()))
        if self._evictor.has_time:
            drain.turn = self._clock()
        on_node = self._evictor.pods(action.node.name)
        awaited = frozenset(pod.uid for pod in on_node)
        if drain.pods is not None and drain_is_long(action.node, self._settings.policy, self._clock()):
            awaited &= drain.pods
        drain.pods = awaited
        try:
            # First those that are waited for: there may be no time for the others.
            in_turn = sorted(on_node, key=lambda pod: pod.uid not in awaited)
            left = [one for one in self._evictor.evict(in_turn) if one.pod.uid in awaited]
        except ApiError as error:
            if awaited:
                raise
            log.warning("node %s: %s", action.node.name, error)  # about pods that came later
            left = []
        if left:
            self._surprised = True
            pods = first_of([f"{one.pod.reference} ({one.why})" for one in left], SAID_PODS)
            self._say(action.node, EVENTS["drain"][0], f"{len(left)} pods are still there: {pods}")
            return False
        return self._may_act() and self._write(action, node, marking(node, action.mark))

    def _call_hook(self, action: Action, node: PartialNode) -> bool:
        hook = self._settings.hook
        if hook is None:
            return False
        # A call that is not recorded is repeated.
        try:
            hook.call(action.node, action.mark)
        except DriverError:
            mark = after_hook(action.mark, succeeded=False, now=self._clock())
            self._patch(action.node.name, marking(node, mark))
            raise
        return self._write(action, node, marking(node, after_hook(action.mark, succeeded=True, now=self._clock())))

    def _replace(self, action: Action, node: PartialNode) -> bool:
        instance = instance_of(action.node.provider_id)
        text = self._aws.replace(instance, respect_grace_period=self._settings.policy.respect_grace_period)
        log.info("node %s: %s", action.node.name, text)
        return self._write(action, node, marking(node, action.mark))

    def _write(self, action: Action, node: PartialNode, patch: Mapping[str, object]) -> bool:
        done = self._patch(node.metadata.name, patch)
        if done:
            reason, wrong = EVENTS[action.kind]
            self._say(action.node, reason, action.text, wrong=wrong)
        return done

    def _patch(self, name: str, patch: Mapping[str, object]) -> bool:
        """Patch a Node; False if it has changed or is gone. Raises ApiError for no answer or a refusal."""
        if self._unanswered is None:
            self._unanswered, self._failed = (name, patch), 0
        try:
            self._informer.wrote(self._nodes.patch("", name, patch))
        except ApiError as error:
            self._failed = self._failed + 1 if error.status == 500 else 0
            if error.undecided and self._failed < MAX_FAILED:
                raise
            self._unanswered = None
            if error.status not in (404, 409):
                until = self._clock() + REFUSED_SECONDS
                self._refused[self._seen[name].metadata.uid] = until, f"the API server refuses it: {error.message}"
                raise
            self._renew(name)
            return False
        self._unanswered = None
        self._surprised = True  # the next step may be due at once
        return True

    def _unchanged(self, node: PartialNode) -> bool:
        """Whether the Node, as stored now, is the one that the decision rests on."""
        found = self._renew(node.metadata.name)
        return found is not None and found.metadata.resource_version == node.metadata.resource_version

    def _renew(self, name: str) -> PartialNode | None:
        """Read a Node, so that the next decision rests on its current state."""
        known = self._seen[name].metadata
        try:
            found = self._nodes.get("", name)
        except ApiError as error:
            if not error.object_missing:
                raise
            self._informer.gone("", name, known.uid)
            self._surprised = True
            return None
        if known.resource_version != found.metadata.resource_version:
            self._surprised = True
        self._informer.wrote(found)
        return found

    def _say(self, node: NeuronNode, reason: str, text: str, *, wrong: bool = False) -> bool:
        """An Event on the Node, and the log; returns whether it is new."""
        new = self._recorder.record(ObjectReference("Node", "", node.name, node.uid), reason, text, wrong=wrong)
        if new:
            log.log(logging.WARNING if wrong else logging.INFO, "node %s: %s: %s", node.name, reason, text)
        return new


class RecoveryService(Leading):
    """Runs in threads of its own.

    Args:
        transport: the API server.
        namespace: of the lease.
        identity: in the lease; unique to this process.
        settings: what it may do.
        times: of the election.
    """

    def __init__(
        self,
        transport: Transport,
        namespace: str,
        identity: str,
        settings: RecoverySettings,
        times: Times | None = None,
    ) -> None:
        if settings.hook is not None:
            settings = replace(settings, hook=replace(settings.hook, stopping=lambda: self.stopping))
        self._settings = settings
        self.numbers = Numbers()
        """What the metrics show."""
        aws = Aws()
        super().__init__(
            "recovery",
            transport,
            namespace,
            NAME,
            identity,
            lambda may_act, well: Recovery(transport, settings, self.numbers, aws, may_act, well),
            times,
        )

    def samples(self) -> Iterable[Sample]:
        """The metrics beside the durations."""
        # What was last seen by one that does not lead any more is old.
        numbers = self.numbers if self.leads else Numbers(done=self.numbers.done)
        yield Sample("recovery_leads", "1 while this replica decides.", float(self.leads))
        yield Sample("recovery_acts", "1 unless it is a dry run.", float(self._settings.act))
        for state in ("sick", "well", "unknown", "acted-on"):
            value = float(numbers.nodes[state])
            yield Sample("recovery_nodes", "Nodes with Neuron devices by state.", value, (("state", state),))
        text = "Nodes whose UltraServer or instance is in dispute."
        for what in ("server", "instance"):
            yield Sample("recovery_disputed_nodes", text, float(numbers.disputes[what]), (("what", what),))
        for reason, count in sorted(numbers.waits.items()):
            yield Sample("recovery_waiting_nodes", "Nodes that wait, by reason.", float(count), (("reason", reason),))
        for (kind, result), count in sorted(dict(numbers.done).items()):
            labels = (("action", kind), ("result", result))
            yield Sample("recovery_actions", "Actions by kind and result.", float(count), labels, "counter")
