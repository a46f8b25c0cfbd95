"""The ranks of the nodes of an UltraServer workload, for the containers of its claims.

A node has the rank that its place in ``status.allocations`` gives it, from the moment that the workload has it: so
ranks need no init container. They follow the kernel's ids of that moment. If a later election gives the node another
set or another place, collectives would not find each other under these ranks, and the claim is refused.

The host of rank 0 (``RANK0_HOST``) is that of a pod, which nobody knows here: ``LEADER_NODE`` names its node.
"""

from __future__ import annotations

from collections.abc import Mapping

from dra_driver.driver.claims.model import NOT_PREPARED, PrepareError
from dra_driver.driver.claims.situation import ClaimFacts, Situation
from dra_driver.driver.workload import NodeWorkload, Seat, set_of
from dra_driver.neuron.host.inventory import Membership
from dra_driver.neuron.names import DRIVER_NAME, LEADER_NODE, RANK


def rank_variables(situation: Situation, former: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that say the node's rank, for a claim of the workload that has the node.

    Any other claim has none, or those that it was prepared with.

    Args:
        situation: the claim and the node.
        former: the claim's variables if it was prepared before; None: it was not.

    Raises:
        PrepareError: the rank is not known, or an election has made something else of the node since.
    """
    tenancy, member = situation.facts.tenancy, situation.inventory.ultraserver
    workload = tenancy.workload if tenancy is not None else None
    kept = {name: former[name] for name in (RANK, LEADER_NODE) if name in former} if former is not None else {}
    if tenancy is None or workload is None or workload.uid not in workloads_of(situation.claim):
        return kept
    seat = workload.seat
    if seat is None and former is not None:
        return kept
    if seat is None:
        raise PrepareError(
            f"the node's rank in the UltraServer workload {workload} is not known yet",
            consequence=NOT_PREPARED,
            remedy="kubelet tries again; if that does not help, see the driver's log on this node",
            reason="UltraServerWorkload",
            for_now=True,
        )
    _check_election(workload, seat, tenancy.set_id, member)
    ranks = {} if seat.rank is None else {RANK: str(seat.rank)}
    return ranks | ({LEADER_NODE: seat.leader} if seat.leader else {})


def workloads_of(claim: ClaimFacts) -> frozenset[str | None]:
    """UIDs of the workloads that the claim's requests name, and None if one names none; () for admin access alone."""
    requests = {result.request for result in claim.results if not result.admin_access}
    if not claim.config:
        return frozenset({None} if requests else ())
    from dra_driver.neuron.opaque_config import effective  # pydantic: most claims do not need it

    return frozenset(value.workload for value in effective(claim.config, [*requests], DRIVER_NAME).values())


def _check_election(workload: NodeWorkload, seat: Seat, set_id: str, member: Membership | None) -> None:
    """PrepareError if the host says that the node works together with other nodes, or in another order."""
    if seat.nodes == 1 or (member is not None and (member.electing or not member.modes)):
        return  # nothing follows from that, or it is not known: then the mode is not either
    own = set_of(member, seat)
    was = f"node {seat.position} of {seat.nodes}"
    if own is None:
        now = f"part of no set of {seat.nodes} nodes"
    elif set_id and own.server_id != set_id:
        was, now = f"{was} in the set {set_id}", f"part of the set {own.server_id}"
    elif own.nodes == seat.nodes and own.node_id != seat.position:
        now = f"node {own.node_id}"
    else:
        return
    raise PrepareError(
        f"this node was {was} when the UltraServer workload {workload} got it, and a later election has made it {now}",
        consequence=f"its rank would be wrong, so {NOT_PREPARED}",
        remedy="bring back the nodes of its UltraServer that were away, and have them elect again; or delete the "
        "workload and make another one, which gets ranks by the present election",
        reason="UltraServerMode",
    )
