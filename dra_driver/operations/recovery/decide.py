"""The decision: what is done next to which node, and why the others wait. Values in, values out.

Nodes of one UltraServer are one unit, acted on together or not at all, if each of them says so; any other node is a
unit by itself. A unit that has begun goes on whatever the budgets say, step by step, and all of its nodes finish a step
before any takes the next one. Nodes that have not begun need room: in the cluster, in their node groups, and in time.

What a node says of itself, true or not, has consequences for that node alone, and for the other nodes of its server
only if each of them has named that server since before the fault and for long, and says that it is linked with all of
it. Where more nodes name a server than it can have, each of them is a unit by itself; one that came to name it after
its fault waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from msgspec import structs

from dra_driver.kube.objects.meta import timestamp
from dra_driver.neuron.health.faults import FAULTS, REMEDIES
from dra_driver.neuron.names import NODES_OF
from dra_driver.operations.recovery.nodes import MARK, MAX_HOOK_TRIES, Mark, NeuronNode
from dra_driver.operations.recovery.policy import HARMLESS, STEPS, Policy, Step
from dra_driver.util.text import first_of

Kind = Literal["begin", "drain", "request", "hook", "replace", "undo"]
Reason = Literal[
    "persist", "unknown", "budget", "pause", "not-ready", "deleting", "cordoned", "others", "aws", "mark",
    "handed-back", "server", "instance", "remedy", "refused", "drain",
]  # fmt: skip
"""Why a node waits; also a label of the metric."""

ON_MACHINES: Final[frozenset[Kind]] = frozenset({"hook", "replace"})
"""Actions on the machine that the node's provider id names; all others are on the Node, which is known by its name."""
DOUBT_REMEDY: Final = "delete the Node that is not there any more, or find out who registered with another's machine"
MEMBER_SECONDS: Final = 3600
"""How long a leader must have seen each node of a server name it before they are begun together. What the others say of
their links may be old for a while after a node has gone, and whoever takes its place then could have them drained."""
HOOK_PAUSE: Final = 30
"""Seconds after the first failure of the hook; doubles with each one."""
HOOK_PAUSE_MOST: Final = 3600


