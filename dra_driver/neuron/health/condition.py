"""The Node's conditions. ``NeuronHealth``: what a node's health is in one, and what such a condition says of the chips.

Type and reasons are those of AWS's node problem detector (aws-neuron-sdk, ``src/k8/neuron-problem-detector``), so what
watches for its conditions finds ours. Two things differ: the condition is cleared when the fault is over, and the
message names each chip with its faults, as in ``neuron3: sram-uncorrectable; neuron5: heartbeat-stalled``.

The others (``OfferProblem``) say why a node does not offer what is expected of it, and are there only while that is so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from dra_driver.kube.objects.meta import Condition
from dra_driver.neuron.health.faults import FAULTS, ActiveFault, ChipHealth, NodeHealth, gravity, in_order
from dra_driver.neuron.host.findings import LOAD_DRIVER

TYPE: Final = "NeuronHealth"
HEALTHY_REASON: Final = "NeuronHasNoError"
"""Of status False, and of the Event about a fault that is over."""
HEALTHY_MESSAGE: Final = "Neuron has no error"
MAX_MESSAGE_BYTES: Final = 1024
"""Room for 16 chips with two faults each."""

_STATUS: Final = {"unhealthy": "True", "unknown": "Unknown"}
"""Status by the state of the gravest fault; all others are False."""
_CODES: Final = r"[a-z0-9-]+(?:, [a-z0-9-]+)*"
_CHIP: Final = re.compile(rf"neuron(0|[1-9][0-9]{{0,2}}): ({_CODES})", re.ASCII)
_MORE: Final = re.compile(r"and [1-9][0-9]{0,2} more", re.ASCII)


@dataclass(frozen=True, slots=True)
class OfferProblem:
    """A reason why a node does not offer what is expected of it."""

    type: str
    """Of its condition, which has status True."""
    reason: str
    """Of its condition and of its Event."""
    subject: str
    """What is in the way, in the names of the condition's field manager and of the Event."""


KUBELET: Final = OfferProblem("NeuronKubeletUnsupported", "KubeletStopsCallingDrivers", "kubelet")
DEVICE_PLUGIN: Final = OfferProblem("NeuronDevicesHeldBack", "DevicePluginHasDevices", "device-plugin")
KERNEL_DRIVER: Final = OfferProblem("NeuronDriverNotLoaded", "KernelDriverNotLoaded", "kernel-driver")
PARTITIONS: Final = OfferProblem("NeuronPartitionsInvalid", "PartitionsLabelInvalid", "partitions")
PROBLEMS: Final = (KUBELET, DEVICE_PLUGIN, KERNEL_DRIVER, PARTITIONS)
NOT_LOADED_MESSAGE: Final = (
    "the Neuron kernel driver is not loaded; until it is loaded, no chip is offered, and the chips' health is not "
    "known; " + LOAD_DRIVER
)
STOPPED_REASON: Final = "NeuronDriverStopped"
"""Of the last word of a program that nobody has succeeded."""

_UNREAD: Final = {
    STOPPED_REASON: "the driver of this node has stopped, so nothing watches the chips",
    KERNEL_DRIVER.reason: NOT_LOADED_MESSAGE,
}
"""Why the chips are not read, by the reason of ``NeuronHealth``; ``_BEFORE`` and what is known from before follow."""
_BEFORE: Final = "; before: "


def message_of(problem: OfferProblem, conditions: Iterable[Condition]) -> str:
    """What the Node's conditions say of it, or ""."""
    return next((item.message for item in conditions if item.type == problem.type and item.status == "True"), "")


def condition(health: NodeHealth) -> Condition:
    """The condition that says so; without times.

    True with the gravest fault's reason while a chip is unhealthy. Otherwise Unknown while the host does not tell the
    health of a chip, for unknown is not healthy; else False, while chips are degraded too. That the kernel driver is
    not loaded stands in place of the chips.
    """
    sick = _sick(health)
    gravest = sick[0].own[0].fault if sick else None
    status = _STATUS.get(gravest.severity, "False") if gravest else "False"
    if health.not_loaded and status != "True":
        return _unread(KERNEL_DRIVER.reason, message(health) if sick else "")
    reason = gravest.reason if gravest and status != "False" else HEALTHY_REASON
    return Condition(TYPE, status, reason, message(health))


