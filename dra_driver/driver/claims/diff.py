"""What differs between checkpoint, CDI directory and API server: values in, repairs out.

The checkpoint says what should be. Its entries have their CDI specs, with the device numbers of now. A spec whose chip
is not there is withdrawn: after a reboot its device number may belong to other hardware. Prepare or the reconciler
writes it again when the chip is back.

When does an entry end without kubelet's unprepare? The API server may say that its claim is gone (deleted, replaced, or
no longer allocated to this node) or was allocated other devices, but a pod that was deleted by force may be running all
the same, so that alone never frees a chip. It does together with a reboot of the node since: then no container of
before runs, and while a claim is refused its other devices, it must not keep the former ones. Otherwise the driver
waits for kubelet, which keeps its own list over restarts and unprepares once the containers have ended. A claim that is
gone for long is reported, and an administrator who then removes its checkpoint file ends it. The file of a claim that
the API server has is written again. An unreadable file has no boot in it. If its claim is allocated here, the API
server names its chips; if it is gone at each check over ten minutes, they are free, but not while its CDI spec is one
of this boot, or kubelet lists them for a container. The same holds for a spec of ours that no file explains.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from dra_driver.driver.claims.container_edits import cdi_spec
from dra_driver.driver.claims.model import CheckpointEntry, Plan, PreparedClaims, PrepareError, clashing_numbers
from dra_driver.driver.claims.observe import ClaimObservation
from dra_driver.driver.claims.planner import refresh
from dra_driver.kube.cdi import encode
from dra_driver.neuron.host.inventory import NodeInventory


@dataclass(frozen=True, slots=True)
class Repair:
    """One thing to do.

    ``kind`` is stable (metrics use it): ``write-journal`` and ``write-spec`` (both of ``entry``),
    ``withdraw-spec``, ``release`` (forget the claim), ``learn`` (``chips`` is what an unreadable file held), and
    ``write-metadata`` (of ``entry``) and ``remove-metadata`` of the files about its devices.
    """

    kind: Literal[
        "write-journal", "write-spec", "withdraw-spec", "release", "learn", "write-metadata", "remove-metadata"
    ]
    uid: str
    reason: str
    entry: CheckpointEntry | None = None
    chips: frozenset[int] = field(default=frozenset())


def diff(
    prepared: PreparedClaims,
    specs: Mapping[str, bytes | None],
    inventory: NodeInventory,
    boot_id: str,
    observations: Mapping[str, ClaimObservation],
    in_use: Collection[str] = (),
) -> list[Repair]:
    """What to do, in order of UIDs.

    Args:
        prepared: the checkpoint.
        specs: own CDI spec files by claim UID (None: unreadable).
        inventory: the node as it is now.
        boot_id: identity of this boot.
        observations: the API server's answers about claims.
        in_use: claims with unreadable files that containers may be using.
    """
    repairs: list[Repair] = []
    for uid, entry in sorted(prepared.entries.items()):
        missing, observation = uid in prepared.missing, observations.get(uid)
        repair = _end(entry, missing, boot_id, observation) or _spec_repair(entry, specs, inventory)
        if repair is None and missing and observation is not None:
            repair = Repair("write-journal", uid, "its checkpoint file was removed, but its claim is not gone", entry)
        if repair is not None:
            repairs.append(repair)
    for uid, item in sorted(prepared.quarantined.items()):
        observation = observations.get(uid)
        if observation is None:
            continue
        if observation.here and observation.chips is not None and item.chips is None:
            repairs.append(
                Repair("learn", uid, "the API server tells what the unreadable file held", None, observation.chips)
            )
        elif observation.surely_gone and uid not in in_use:
            repairs.append(Repair("release", uid, "its checkpoint file is unreadable and its claim is gone"))
    return repairs


def clashes(prepared: PreparedClaims, observations: Mapping[str, ClaimObservation]) -> list[tuple[Plan, Plan]]:
    """Pairs of claims that one pod uses and that show different chips under one number."""
    users: dict[str, list[Plan]] = {}
    for uid, entry in sorted(prepared.entries.items()):
        observation = observations.get(uid)
        pods = entry.plan.pods if observation is None or not observation.here else observation.pods
        for pod in pods or ():
            users.setdefault(pod, []).append(entry.plan)
    pairs = {
        (one.uid, other.uid): (one, other)
        for plans in users.values()
        for index, one in enumerate(plans)
        for other in plans[index + 1 :]
        if clashing_numbers(one.shown, other.shown)
    }
    return [pairs[key] for key in sorted(pairs)]


def _end(entry: CheckpointEntry, missing: bool, boot_id: str, observation: ClaimObservation | None) -> Repair | None:
    if observation is None:
        return None
    uid, outlived = entry.plan.uid, entry.outlived(boot_id)
    if observation.here:
        if outlived and observation.devices != {device.device for device in entry.plan.devices}:
            return Repair("release", uid, "its claim was allocated again and the node was booted since it was prepared")
        return None
    if missing:
        return Repair("release", uid, "its checkpoint file was removed, and the claim is gone")
    if outlived:
        return Repair("release", uid, "its claim is gone and the node was booted since it was prepared")
    return None


def _spec_repair(entry: CheckpointEntry, specs: Mapping[str, bytes | None], inventory: NodeInventory) -> Repair | None:
    uid = entry.plan.uid
    try:
        plan = refresh(entry.plan, inventory)
    except PrepareError as error:
        return Repair("withdraw-spec", uid, error.what) if uid in specs else None
    # The boot stays: the entry is no proof that the claim is used in this one.
    new_entry = CheckpointEntry(plan, entry.boot_id)
    if plan != entry.plan:
        return Repair("write-spec", uid, "the kernel has given its chips other device numbers", new_entry)
    if uid not in specs:
        return Repair("write-spec", uid, "it is missing", new_entry)
    if specs[uid] != encode(cdi_spec(plan)):
        return Repair("write-spec", uid, "it differs from the checkpoint", new_entry)
    return None
