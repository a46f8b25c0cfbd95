"""Which ``/dev/neuronN`` of a container a chip becomes.

The Neuron runtime counts chips from 0, so a claim's chips are numbered 0..k-1 in host order (setting ``renumber``). The
numbers are one set over the whole claim: kubelet gives a container the CDI devices of the claim, or of one of its
requests, and a chip has one CDI device, so a chip has the same number in every container. A container that takes one
request of several therefore sees that request's part of the claim's numbers.

Two claims of one pod may meet in one container, where the second ``/dev/neuron0`` would replace the first. kubelet asks
for each claim alone and a number, once given, never changes (containers may be using it), so the rule is: a claim keeps
its own numbers unless a prepared claim that a common pod uses has one of them for another chip; then it counts on from
the highest number of those claims. The result is kept in the journal, hence the same for every retry.

Who shares a pod is told by ``status.reservedFor``. For a claim made from a template it is one pod for ever; another
claim may have gained pods since it was prepared, so when it would clash it is asked for again. What cannot be seen from
here: a pod that starts to use two claims that were both prepared before, for other pods. kubelet does not call the
driver then. Repair reports such a pair; nodes with claims like that need the setting ``host``: its numbers never clash.

Admin access is for looking at chips, so claims with it keep the host's numbers.

When a claim's journal file has become unreadable, its CDI spec still tells its numbers: the claim gets them again, and
until then every other claim keeps clear of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dra_driver.claims.held import PreparedClaims
from dra_driver.claims.values import Consumers, Plan, PrepareError


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """A claim and who uses it: ``pods`` are UIDs, None when they cannot be known."""

    namespace: str
    uid: str
    pods: frozenset[str] | None


class ConsumersUnknown(PrepareError):  # noqa: N818 - a question, which is mostly answered
    """Numbers depend on who uses other claims now: get those claims and plan again with ``consumers``."""

    def __init__(self, claims: Sequence[Plan]) -> None:
        names = ", ".join(claim.reference for claim in claims)
        super().__init__(
            f"the device numbers depend on which pods use {names}, and the API server has not told",
            consequence="the claim is not prepared",
            remedy="kubelet tries again",
        )
        self.claims = tuple(claims)


def numbers(
    chips: Sequence[int],
    claim: ClaimUse,
    held: PreparedClaims,
    consumers: Consumers,
    together: Sequence[Plan],
    *,
    host: bool,
) -> dict[int, int]:
    """Container number of each chip.

    Args:
        chips: host ids, ascending.
        claim: whose chips they are.
        held: prepared claims; the claim itself may be among them.
        consumers: what is known newly of who uses prepared claims.
        together: prepared claims that a pod of the claim uses too (``co_used_claims``).
        host: whether to keep the host's numbers.

    Raises:
        ConsumersUnknown: it has to be known who uses some other claims now.
    """
    former = held.quarantined[claim.uid].shown if claim.uid in held.quarantined else {}
    if sorted(former.values()) == list(chips):
        return {chip: number for number, chip in former.items()}
    wanted = {chip: chip if host else rank for rank, chip in enumerate(chips)}
    taken = held.shown_by_quarantined(exclude=claim.uid)
    for other in together:
        taken |= {number: node.chip for number, node in other.nodes.items()}
    chip_at = {number: chip for chip, number in wanted.items()}
    if any(chip_at.get(number, chip) != chip for number, chip in taken.items()):
        first = max(taken) + 1
        wanted = {chip: first + rank for rank, chip in enumerate(chips)}
        chip_at = {number: chip for chip, number in wanted.items()}
    clashing_ones = held.shareable_with_other(claim.namespace, chip_at) if claim.pods else []
    unknown = [other for other in clashing_ones if other.uid != claim.uid and other.uid not in consumers]
    if unknown:
        raise ConsumersUnknown(unknown)
    return wanted


def co_used_claims(claim: ClaimUse, held: PreparedClaims, consumers: Consumers) -> list[Plan]:
    """Prepared claims that a pod of the claim is known to use too (in doubt: that it may use)."""
    found = {plan.uid: plan for plan in held.used_by(claim.namespace, claim.pods)}
    for uid, pods in consumers.items():
        entry = held.entries.get(uid)
        if entry is not None and (pods is None or claim.pods is None or not pods.isdisjoint(claim.pods)):
            found[uid] = entry.plan
    found.pop(claim.uid, None)
    return list(found.values())


def number_conflicts(one: Plan, other: Plan) -> tuple[int, ...]:
    """Container numbers that mean different chips in two claims, ascending."""
    chip_at = {number: node.chip for number, node in one.nodes.items()}
    return tuple(sorted(number for number, node in other.nodes.items() if chip_at.get(number, node.chip) != node.chip))
