"""What an explanation says, as values. The texts in them are sentences without a full stop at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dra_driver.simulator.explain.findings import State
from dra_driver.simulator.objects import AllocatedDevice

Kind = Literal["matchAttribute", "distinctAttribute"]
"""Kinds of constraints."""

Step = Literal["fits", "pod", "error", "unpublished", "pools", "devices", "constraint", "together"]
"""What decides about a node, in the order in which it is looked at:

* ``pod``: the pod does not go there whatever its claims say;
* ``error``: an error, which ends the scheduling of the pod on all nodes;
* ``unpublished``: no driver publishes devices for it; ``pools``: those that do are not ready;
* ``devices``: one request has too few devices; ``constraint``: enough of them, but not in the constraint's sense;
* ``together``: each request can be satisfied, but not all of them.
"""


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Devices of a node about which a request has the same to say."""

    devices: tuple[str, ...]
    state: State
    sentence: str
    selector: str = ""
    """The whole expression that is false or fails."""
    clause: str = ""
    """Its first clause that is."""
    saw: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """What the clause reads, and the different values it had."""


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request, or a sub-request, on one node."""

    claim: str
    request: str
    wanted: int | None
    """None: all devices."""
    free: int
    total: int
    groups: tuple[DeviceGroup, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """Devices with one value of a constraint's attribute: how many there are, how many could be had now."""

    label: str
    devices: tuple[str, ...]
    free: tuple[str, ...]
    short: int
    """How many are missing for devices with the same value; 0 where they have to differ."""


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
    """One node. Equal diagnoses are the same thing to say of several nodes."""

    step: Step
    sentence: str
    requests: tuple[RequestView, ...] = ()
    constraints: tuple[ConstraintView, ...] = ()
    short: int | None = None
    """How many devices more would do; None when that is not a matter of number."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodesAlike:
    """Nodes with the same diagnosis, by name."""

    nodes: tuple[str, ...]
    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class Placed:
    """What a claim gets, or has."""

    namespace: str
    claim: str
    devices: tuple[AllocatedDevice, ...]


@dataclass(frozen=True, slots=True)
class Trap:
    """A known trap that the claims walk into; ``name`` is stable."""

    name: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether the claims of one pod fit, where, and if not, why not."""

    subject: str
    """What is explained, such as ``pod default/pod0``."""
    claims: tuple[str, ...]
    fits: bool
    node: str | None
    """Of the nodes that would do, the one with the highest score, or the first by name."""
    could: tuple[str, ...]
    """All nodes that would."""
    placed: tuple[Placed, ...]
    verdict: str
    error: str
    """What ends the scheduling of the pod, "" when nothing does."""
    nodes: tuple[NodesAlike, ...]
    nearest: str
    """The nearest miss, "" when it fits or no node is near."""
    remedies: tuple[str, ...]
    traps: tuple[Trap, ...]
    like: str = ""
    """An earlier subject with equal claims, of which everything said here was found; "" for none."""