@dataclass(frozen=True, slots=True)
class Action:
    """One step for one node."""

    kind: Kind
    node: NeuronNode
    mark: Mark
    """As it is written when the step is done (undo: as it is on the node)."""
    text: str
    """What is done and why, for an Event."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A node for which nothing is done now, though there would be something to do."""

    node: NeuronNode
    reason: Reason
    text: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Actions in the order in which they are carried out, and who waits for what."""

    actions: tuple[Action, ...] = ()
    waits: tuple[Wait, ...] = ()


@dataclass(frozen=True, slots=True)
class Lead:
    """The fault that decides what is done to a unit."""

    code: str
    node: NeuronNode
    steps: tuple[Step, ...]
    since: float

    @property
    def text(self) -> str:
        """Fault and place; the same for as long as it lasts."""
        chips = ", ".join(f"neuron{chip}" for chip in self.node.chips.get(self.code, ()))
        where = " of ".join(part for part in (chips, self.node.name) if part)
        return f"{self.code} on {where}, seen since {timestamp(self.since)}: {FAULTS[self.code].text}"


def decide(nodes: Sequence[NeuronNode], last: float, policy: Policy, now: float, *, hook: bool = False) -> Decision:
    """What is to be done now. Times are of one clock that never jumps.

    Args:
        nodes: all nodes with Neuron devices, as they are now.
        last: when a node was last begun or finished, or the leader's term began.
        policy: the settings.
        now: the time.
        hook: whether there is a hook.
    """
    room = Room(nodes, policy)
    found: list[Action | Wait] = []
    candidates: list[tuple[tuple[NeuronNode, ...], Lead]] = []
    for unit in units(nodes, policy):
        if any(node.mark for node in unit):
            due = list(_go_on(unit, room, policy, now, hook))
            found += due
            if late := [Wait(node, "drain", _long(policy)) for node in unit if _drains_long(node, due, policy, now)]:
                found += late
                room.leave(unit)
        elif lead := lead_of(unit, policy, now):
            candidates.append((unit, lead))
        else:
            found += _not_yet(unit, policy)
    candidates.sort(key=lambda item: (*(-rank for rank in _strength(item[1])), item[1].since, item[1].node.name))
    found += _begin(candidates, room, last, policy, now)
    actions = tuple(one for one in found if isinstance(one, Action))
    return Decision(actions, tuple(one for one in found if isinstance(one, Wait)))


def units(nodes: Iterable[NeuronNode], policy: Policy) -> Iterator[tuple[NeuronNode, ...]]:
    """The nodes that are acted on together: those that were begun so, those of a server that all agree on, or one."""
    found: dict[str, list[NeuronNode]] = {}
    by_label: dict[str, list[NeuronNode]] = {}
    for node in sorted(nodes, key=lambda node: node.name):
        unit = node.mark.unit if node.mark else node.unit
        found.setdefault(unit if _size(unit) else node.name, []).append(node)
        by_label.setdefault(node.unit, []).append(node)
    for name, group in sorted(found.items()):
        if not _size(name):
            yield from ((node,) for node in group)
            continue
        # Also those that were begun alone: nobody else comes into the place of one.
        claimants = by_label.get(name, [])
        if group == claimants and _agreed(name, group, policy):
            yield tuple(group)
            continue
        begun = tuple(node for node in group if node.mark)
        if len(begun) > _size(name):  # a mark is an annotation, which a node may write on itself
            begun = tuple(node for node in begun if node.unit == name)
        together = begun if len(begun) <= _size(name) else ()
        if together:
            yield together
        dispute = _dispute(name, max(claimants, begun, key=len))
        for node in group:
            if node not in together:
                stands = node.mark is None and _stands(name, node, policy)
                yield (node if stands else replace(node, dispute=dispute),)


def disputes(nodes: Sequence[NeuronNode]) -> Counter[str]:
    """How many nodes name a server that too many name, and a machine that may not be theirs."""
    counts = Counter(node.unit for node in nodes if _is_server(node.unit))
    too_many = (count for unit, count in counts.items() if count > _size(unit))
    return Counter(server=sum(too_many), instance=sum(bool(node.doubt) for node in nodes))


def _size(unit: str) -> int:
    """How many nodes an UltraServer has; 0 for what names none."""
    return NODES_OF.get(unit.partition("=")[0], 0)


def _is_server(unit: str) -> bool:
    """Whether a label's value is the id of an UltraServer."""
    return bool(_size(unit) and unit.partition("=")[2].strip("0"))


def _dispute(unit: str, claimants: Sequence[NeuronNode]) -> str:
    """Why the nodes that name an UltraServer make none, if there are others or the id means none."""
    label, _, server = unit.partition("=")
    if not _is_server(unit):
        return f"its label {label} is {server}, which is the id of no server"
    if len(claimants) > _size(unit):
        names = first_of([node.name for node in claimants], NODES_OF[label] + 1)
        return f"{len(claimants)} nodes have the label {unit}, which {_size(unit)} share at most: {names}"
    return ""


def _stands(unit: str, node: NeuronNode, policy: Policy) -> bool:
    """Whether a node is acted on by itself though others dispute its server: it named the server before its fault."""
    return _is_server(unit) and node.server_since <= _first_fault([node], policy)


def _agreed(unit: str, group: Sequence[NeuronNode], policy: Policy) -> bool:
    """Whether the nodes are a unit: each had named the same, whole server before one of them had a fault."""
    if len(group) != _size(unit) or not _is_server(unit):
        return False
    first = _first_fault(group, policy)
    return all(node.linked and node.joined <= first for node in group)


def _first_fault(nodes: Sequence[NeuronNode], policy: Policy) -> float:
    return min((lead.since for lead in _wanted(nodes, policy)), default=float("inf"))


def lead_of(unit: Sequence[NeuronNode], policy: Policy, now: float) -> Lead | None:
    """The fault of the unit that has lasted long enough and has the strongest steps."""
    lasting = [lead for lead in _wanted(unit, policy) if now - lead.since >= policy.persist_seconds]
    order = {code: place for place, code in enumerate(FAULTS)}
    return max(lasting, key=lambda lead: (*_strength(lead), -order[lead.code]), default=None)


def out_of_use(node: NeuronNode, policy: Policy) -> bool:
    """Whether the node counts against the budgets: acted on, or not available for another reason."""
    return _foreign(node, policy) is not None or (node.mark is not None and not _handed_back(node))


