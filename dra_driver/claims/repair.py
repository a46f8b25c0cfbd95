"""What differs between journal, CDI directory and API server, and what to do about it: a function of values.

The journal says what should be. Its entries have their CDI specs, with the device numbers of now. A spec whose chip is
not there is withdrawn: after a reboot its device number may belong to other hardware. Prepare or repair writes it again
when the chip is back.

When does an entry end without kubelet's unprepare? The API server may say that its claim is gone (deleted, replaced, or
no longer allocated to this node), but a pod that was deleted by force may be running all the same, so that alone never
frees a chip. It does together with a reboot of the node since: then no container of before runs. Otherwise kubelet is
waited for; it keeps its own list over restarts and unprepares once the containers have ended. A claim that is gone for
long is reported, and an administrator who then removes its journal file ends it. The file of a claim that the API
server has is written again.

For an unreadable journal file, which has no boot in it, the API server's word counts: a claim that is allocated here
tells its chips, and one that is gone at each check over ten minutes lets go of them. The same holds for a spec of ours
that no journal file explains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dra_driver.cdi.spec import encode
from dra_driver.claims.edits import cdi_spec
from dra_driver.claims.held import PreparedClaims
from dra_driver.claims.numbering import number_conflicts
from dra_driver.claims.plan import refreshed
from dra_driver.claims.values import Entry, Plan, PrepareError
from dra_driver.host.inventory import NodeInventory

GONE_CHECKS = 3
GONE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class ClaimObservation:
    """What the API server says of a claim.

    Attributes:
        here: it exists under its UID and is allocated to this node.
        pods: whom it is reserved for; None: cannot be told.
        chips: what it holds alone, when ``here``; None: cannot be told.
        since: clock reading of the first of the present run of equal answers.
        checks: number of answers in that run.
        checked: clock reading of the last answer.
    """

    here: bool
    since: float
    checked: float
    checks: int = 1
    pods: frozenset[str] | None = None
    chips: frozenset[int] | None = frozenset()

    @property
    def surely_gone(self) -> bool:
        """Gone at enough checks over enough time."""
        return not self.here and self.checks >= GONE_CHECKS and self.checked - self.since >= GONE_SECONDS


@dataclass(frozen=True, slots=True)
class Repair:
    """One thing to do.

    ``kind`` is stable (metrics use it): ``write-journal`` and ``write-spec`` (both of ``entry``),
    ``withdraw-spec``, ``release`` (forget the claim) and ``learn`` (``chips`` is what an unreadable file held).
    """

    kind: Literal["write-journal", "write-spec", "withdraw-spec", "release", "learn"]
    uid: str
    reason: str
    entry: Entry | None = None
    chips: frozenset[int] = field(default=frozenset())


def diff(
    held: PreparedClaims,
    specs: Mapping[str, bytes | None],
    inventory: NodeInventory,
    boot_id: str,
    observations: Mapping[str, ClaimObservation],
) -> list[Repair]:
    """What to do, in order of UIDs.

    Args:
        held: the journal.
        specs: own CDI spec files by claim UID (None: unreadable).
        inventory: the node as it is now.
        boot_id: identity of this boot.
        observations: what the API server said, for the claims that it was asked about.
    """
    found: list[Repair] = []
    for uid, entry in sorted(held.entries.items()):
        missing, observation = uid in held.missing, observations.get(uid)
        repair = _end(entry, missing, boot_id, observation) or _spec_repair(entry, specs, inventory)
        if repair is None and missing and observation is not None:
            repair = Repair("write-journal", uid, "its journal file was removed, but its claim is not gone", entry)
        if repair is not None:
            found.append(repair)
    for uid, item in sorted(held.quarantined.items()):
        observation = observations.get(uid)
        if observation is None:
            continue
        if observation.here and observation.chips is not None and item.chips is None:
            found.append(
                Repair("learn", uid, "the API server tells what the unreadable file held", None, observation.chips)
            )
        elif observation.surely_gone:
            found.append(Repair("release", uid, "its journal file is unreadable and its claim is gone"))
    return found


def clashes(held: PreparedClaims, observations: Mapping[str, ClaimObservation]) -> list[tuple[Plan, Plan]]:
    """Pairs of claims that one pod uses and that show different chips under one number."""
    users: dict[str, list[Plan]] = {}
    for uid, entry in sorted(held.entries.items()):
        observation = observations.get(uid)
        pods = entry.plan.pods if observation is None or not observation.here else observation.pods
        for pod in pods or ():
            users.setdefault(pod, []).append(entry.plan)
    pairs = {
        (one.uid, other.uid): (one, other)
        for plans in users.values()
        for index, one in enumerate(plans)
        for other in plans[index + 1 :]
        if number_conflicts(one, other)
    }
    return [pairs[key] for key in sorted(pairs)]


def _end(entry: Entry, missing: bool, boot_id: str, observation: ClaimObservation | None) -> Repair | None:
    if observation is None or observation.here:
        return None
    if missing:
        return Repair("release", entry.plan.uid, "its journal file was removed, and the claim is gone")
    if entry.outlived(boot_id):
        return Repair("release", entry.plan.uid, "its claim is gone and the node was booted since it was prepared")
    return None


def _spec_repair(entry: Entry, specs: Mapping[str, bytes | None], inventory: NodeInventory) -> Repair | None:
    uid = entry.plan.uid
    try:
        wanted = refreshed(entry.plan, inventory)
    except PrepareError as error:
        return Repair("withdraw-spec", uid, error.what) if uid in specs else None
    # The boot stays: the entry is no proof that the claim is used in this one.
    kept = Entry(wanted, entry.boot_id)
    if wanted != entry.plan:
        return Repair("write-spec", uid, "the kernel has given its chips other device numbers", kept)
    if uid not in specs:
        return Repair("write-spec", uid, "it is missing", kept)
    if specs[uid] != encode(cdi_spec(wanted)):
        return Repair("write-spec", uid, "it differs from the journal", kept)
    return None
