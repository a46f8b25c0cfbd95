"""Answers to the scheduler's four questions, from bytes to bytes; a request that cannot be parsed is a DriverError.

Where a pod fits, and how well, is asked for thousands of nodes at a time, so ``FitCache`` keeps every result until the
node changes.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Final

from dra_driver.legacy.extender.binding import Binder, BindRequest
from dra_driver.legacy.extender.budget import Spell, TimeBudget
from dra_driver.legacy.extender.cluster import Cluster
from dra_driver.legacy.extender.preemption import victims
from dra_driver.legacy.extender.wire import (
    Args,
    BindingResult,
    FilterResult,
    HostPriority,
    MetaPod,
    MetaVictims,
    PreemptionResult,
    decode_args,
    decode_binding,
    decode_preemption,
    encode,
    named_nodes,
    proposed_victims,
    requests_of,
)
from dra_driver.legacy.placement import DoesNotFit, Packing, union
from dra_driver.legacy.resource_requests import PodRequest
from dra_driver.legacy.rules import NodeHardware, score
from dra_driver.util.errors import DriverError

SHAPES: Final = 32
"""Number of distinct pod requests whose results on all nodes are cached. For one more, the namespace with the most
gives one up."""

ASKING: Final = 8
"""Namespaces by which it is known who uses the results of a request; more would make no difference."""

PREEMPTION_SECONDS: Final = 2.0
"""For one call; kube-scheduler waits five, and needs only one node."""

JUDGE_SECONDS: Final = 0.1
"""For the nodes of one call that are not cached: the scheduler waits for the answer, and bindings and watch events wait
for the lock. Thousands of nodes are evaluated in that time."""

KINDS: Final = 8
"""Of nodes, for which is kept what helps to judge one request: 15 KB for 64 containers."""
USAGES: Final = 512
"""Of nodes of some kind, for which results of one request are cached, for all kinds together: nodes of equal usage are
judged once, and who creates pods and nodes chooses how many different ones there are."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """Where a pod fits, out of some nodes.

    Attributes:
        fitting: nodes where it fits.
        failed: nodes where it does not fit now, and why.
        lasting: nodes where it never fits, and why.
        unjudged: nodes that were not evaluated in time; they are when the pod is retried.
        overdrawn: whether that is because the pod's namespace has used up its time.
    """

    fitting: list[str]
    failed: dict[str, str]
    lasting: dict[str, str]
    unjudged: list[str]
    overdrawn: bool = False


class _CachedFits:
    """Cached results of one pod request, by kind and usage of nodes and by node; all that was computed goes with it."""

    __slots__ = ("fits", "namespaces", "refusals", "score", "scores")

    def __init__(self, shape: PodRequest) -> None:
        packing = lru_cache(maxsize=KINDS)(partial(_packing, shape))

        def fits(hardware: NodeHardware, taken: int) -> DoesNotFit | None:
            return packing(hardware).fits(taken)

        def score_(hardware: NodeHardware, taken: int) -> int:
            return _score(packing(hardware), taken)

        self.fits: Callable[[NodeHardware, int], DoesNotFit | None] = lru_cache(maxsize=USAGES)(fits)
        """Whether it fits on a kind of node with some cores taken."""
        self.score: Callable[[NodeHardware, int], int] = lru_cache(maxsize=USAGES)(score_)
        """How well it fits there."""
        self.namespaces: set[str] = set()
        """Whose pods have asked for it."""
        self.refusals: dict[str, DoesNotFit | None] = {}
        self.scores: dict[str, int] = {}


class FitCache:
    """Where pods fit in ``cluster``, and how well. Thread-safe.

    Args:
        cluster: the view of the cluster.
        seconds: how long one call may spend on nodes that are not cached.
        clock: seconds of a monotonic clock.
    """

    def __init__(
        self, cluster: Cluster, seconds: float = JUDGE_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._seconds = seconds
        self._judging, self._preempting = TimeBudget(clock), TimeBudget(clock)
        self._cached: OrderedDict[PodRequest, _CachedFits] = OrderedDict()
        cluster.touched = self._forget

    @property
    def remembered(self) -> list[int]:
        """Number of cached nodes for each cached request."""
        with self._cluster.lock:
            return [len(cached.refusals) for cached in self._cached.values()]

    def filter(self, names: Iterable[str], requests: PodRequest, namespace: str) -> Filtered:
        """The nodes where a pod of that namespace fits."""
        found = Filtered([], {}, {}, [])
        with self._cluster.lock, self._judging.spell(namespace, self._seconds) as spell:
            cached = self._cached_for(requests, namespace)
            refusals = cached.refusals
            for name in names:
                try:
                    refusal = refusals[name]
                except KeyError:
                    if not spell.has_time():
                        found.unjudged.append(name)
                        continue
                    refusal = self._fit(name, cached, spell)
                if refusal is None:
                    found.fitting.append(name)
                elif refusal.lasting:
                    found.lasting[name] = refusal.text
                else:
                    found.failed[name] = refusal.text
        return replace(found, overdrawn=spell.overdrawn)

    def scores(self, names: Iterable[str], requests: PodRequest, namespace: str) -> list[tuple[str, int]]:
        """How well each node packs, 0 to 10; 0 also if there was no time to evaluate it."""
        found: list[tuple[str, int]] = []
        with self._cluster.lock, self._judging.spell(namespace, self._seconds) as spell:
            cached = self._cached_for(requests, namespace)
            for name in names:
                score_ = cached.scores.get(name)
                if score_ is None:
                    score_ = self._judge(name, cached, spell) if spell.has_time() else 0
                found.append((name, score_))
        return found

    def victims(
        self, proposed: Mapping[str, Sequence[str]], requests: PodRequest, priority: int, namespace: str
    ) -> dict[str, list[str]]:
        """The UIDs of the pods to evict for a pod, by node, for as many nodes as time allows.

        Args:
            proposed: what kube-scheduler would evict, by node.
            requests: of the pod.
            priority: of the pod.
            namespace: of the pod.
        """
        found: dict[str, list[str]] = {}
        with self._preempting.spell(namespace, PREEMPTION_SECONDS) as spell:
            for name, uids in proposed.items():
                with spell.for_all():
                    tenancy = self._cluster.tenancy(name)
                if not spell.has_time():
                    break
                chosen = tenancy and victims(tenancy, requests, priority, uids, spell.has_time)
                if chosen:
                    found[name] = chosen
        return found

    def _cached_for(self, requests: PodRequest, namespace: str) -> _CachedFits:
        shape = _shape(requests)
        found = self._cached.get(shape)
        if found is None:
            found = self._cached[shape] = _CachedFits(shape)
        self._cached.move_to_end(shape)
        if len(found.namespaces) < ASKING:
            found.namespaces.add(namespace)
        while len(self._cached) > SHAPES:
            self._give_up_one()
        return found

    def _give_up_one(self) -> None:
        """The namespace with the most requests in the cache gives up the one that was asked for longest ago."""
        counts = Counter(namespace for cached in self._cached.values() for namespace in cached.namespaces)
        greediest, _ = counts.most_common(1)[0]
        shape, cached = next(item for item in self._cached.items() if greediest in item[1].namespaces)
        cached.namespaces.discard(greediest)
        if not cached.namespaces:
            del self._cached[shape]

    def _look(self, name: str, spell: Spell) -> tuple[NodeHardware, int] | DoesNotFit:
        if self._cluster.has_counted(name):
            return self._cluster.look(name)
        with spell.for_all():
            return self._cluster.look(name)

    def _fit(self, name: str, cached: _CachedFits, spell: Spell) -> DoesNotFit | None:
        seen = self._look(name, spell)
        refusal = seen if isinstance(seen, DoesNotFit) else cached.fits(*seen)
        if refusal is not None:
            refusal = self._cluster.explained(name, refusal)
        # Names come from outside: unknown ones must not fill the cache.
        if self._cluster.knows(name):
            cached.refusals[name] = refusal
        return refusal

    def _judge(self, name: str, cached: _CachedFits, spell: Spell) -> int:
        seen = self._look(name, spell)
        found = 0 if isinstance(seen, DoesNotFit) else cached.score(*seen)
        if self._cluster.knows(name):
            cached.scores[name] = found
        return found

    def _forget(self, name: str) -> None:
        for cached in self._cached.values():
            cached.refusals.pop(name, None)
            cached.scores.pop(name, None)


def _packing(shape: PodRequest, hardware: NodeHardware) -> Packing:
    return Packing(hardware, shape)


def _score(packing: Packing, taken: int) -> int:
    found = packing.place(taken)
    return 0 if isinstance(found, DoesNotFit) else score(packing.hardware, taken, taken | union(found))


def _shape(requests: PodRequest) -> PodRequest:
    """The requests without container names: equal for all pods that fit on the same nodes."""
    return tuple(replace(request, container="") for request in requests)


_SHOWN: Final = 5
"""Names in a line of the log."""

log = logging.getLogger(__name__)


def filter_(fit_cache: FitCache, body: bytes) -> bytes:
    """Answer ``filter``: which of the candidates have room for the pod."""
    args = decode_args(body)
    nodes, namespace = named_nodes(args), args.pod.metadata.namespace
    try:
        requests = requests_of(args.pod)
    except DriverError as error:
        # Given as the reason on every node: the pod's event shows it, and the scheduler waits for a change of the pod.
        found, requests = Filtered([], {}, dict.fromkeys(nodes, _sentence(error)), []), ()
    else:
        found = fit_cache.filter(nodes, requests, namespace) if requests else Filtered(list(nodes), {}, {}, [])
    _report(args, requests, found, len(nodes))
    if found.unjudged and not found.fitting:
        # An error, so that the scheduler retries the pod within seconds instead of minutes.
        return encode(FilterResult(error=_unfinished(found, len(nodes), namespace)))
    late = dict.fromkeys(found.unjudged, "There was no time to check the node")
    result = FilterResult(failed_nodes=found.failed | late, failed_and_unresolvable_nodes=found.lasting)
    if args.node_names is not None:
        result.node_names = found.fitting
    else:
        items: list[Any] = [nodes[name] for name in found.fitting]
        result.nodes = {"metadata": {}, "items": items}
    return encode(result)


def prioritize(fit_cache: FitCache, body: bytes) -> bytes:
    """Answer ``prioritize``: how well each of the candidates packs, 0 to 10."""
    args = decode_args(body)
    nodes = named_nodes(args)
    try:
        requests = requests_of(args.pod)
    except DriverError:
        requests = ()
    namespace = args.pod.metadata.namespace
    scores = fit_cache.scores(nodes, requests, namespace) if requests else [(name, 0) for name in nodes]
    return encode([HostPriority(name, score) for name, score in scores])


def preempt(fit_cache: FitCache, body: bytes) -> bytes:
    """Answer ``preempt``: which pods to evict for the pod, by node; nodes where that does not help are left out."""
    args = decode_preemption(body)
    proposed = proposed_victims(args)
    try:
        requests = requests_of(args.pod)
    except DriverError:
        return encode(PreemptionResult({}))
    if not requests:
        return encode(PreemptionResult(proposed))
    by_count = {name: [pod.uid for pod in item.pods or ()] for name, item in proposed.items()}
    meta = args.pod.metadata
    found = fit_cache.victims(by_count, requests, args.pod.spec.priority or 0, meta.namespace)
    log.info(
        "POD %s/%s may evict others in %d of %d nodes%s",
        *(meta.namespace, meta.name, len(found), len(proposed)),
        "".join(f"; {len(uids)} pods in {name}" for name, uids in list(found.items())[:_SHOWN]),
    )
    result = {name: MetaVictims([*map(MetaPod, uids)], proposed[name].violations) for name, uids in found.items()}
    return encode(PreemptionResult(result))


def bind_request(body: bytes) -> BindRequest:
    """Decode ``bind``."""
    args = decode_binding(body)
    return BindRequest(args.pod_namespace, args.pod_name, args.pod_uid, args.node)


def bind(binder: Binder, request: BindRequest) -> tuple[bytes, bool]:
    """Answer ``bind``: the answer, and whether the pod was bound. Waits for the API server."""
    try:
        binder.bind(request)
    except DriverError as error:
        return not_bound(request, error), False
    return encode(BindingResult()), True


def not_bound(request: BindRequest, error: DriverError) -> bytes:
    """Answer ``bind`` with an error."""
    log.warning("POD %s was not bound to Node:%s: %s", request.key, request.node, error)
    return encode(BindingResult(str(error)))


def _report(args: Args, requests: PodRequest, found: Filtered, candidates: int) -> None:
    """Log the facts of the vendor's log lines in one line."""
    if not log.isEnabledFor(logging.INFO):
        return
    meta = args.pod.metadata
    asked = ", ".join(f"{request.count} of {request.resource.value}" for request in requests[:_SHOWN])
    failed = found.failed | found.lasting
    reasons = {name: failed[name] for name in list(failed)[:_SHOWN]}
    log.info(
        "POD %s/%s (%s) fits in %d of %d nodes. Filtered nodes: %s%s. Failed nodes: %s%s. No time for %d",
        meta.namespace,
        meta.name,
        asked or "no Neuron resources that can be given",
        len(found.fitting),
        candidates,
        found.fitting[:_SHOWN],
        " and more" if len(found.fitting) > _SHOWN else "",
        reasons,
        " and more" if len(failed) > _SHOWN else "",
        len(found.unjudged),
    )


def _unfinished(found: Filtered, candidates: int, namespace: str) -> str:
    unjudged = len(found.unjudged)
    text = f"the pod fits on none of {candidates - unjudged} nodes, and there was no time to check {unjudged} others"
    if not found.overdrawn:
        return f"{text}; they are checked when the pod is retried"
    return (
        f"{text}: for the pods of namespace {namespace} the extender has used more than a tenth of its time; they are "
        "checked when the pod is retried later; give pods there fewer different requests for Neuron devices and cores"
    )


def _sentence(error: DriverError) -> str:
    text = str(error)
    return text[:1].upper() + text[1:]
