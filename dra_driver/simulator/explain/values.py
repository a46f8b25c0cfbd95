"""The content of an explanation. Texts are sentences without a full stop at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from dra_driver.kube.objects.resource import DeviceRequestAllocationResult
from dra_driver.simulator.allocator.requests import RequestAlternative
from dra_driver.simulator.explain.findings import DeviceFinding, State, choice
from dra_driver.util.text import shorten
from dra_driver.util.wording import are, named, natural, of_all

Kind = Literal["matchAttribute", "distinctAttribute"]
"""Kinds of constraints."""

Step = Literal["fits", "refused", "pod", "error", "unpublished", "pools", "devices", "constraint", "together"]
"""The step that decides about a node, in the order of evaluation:

* ``refused``: the claims fit, but the node's driver would refuse one;
* ``pod``: the pod cannot run there, whatever its claims are;
* ``error``: an error, which ends the scheduling of the pod on all nodes;
* ``unpublished``: no driver publishes devices for it; ``pools``: the published pools are not ready;
* ``devices``: one request has too few devices; ``constraint``: there are enough, but not under the constraint;
* ``together``: each request can be satisfied, but not all of them.
"""


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Devices of a node that have the same finding for a request."""

    devices: tuple[str, ...]
    state: State
    sentence: str
    selector: str = ""
    """The whole expression that is false or fails."""
    clause: str = ""
    """Its first clause that is false or fails."""
    saw: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """What the clause reads, and the distinct values that were found."""
    blockers: tuple[str, ...] = ()
    """Devices in use that have used up the shared counters that these consume."""


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request or subrequest on one node."""

    claim: str
    request: str
    wanted: int | None
    """None: all devices."""
    free: int
    total: int
    groups: tuple[DeviceGroup, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """Devices with one value of a constraint's attribute: how many there are, and how many are available now."""

    label: str
    devices: tuple[str, ...]
    free: tuple[str, ...]
    short: int
    """How many devices with the same value are missing; 0 for a constraint that requires distinct values."""


@dataclass(frozen=True, slots=True)
class ConstraintView:
    """A constraint that a node cannot satisfy."""

    kind: Kind
    attribute: str
    requests: tuple[str, ...]
    wanted: int
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result for one node. Nodes with equal diagnoses are described together."""

    step: Step
    sentence: str
    requests: tuple[RequestView, ...] = ()
    constraints: tuple[ConstraintView, ...] = ()
    short: int | None = None
    """How many more devices would suffice; None if the number is not the problem."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodesAlike:
    """Nodes with the same diagnosis, by name."""

    nodes: tuple[str, ...]
    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class Placed:
    """A claim's devices, allocated now or before."""

    namespace: str
    claim: str
    devices: tuple[DeviceRequestAllocationResult, ...]
    says: tuple[str, ...] = ()
    """What its status says of devices of this driver; devices of which it says the same are together."""
    well: bool = True
    """False: it says of one that it is not ready, or not healthy."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A claim that has devices because of which others cannot be had."""

    claim: str
    """``namespace/name``."""
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """A claim that a node's driver would refuse once its devices are allocated, and why."""

    claim: str
    """``namespace/name``."""
    reason: str

    @property
    def sentence(self) -> str:
        """That it would, and why."""
        return f"the node's driver would refuse claim {self.claim}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Trap:
    """A known trap that affects the claims; ``name`` is stable."""

    name: str
    sentence: str


