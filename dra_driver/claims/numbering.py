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

from collections.abc import Mapping, Sequence

from dra_driver.claims.held import Held, may_meet
from dra_driver.claims.values import Consumers, Plan, Refusal


class ConsumersUnknown(Refusal):
    """Numbers depend on who uses other claims now: get those claims and plan again with ``consumers``."""

    def __init__(self, claims: Sequence[Plan]) -> None:
        names = ", ".join(claim.reference for claim in claims)
        super().__init__(f"the device numbers depend on which pods use {names}")
        self.claims = tuple(claims)


def numbers(
    chips: Sequence[int],
    *,
    host: bool,
    pods: frozenset[str] | None,
    others: Sequence[Plan],
    consumers: Consumers,
    doubtful: Mapping[int, int],
    former: Mapping[int, int],
) -> dict[int, int]:
    """Container number of each chip.

    Args:
        chips: host ids, ascending.
        host: whether to keep the host's numbers.
        pods: UIDs of the pods of the claim, None when they cannot be known.
        others: prepared claims that pods of the same namespace may use, without the claim itself.
        consumers: what is known newly of who uses ``others``, by claim UID (None: could not be found out).
        doubtful: chips by number of claims that may be used by any pod.
        former: chips by number that the claim itself is known to have had.

    Raises:
        ConsumersUnknown: it has to be known who uses some of ``others``.
    """
    if sorted(former.values()) == list(chips):
        return {chip: number for number, chip in former.items()}
    wanted = {chip: chip if host else rank for rank, chip in enumerate(chips)}
    chip_at = {number: chip for chip, number in wanted.items()}
    meeting = [(other, may_meet(pods, other, consumers)) for other in others]
    taken = dict(doubtful)
    taken |= {number: node.chip for other, meets in meeting if meets for number, node in other.nodes.items()}
    if any(chip_at.get(number, chip) != chip for number, chip in taken.items()):
        first = max(taken) + 1
        wanted = {chip: first + rank for rank, chip in enumerate(chips)}
        chip_at = {number: chip for chip, number in wanted.items()}
    unknown = [other for other, meets in meeting if meets is None and _clash(chip_at, other)]
    if unknown:
        raise ConsumersUnknown(unknown)
    return wanted


def clashing(one: Plan, other: Plan) -> tuple[int, ...]:
    """Container numbers that mean different chips in two claims, ascending."""
    chip_at = {number: node.chip for number, node in one.nodes.items()}
    return tuple(sorted(number for number, node in other.nodes.items() if chip_at.get(number, node.chip) != node.chip))


def meeting_claims(namespace: str, uid: str, held: Held) -> list[Plan]:
    """Prepared claims that may meet the claim ``uid`` in a pod."""
    return [plan for plan in held.in_namespace(namespace) if plan.uid != uid]


def _clash(chip_at: Mapping[int, int], other: Plan) -> bool:
    return any(chip_at.get(number, node.chip) != node.chip for number, node in other.nodes.items())