def group_limits(nodes: Iterable[NeuronNode], policy: Policy) -> Mapping[str, int]:
    """Node group to the nodes of it that may be out of use at once."""
    sizes = Counter(node.group for node in nodes)
    return {group: max(1, size * policy.max_percent_of_group // 100) for group, size in sizes.items()}


class Room:
    """How many more nodes may be taken out of use; each node counts, also where several are one unit."""

    def __init__(self, nodes: Sequence[NeuronNode], policy: Policy) -> None:
        self._policy = policy
        self._limits = group_limits(nodes, policy)
        self._busy = {node.name: node.group for node in nodes if out_of_use(node, policy)}

    def take(self, unit: Iterable[NeuronNode]) -> None:
        """Count these as out of use."""
        self._busy |= {node.name: node.group for node in unit}

    def leave(self, unit: Iterable[NeuronNode]) -> None:
        """Count these no longer."""
        for node in unit:
            self._busy.pop(node.name, None)

    def lacks(self, unit: Sequence[NeuronNode]) -> str:
        """Why not all of these may be out of use now, or ""."""
        if text := _exceeded(unit, self._busy, self._policy.max_at_once, "", "maxAtOnce"):
            return text
        for group in sorted({node.group for node in unit}):
            part = [node for node in unit if node.group == group]
            here = [name for name, its in self._busy.items() if its == group]
            whose = f" of the node group {group or 'without a name'} ({self._policy.max_percent_of_group} %)"
            if text := _exceeded(part, here, self._limits[group], whose, "maxPercentOfGroup"):
                return text
        return ""


def _exceeded(unit: Sequence[NeuronNode], busy: Iterable[str], most: int, whose: str, setting: str) -> str:
    names = {node.name for node in unit}
    others = sorted(set(busy) - names)
    if len(names) + len(others) <= most:
        return ""
    parts = [f"its UltraServer has {len(names)} nodes"] if len(names) > 1 else []
    parts += [f"{first_of(others, 4)} {'is' if len(others) == 1 else 'are'} out of use"] if others else []
    return f"{'; '.join(parts)}, and at most {most}{whose} may be out of use at once ({setting})"


def _wanted(unit: Sequence[NeuronNode], policy: Policy) -> Iterator[Lead]:
    """The faults about which the policy says something. What a node says that is not Ready is old."""
    for node in unit:
        for code, since in node.faults.items():
            if node.ready and (steps := policy.steps(code)):
                yield Lead(code, node, steps, since)


def _strength(lead: Lead) -> tuple[int, int]:
    return tuple(STEPS).index(lead.steps[-1]), tuple(REMEDIES).index(FAULTS[lead.code].remedy)


# Units that have not begun


def _not_yet(unit: Sequence[NeuronNode], policy: Policy) -> Iterator[Wait]:
    for node in unit:
        soonest = min((lead.since for lead in _wanted([node], policy)), default=None)
        if soonest is not None:
            due = timestamp(soonest + policy.persist_seconds)
            yield Wait(node, "persist", f"it has been unhealthy for a short time; if it stays so, it is due at {due}")


def _begin(
    candidates: Sequence[tuple[tuple[NeuronNode, ...], Lead]],
    room: Room,
    last: float,
    policy: Policy,
    now: float,
) -> Iterator[Action | Wait]:
    for unit, lead in candidates:
        if blocked := next(_obstacles(unit, policy), None):
            yield Wait(lead.node, *blocked)
        elif early := _too_early(unit, now):
            yield Wait(lead.node, *early)
        elif trouble := room.lacks(unit):
            yield Wait(lead.node, "budget", trouble)
        elif now - last < policy.pause_seconds:
            due = timestamp(last + policy.pause_seconds)
            text = f"a node was acted on, or this replica took over, a short time ago; it is due at {due}"
            yield Wait(lead.node, "pause", text)
        else:
            yield from (_first(node, unit, lead, now) for node in unit)
            room.take(unit)
            last = now


def _first(node: NeuronNode, unit: Sequence[NeuronNode], lead: Lead, now: float) -> Action:
    # Marked even if nothing is cordoned or tainted: the mark is what a successor goes on from.
    did = tuple(step for step in HARMLESS if step in lead.steps)
    server = lead.node.unit if len(unit) > 1 else ""
    mark = Mark(lead.code, lead.node.name, int(now), did, since=int(lead.since), unit=server)
    return Action("begin", node, mark, f"{plan(lead)} ({lead.text})")


def plan(lead: Lead) -> str:
    """All steps for a fault in one clause, for people."""
    words = {"request": f"request {FAULTS[lead.code].remedy}", "replace": "replace the instance"}
    return ", ".join(words.get(step, step) for step in lead.steps)


def _obstacles(unit: Sequence[NeuronNode], policy: Policy) -> Iterator[tuple[Reason, str]]:
    """Why nothing may be done to the unit, whatever the budgets say."""
    for node in unit:
        if found := _foreign(node, policy):
            reason, text = found
            yield reason, f"{node.name} {text}"
        if node.refused:
            yield "refused", f"{node.name} cannot be changed: {node.refused}"
        if node.dispute:
            yield "server", f"{node.name} is left alone until its labels are right: {node.dispute}"


def _too_early(unit: Sequence[NeuronNode], now: float) -> tuple[Reason, str] | None:
    """Why nodes of a server are not begun together yet."""
    latest = max(unit, key=lambda node: node.server_since)
    due = latest.server_since + MEMBER_SECONDS
    if len(unit) == 1 or now >= due:
        return None
    what = f"the nodes of {latest.unit} are acted on together, and {latest.name} has named it for a short time"
    return "server", f"{what}; they are due at {timestamp(due)}"


def _foreign(node: NeuronNode, policy: Policy) -> tuple[Reason, str] | None:
    """Why a node is none of our business now."""
    ours = node.mark is not None and "cordon" in node.mark.did
    rows: tuple[tuple[bool, Reason, str], ...] = (
        (node.illegible, "mark", f"has an annotation {MARK} that cannot be read; it is left alone until you remove it"),
        (node.deleting, "deleting", "is being deleted"),
        (bool(node.others), "others", f"is left alone: {node.others}"),
        (policy.leave_to_aws and node.agent, "aws", "is left to EKS: its node monitoring agent reports it too"),
        (node.cordoned and not ours, "cordoned", "was cordoned by someone else; it is left alone until uncordoned"),
        (not node.ready, "not-ready", "is not Ready, so the state of its chips is outdated"),
    )
    return next(((reason, text) for is_so, reason, text in rows if is_so), None)


# Units that have begun


def _go_on(unit: Sequence[NeuronNode], room: Room, policy: Policy, now: float, hook: bool) -> Iterator[Action | Wait]:
    marked = [(node, node.mark) for node in unit if node.mark]
    if _is_over(unit, policy, now):
        text = "what was done to the node is undone: its fault is over"
        yield from (Action("undo", node, mark, text) for node, mark in marked)
        return
    lead = lead_of(unit, policy, now)
    why: tuple[Reason, str]
    if held := _held(unit, room, policy, now):
        why = held
    elif lead is None:
        why = "unknown", "nothing more is done until the node reports whether its fault is over or continues"
    elif steps := _next_steps(unit, lead, now, hook):
        doubt = next((f"{node.name} may not be its own: {node.doubt}" for node in unit if node.doubt), "")
        if not doubt or steps[0].kind not in ON_MACHINES:
            yield from steps
            return
        why = "instance", f"no hook is called and no instance replaced, since the machine of {doubt}; {DOUBT_REMEDY}"
    else:
        why = "remedy", f"all steps are done; it is undone when the fault is over ({lead.text})"
    yield from (Wait(node, *why) for node, _ in marked)


def _is_over(unit: Sequence[NeuronNode], policy: Policy, now: float) -> bool:
    """Whether no node of the unit has a fault any more about which the policy says something."""
    for node in unit:
        doubtful = node.verdict == "unknown" or not node.ready or node.illegible or bool(node.dispute)
        if doubtful or node.deleting or node.others:
            return False
        if node.verdict == "well" and now - node.since < policy.healthy_seconds:
            return False
    return not any(_wanted(unit, policy))


def _held(unit: Sequence[NeuronNode], room: Room, policy: Policy, now: float) -> tuple[Reason, str] | None:
    for node in unit:
        if _handed_back(node):
            return "handed-back", f"{node.name} was uncordoned or untainted by somebody else; it is left alone"
    if blocked := next(_obstacles(unit, policy), None):
        return blocked
    if all(node.mark for node in unit):
        return None
    # Nodes that a leader has not come to mark; whoever forges a mark does not get around anything with it.
    if early := _too_early(unit, now):
        return early
    trouble = room.lacks(unit)
    return ("budget", trouble) if trouble else None


def _handed_back(node: NeuronNode) -> bool:
    did = node.mark.did if node.mark else ()
    return ("cordon" in did and not node.cordoned) or ("taint" in did and not node.tainted)


def _next_steps(unit: Sequence[NeuronNode], lead: Lead, now: float, hook: bool) -> Sequence[Action]:
    """The steps that are due, all of one kind: no node is ahead of the others of its unit."""
    if late := [action for node in unit if (action := _catch_up(node, unit, lead, now))]:
        return late
    marked = [(node, node.mark) for node in unit if node.mark]
    remedy, why = FAULTS[lead.code].remedy, f"({lead.text})"
    if "drain" in lead.steps and (due := [(node, mark) for node, mark in marked if not mark.drained]):
        drained = [(node, structs.replace(mark, drained=int(now))) for node, mark in due]
        return [Action("drain", node, mark, f"its pods are evicted {why}") for node, mark in drained]
    if "request" in lead.steps:
        # The hook is told no fault that is not in the table: a node may have written its mark itself.
        if due := [
            (node, mark)
            for node, mark in marked
            if not mark.requested or mark.action != remedy or mark.fault not in FAULTS
        ]:
            told = f"{remedy} is requested: {REMEDIES[remedy]} {why}"
            return [Action("request", node, _requested(mark, lead, now), told) for node, mark in due]
        # A hook that fails can keep the instances from being replaced.
        if hook and (due := [(node, mark) for node, mark in marked if not mark.hook_done]):
            ready = [(node, mark) for node, mark in due if not now < mark.hook_next <= now + HOOK_PAUSE_MOST]
            return [Action("hook", node, mark, f"the hook is told to {mark.action} {why}") for node, mark in ready]
    if "replace" in lead.steps:
        due = [(node, structs.replace(mark, replaced=int(now))) for node, mark in marked if not mark.replaced]
        return [Action("replace", node, mark, f"the instance is replaced {why}") for node, mark in due]
    return ()


def _drains_long(node: NeuronNode, due: Iterable[Action | Wait], policy: Policy, now: float) -> bool:
    """Whether the node's pods are evicted, and have been for so long that no other node waits for this one."""
    drains = any(isinstance(one, Action) and one.kind == "drain" and one.node.name == node.name for one in due)
    return drains and drain_is_long(node, policy, now)


def drain_is_long(node: NeuronNode, policy: Policy, now: float) -> bool:
    """Whether this leader has evicted the node's pods for longer than the policy says."""
    return node.drains_since is not None and now - node.drains_since >= policy.drain_seconds


def _long(policy: Policy) -> str:
    why = "a disruption budget, a finalizer, a webhook"
    what = f"its drain is not over after {policy.drain_seconds} s (drainSeconds)"
    return f"{what}. It goes on, but keeps no other node waiting. Find out why its pods do not leave: {why}"


def _catch_up(node: NeuronNode, unit: Sequence[NeuronNode], lead: Lead, now: float) -> Action | None:
    """For nodes of a unit that a leader has begun and not finished marking, or whose fault got worse."""
    first = _first(node, unit, lead, now)
    if node.mark is None:
        return first
    if set(first.mark.did) <= set(node.mark.did):
        return None
    did = tuple(step for step in HARMLESS if step in (*node.mark.did, *first.mark.did))
    return Action("begin", node, structs.replace(node.mark, did=did), first.text)


def _requested(mark: Mark, lead: Lead, now: float) -> Mark:
    return structs.replace(
        mark, fault=lead.code, node=lead.node.name, since=int(lead.since), requested=int(now),
        action=FAULTS[lead.code].remedy, hook_done=0, hook_tries=0, hook_next=0,
    )  # fmt: skip


def after_hook(mark: Mark, *, succeeded: bool, now: float) -> Mark:
    """The mark after a call of the hook."""
    if succeeded:
        return structs.replace(mark, hook_done=int(now))
    pause = min(HOOK_PAUSE * 2 ** min(mark.hook_tries, 10), HOOK_PAUSE_MOST)
    return structs.replace(mark, hook_tries=min(mark.hook_tries + 1, MAX_HOOK_TRIES), hook_next=int(now) + pause)