_BESIDE_CLAIMS: Final = (
    "correct what kube-scheduler names beside the claims, such as volumes, other resources or ports of the pod; it "
    "tries again by itself when something changes, and every five minutes"
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether and where the claims of one pod fit, and if not, why not."""

    subject: str
    """What is explained, such as ``pod default/pod0``."""
    verdict: str
    fits: bool
    """Whether the claims fit, and the driver of the node would prepare them; no claim says that it is not well."""
    claims: tuple[str, ...] = ()
    node: str | None = None
    """Of the nodes where the scheduler finds devices, the one with the highest score, or the first by name."""
    could: tuple[str, ...] = ()
    """All fitting nodes."""
    placed: tuple[Placed, ...] = ()
    error: str = ""
    """The error that ends the scheduling of the pod, or ""."""
    nodes: tuple[NodesAlike, ...] = ()
    nearest: str = ""
    """The nearest miss; "" if the claims fit or no node is close."""
    remedies: tuple[str, ...] = ()
    traps: tuple[Trap, ...] = ()
    holders: tuple[Holder, ...] = ()
    """On the node of the nearest miss: who holds the devices that have used up shared counters."""
    refused: tuple[Refused, ...] = ()
    """What the driver of ``node`` would refuse."""
    warnings: tuple[str, ...] = ()
    """What the pod's containers say of their devices, and does not count there."""
    state: str = ""
    """How the pod is, as the cluster says it: a sentence; "" for what is in no cluster."""
    causes: tuple[str, ...] = ()
    """Why it is not well on its node."""
    evidence: tuple[Mapping[str, str | None], ...] = ()
    """What the cluster says of it that is not well, as documents."""
    bound: bool = False
    """Whether it has a node."""
    like: str = ""
    """An earlier subject with equal claims and the same explanation; "" for none."""

    def on_node(self, state: str, causes: tuple[str, ...], ways: tuple[str, ...]) -> Explanation:
        """The same of a pod that has a node, with how it is there; it is not fine while there are causes.

        Beside these, what its claims say of devices that are well may be old, and what was worked out of it does not
        matter any more: both are left out.
        """
        placed = tuple(replace(item, says=()) if causes and item.well else item for item in self.placed)
        return replace(
            self,
            state=state,
            bound=True,
            causes=causes,
            remedies=ways if causes else (*ways, *self.remedies),
            placed=placed,
            fits=self.fits and not causes,
        )

    def waiting(self, state: str, ways: tuple[str, ...], *, blocked: bool) -> Explanation:
        """The same of a pod that has no node, with what the cluster says of that.

        Args:
            state: why it has none.
            ways: what helps.
            blocked: whether it does not get its devices as long as this is so, whatever was worked out.
        """
        if not (blocked and self.fits):
            # Of a claim that is not there, nothing was worked out but that.
            worked_out = self.remedies if self.nodes or not ways else ()
            return replace(self, state=state, remedies=(*ways, *worked_out))
        verdict = f"{self.subject} waits, although its claims fit on node {self.node}"
        return replace(self, verdict=verdict, fits=False, state=state, remedies=ways or (_BESIDE_CLAIMS,))


def request_view(claim: str, option: RequestAlternative, findings: Sequence[DeviceFinding]) -> RequestView:
    """Summary of the findings about a node's devices for a request: free ones, others that match, and the rest."""
    groups: dict[tuple[object, ...], list[DeviceFinding]] = {}
    for item in findings:
        groups.setdefault((item.state, item.why, item.failed), []).append(item)
    ordered = sorted(groups.values(), key=lambda members: (members[0].state != "free", members[0].failed is not None))
    return RequestView(
        claim=claim,
        request=option.label,
        wanted=None if option.all_devices else option.count,
        free=sum(item.state == "free" for item in findings),
        total=len(findings),
        groups=tuple(_group(members, len(findings)) for members in ordered),
    )


def _group(members: Sequence[DeviceFinding], total: int) -> DeviceGroup:
    first = members[0]
    names = tuple(item.device for item in members)
    devices = of_all(len(members), total)
    if 1 < total != len(members):
        devices += f" ({named(names)})"
    if first.failed is None:
        blockers = tuple(natural({name for item in members for name in item.blockers}))
        verb = are(len(members))
        obstacle = {"in use": f"{verb} in use", "node": f"{verb} for other nodes"}.get(first.state, first.why)
        if blockers:
            obstacle += f": {named(blockers)}"
        sentence = f"{devices} would match, but {obstacle}"
        if first.state == "free":
            sentence = f"{devices} {verb} free and match{'es' if verb == 'is' else ''}"
        return DeviceGroup(names, first.state, sentence, blockers=blockers)
    read = saw(members)
    values = "; ".join(f"{text} is {choice(values)}" for text, values in read)
    busy = sum(item.in_use for item in members)
    clause, whose = clause_text(first.failed.clause), owner(first.failed.place)
    if first.failed.error:
        sentence = f"on {devices} {clause} fails ({first.failed.error})"
        extra = f"; {busy} of them {are(busy)} in use, and skipped by the search" if busy else ""
    else:
        sentence = f"{devices} {are(len(members), 'does', 'do')} not match: {clause} is false"
        extra = f"; {busy} of them {are(busy)} also in use" if busy else ""
    sentence += (f", as {values}" if values else "") + f" ({whose})" + extra
    return DeviceGroup(names, first.state, sentence, first.failed.expression, first.failed.clause, read)


def saw(members: Sequence[DeviceFinding]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Everything that was read, with the distinct values in the order of the devices."""
    merged: dict[str, dict[str, None]] = {}
    for item in members:
        for text, value in item.saw:
            merged.setdefault(text, {})[value] = None
    return tuple((text, tuple(values)) for text, values in merged.items())


def clause_text(clause: str) -> str:
    """A clause for use within a sentence."""
    text = " ".join(clause.split())
    return f"`{shorten(text, _MAX_CLAUSE_LENGTH, keep=_MAX_CLAUSE_LENGTH)}`"


_MAX_CLAUSE_LENGTH = 160


def owner(place: str) -> str:
    """The origin of a selector in words: that of ``class a: selector #1``, or the current request's own."""
    holder, _, number = place.rpartition(": selector #")
    return f"selector {int(number) + 1} of {holder if holder.startswith('class ') else 'the request'}"
