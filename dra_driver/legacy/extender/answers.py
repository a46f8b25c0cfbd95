"""Answers to the scheduler's four questions, from bytes to bytes; what cannot be read is a DriverError."""

from __future__ import annotations

import logging
from typing import Any, Final

from dra_driver.legacy.demand import Demand
from dra_driver.legacy.extender.binding import Binder, Order
from dra_driver.legacy.extender.objects import wanted
from dra_driver.legacy.extender.verdicts import Filtered, Verdicts
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
)
from dra_driver.util.errors import DriverError

_SHOWN: Final = 5
"""Names in a line of the log."""

log = logging.getLogger(__name__)


def filter_(verdicts: Verdicts, body: bytes) -> bytes:
    """Which of the candidates have room for the pod."""
    args = decode_args(body)
    nodes = named_nodes(args)
    try:
        wants = wanted(args.pod)
    except DriverError as error:
        # As a reason on every node: the pod's event shows it, and the scheduler waits for a change of the pod.
        found, wants = Filtered([], {}, dict.fromkeys(nodes, _sentence(error)), []), ()
    else:
        found = verdicts.filter(nodes, wants) if wants else Filtered(list(nodes), {}, {}, [])
    _report(args, wants, found, len(nodes))
    if found.unjudged and not found.fitting:
        # An error, not a verdict: the scheduler tries a pod again within seconds then, and else after minutes.
        return encode(FilterResult(error=_unfinished(len(found.unjudged), len(nodes))))
    late = dict.fromkeys(found.unjudged, "There was no time to look at the node")
    result = FilterResult(failed_nodes=found.failed | late, failed_and_unresolvable_nodes=found.lasting)
    if args.node_names is not None:
        result.node_names = found.fitting
    else:
        items: list[Any] = [nodes[name] for name in found.fitting]
        result.nodes = {"metadata": {}, "items": items}
    return encode(result)


def prioritize(verdicts: Verdicts, body: bytes) -> bytes:
    """How well each of the candidates packs, 0 to 10."""
    args = decode_args(body)
    nodes = named_nodes(args)
    try:
        wants = wanted(args.pod)
    except DriverError:
        wants = ()
    scores = verdicts.scores(nodes, wants) if wants else [(name, 0) for name in nodes]
    return encode([HostPriority(name, score) for name, score in scores])


def preempt(verdicts: Verdicts, body: bytes) -> bytes:
    """Which pods to evict for the pod, by node; nodes where that does not help are left out."""
    args = decode_preemption(body)
    proposed = proposed_victims(args)
    try:
        wants = wanted(args.pod)
    except DriverError:
        return encode(PreemptionResult({}))
    if not wants:
        return encode(PreemptionResult(proposed))
    by_count = {name: [pod.uid for pod in item.pods or ()] for name, item in proposed.items()}
    found = verdicts.victims(by_count, wants, args.pod.spec.priority or 0)
    meta = args.pod.metadata
    log.info(
        "POD %s/%s may evict others in %d of %d nodes%s",
        *(meta.namespace, meta.name, len(found), len(proposed)),
        "".join(f"; {len(uids)} pods in {name}" for name, uids in list(found.items())[:_SHOWN]),
    )
    result = {name: MetaVictims([*map(MetaPod, uids)], proposed[name].violations) for name, uids in found.items()}
    return encode(PreemptionResult(result))


def bind(binder: Binder, body: bytes) -> tuple[bytes, bool]:
    """Bind the pod and choose its devices: the answer, and whether it was done. Waits for the API server."""
    args = decode_binding(body)
    order = Order(args.pod_namespace, args.pod_name, args.pod_uid, args.node)
    try:
        binder.bind(order)
    except DriverError as error:
        log.warning("POD %s was not bound to Node:%s: %s", order.key, order.node, error)
        return encode(BindingResult(str(error))), False
    return encode(BindingResult()), True


def _report(args: Args, wants: Demand, found: Filtered, candidates: int) -> None:
    """The facts of the vendor's log lines, in one line."""
    if not log.isEnabledFor(logging.INFO):
        return
    meta = args.pod.metadata
    asked = ", ".join(f"{want.count} of {want.resource.value}" for want in wants[:_SHOWN])
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


def _unfinished(unjudged: int, candidates: int) -> str:
    return (
        f"the pod fits on none of {candidates - unjudged} nodes, and there was no time to look at {unjudged} others; "
        "they are looked at when it is tried again"
    )


def _sentence(error: DriverError) -> str:
    text = str(error)
    return text[:1].upper() + text[1:]
