"""Who sees which devices of a claim together, and whether their values agree: its containers, and claims beside it.

Device numbers and cores both depend on it: what one container sees has to fit together. Devices that are seen together
are a *unit* as far as the claim's requests tell (``ClaimFacts.units``), a *view* as a container of its pods uses them,
and a *group* where the two are joined. The driver asks for the pods only where it matters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver.driver.claims.model import NOT_PREPARED, Needs, Plan, PlannedDevice, PreparedClaims, PrepareError
from dra_driver.driver.claims.situation import ClaimFacts, Situation
from dra_driver.kube.objects.core import Pod
from dra_driver.neuron.names import LOGICAL_CORE_SIZE, ULTRASERVER_MODE

ONE_VALUE: Final = "a container that uses both gets only one of the values"
"""Part of the warning about two claims of a pod with different ones."""
_COMPARED: Final = (LOGICAL_CORE_SIZE, ULTRASERVER_MODE)

Uses = Collection[tuple[str, str]]
"""What a container uses: names of ResourceClaims and of requests of them, "" for all of a claim."""

ContainerUses = tuple[tuple[str, Uses], ...]
"""What each container of some pods uses, by ``pod/container``."""

View = tuple[str, tuple[int, ...]]
"""A container, as ``pod/container``, and the devices of a claim that it uses, by index."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """Who sees which devices of a claim together."""

    together: tuple[Plan, ...]
    """Prepared claims that a pod of the claim is known to use too (in doubt: that it may use)."""
    companions: tuple[Plan, ...]
    """Prepared claims that its pods may use too; none if neither these nor the claim have cores."""
    containers: ContainerUses | None
    """What the containers of its pods use; None: it does not matter, or cannot be read."""
    views: tuple[View, ...] | None
    """Devices that containers use together; (): each has its unit. None: it matters, and is not known."""


def sharing(plan: Plan, situation: Situation, prepared: PreparedClaims) -> Sharing | Needs:
    """Who sees the devices of a claim together, or what has to be known first.

    Args:
        plan: its devices, and the variables that containers get with each.
        situation: the claim and its pods.
        prepared: the claim itself may be among them, and does not count.
    """
    claim, cores = situation.claim, plan.has_cores
    together = prepared.co_used(claim.namespace, claim.pods, situation.consumers, exclude=claim.uid)
    together = [other for other in together if not _of_other_group(claim, other)]
    companions = prepared.companions(claim.namespace, claim.pods, exclude=claim.uid, cores=cores)
    companions = [other for other in companions if not _of_other_group(claim, other)]
    alike = not any(device.env for device in plan.devices)
    several = cores and len({device.base_request for device in plan.devices}) > 1
    clash = any(_contradictions(plan, plan.devices, other, other.devices) for other in together)
    containers: ContainerUses | None = None
    views: tuple[View, ...] | None = ()
    if len(claim.units) > 1 or not alike or companions or several or clash:
        needs = _pods_needed(situation, optional=alike and not cores and not companions)
        if needs is not None:
            return needs
        containers = _uses_by_container(situation)
        views = _views(plan, situation, containers)
    return Sharing(tuple(together), tuple(companions), containers, views)


def _of_other_group(claim: ClaimFacts, other: Plan) -> bool:
    """Whether no pod can use both claims: a pod is of one PodGroup."""
    return bool(claim.own_group and other.own_group) and claim.own_group != other.own_group


def check_values(plan: Plan, sharing: Sharing) -> tuple[str, ...]:
    """Warnings about claims of the same pods that have other values, unless it is known that no container uses both.

    Raises:
        PrepareError: one does. It gets the variables of only one of them.
    """
    clashes = [
        (other, contradiction)
        for other in sharing.together
        for contradiction in _contradictions(plan, plan.devices, other, other.devices)
    ]
    if not clashes:
        return ()
    if sharing.containers is None or sharing.views is None:
        return tuple(
            f"claim {other.reference} of the same pod has {name}={theirs}, this one {mine}; {ONE_VALUE}; use them in "
            "different containers"
            for other, (name, mine, theirs) in clashes
        )
    for container, uses in sharing.containers:
        own = [plan.devices[at] for at in devices_in_use(plan, uses)]
        for other in sharing.together:
            devices = [other.devices[at] for at in devices_in_use(other, uses)]
            for name, mine, theirs in _contradictions(plan, own, other, devices):
                raise PrepareError(
                    f"container {container} uses this claim, with {name}={mine}, and claim {other.reference}, with "
                    f"{theirs}",
                    consequence=f"it can be told only one value, so {NOT_PREPARED}",
                    remedy="use one value in both claims, or use them in different containers",
                    reason="InvalidParameters",
                )
    return ()


def _contradictions(
    plan: Plan, devices: Sequence[PlannedDevice], other: Plan, theirs: Sequence[PlannedDevice]
) -> list[tuple[str, str, str]]:
    """Variables of which a container with these devices of two claims would get two values: name and both."""
    values = ((name, _values(plan, devices, name), _values(other, theirs, name)) for name in _COMPARED)
    return [(name, mine, others) for name, mine, others in values if mine and others and mine != others]


def _values(plan: Plan, devices: Sequence[PlannedDevice], name: str) -> str:
    """The values that containers get under a name with these devices of a claim."""
    variables = [plan.env | device.env for device in devices]
    return " and ".join(sorted({env[name] for env in variables if name in env}))


def _pods_needed(situation: Situation, *, optional: bool) -> Needs | None:
    """The claim's pods that are not known yet; None: all are, or they cannot be."""
    claim, pods = situation.claim, situation.pods
    if pods is None or claim.pods is None:
        return None
    missing = tuple(pod for pod in claim.reserved_for if pod.uid not in pods)
    return Needs(pods=missing, optional=optional) if missing else None