def stopped(health: NodeHealth) -> Condition:
    """The condition that nobody looks after the chips any more; without times."""
    return _unread(STOPPED_REASON, condition(health).message)


def message(health: NodeHealth) -> str:
    """The chips with their faults, the gravest first, in at most ``MAX_MESSAGE_BYTES`` bytes of ASCII.

    What does not fit is left out by whole chips, and ``and N more`` says how many.
    """
    parts = [f"neuron{chip.index}: {', '.join(fault.code for fault in chip.own)}" for chip in _sick(health)]
    for count in range(len(parts), 0, -1):
        more = [f"and {len(parts) - count} more"] if count < len(parts) else []
        text = "; ".join([*parts[:count], *more])
        if len(text) <= MAX_MESSAGE_BYTES:
            return text
    return f"{len(parts)} chips have faults" if parts else HEALTHY_MESSAGE


def parse(reason: str, text: str) -> Mapping[int | None, tuple[str, ...]]:
    """Codes of the faults by chip that a condition of this type names; {} when it names none.

    Whoever may write the Node's status chooses both arguments. Only what ``condition`` writes is taken for a message
    of this driver. Of any other, such as that of AWS's detector, the reason alone counts, under the key None: the chip
    is not known. Where several faults have a reason, it is the one that rests on the weakest source, for the detector
    reads the kernel log. A message that was cut names the chips that it names; one that they are not read, those that
    had faults before.
    """
    if reason in _UNREAD:
        for unread in _UNREAD.values():
            text = text.removeprefix(unread + _BEFORE)
    named = dict(_chips(text)) if len(text) <= MAX_MESSAGE_BYTES else {}
    if named and (reason in _UNREAD or _agree(reason, named)):
        return named
    codes = [code for code, row in FAULTS.items() if row.reason == reason]
    return {None: (min(codes, key=lambda code: FAULTS[code].strongest != "NoSchedule"),)} if codes else {}


def written_here(reason: str, text: str) -> bool:
    """Whether the message is one that ``condition`` or ``stopped`` writes with this reason."""
    for unread in _UNREAD.values() if reason in _UNREAD else ():
        text = text.removeprefix(unread).removeprefix(_BEFORE)
    return text in ("", HEALTHY_MESSAGE) or bool(parse(reason, text).keys() - {None})


def told_by(item: Condition | None) -> Mapping[int | None, tuple[str, ...]]:
    """The same of a Node's condition, or of its absence."""
    return parse(item.reason, item.message) if item is not None and item.type == TYPE else {}


def _sick(health: NodeHealth) -> list[ChipHealth]:
    """Chips with faults of their own: by their gravest fault, then by index."""
    chips = [chip for chip in health.chips if chip.own]
    return sorted(chips, key=lambda chip: (gravity(chip.own[0]), chip.index))


def _unread(reason: str, before: str) -> Condition:
    """While the chips are not read; ``before``: what is known from before, or ""."""
    return Condition(TYPE, "Unknown", reason, _UNREAD[reason] + (_BEFORE + before if before else ""))


def _chips(text: str) -> Iterator[tuple[int | None, tuple[str, ...]]]:
    """Chips and codes of a message as ``message`` writes it; nothing at all of any other."""
    parts = text.split("; ")
    if len(parts) > 1 and _MORE.fullmatch(parts[-1]):
        parts.pop()
    by_chip: dict[int | None, tuple[str, ...]] = {}
    for part in parts:
        match = _CHIP.fullmatch(part)
        if match is None:
            return
        codes = tuple(match[2].split(", "))
        if int(match[1]) in by_chip or len(set(codes)) < len(codes) or not FAULTS.keys() >= set(codes):
            return
        by_chip[int(match[1])] = codes
    yield from by_chip.items()


def _agree(reason: str, named: Mapping[int | None, tuple[str, ...]]) -> bool:
    """Whether ``condition`` gives this reason to these faults."""
    chips = tuple(ChipHealth(0, in_order(ActiveFault(code, 0) for code in codes)) for codes in named.values())
    return condition(NodeHealth(chips)).reason == reason