def _uses_by_container(situation: Situation) -> ContainerUses | None:
    """What each container of the claim's pods uses; None if the pods cannot be read."""
    pods, uids = situation.pods, situation.claim.pods
    if pods is None or uids is None:
        return None
    return tuple(
        (f"{pods[uid].metadata.name}/{container}", uses)
        for uid in sorted(uids)
        for container, uses in claims_of_containers(pods[uid])
    )


def _views(plan: Plan, situation: Situation, containers: ContainerUses | None) -> tuple[View, ...] | None:
    """Which devices of the claim the containers of its pods use; None if that is not known of each pod."""
    pods, uids = situation.pods or {}, situation.claim.pods or ()
    if containers is None or not all(pods[uid].spec.containers for uid in uids):
        return None
    return tuple((container, devices_in_use(plan, uses)) for container, uses in containers)


def devices_in_use(plan: Plan, uses: Uses) -> tuple[int, ...]:
    """Devices of a claim (indexes) that a container uses."""
    if (plan.name, "") in uses:
        return tuple(range(len(plan.devices)))
    return tuple(at for at, device in enumerate(plan.devices) if (plan.name, device.base_request) in uses)


def claims_of_containers(pod: Pod) -> Iterator[tuple[str, set[tuple[str, str]]]]:
    """For each container, the ResourceClaims that it uses and the requests of them, "" for all."""
    names = {item.name: item.resource_claim_name for item in pod.status.resource_claim_statuses}
    name_of = {item.name: item.resource_claim_name or names.get(item.name) or "" for item in pod.spec.resource_claims}
    extended = pod.status.extended_resource_claim_status
    mappings: dict[str, set[tuple[str, str]]] = {}
    if extended is not None:
        for item in extended.request_mappings:
            mappings.setdefault(item.container_name, set()).add((extended.resource_claim_name, item.request_name))
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        uses = {(name_of.get(item.name, ""), item.request) for item in container.resources.claims}
        yield container.name, uses | mappings.get(container.name, set())
