"""Pods of lower priority that have what others wait for. Values in, values out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from dra_driver.neuron.names import DRIVER_NAME, node_of
from dra_driver.operations.overview.findings import Finding, finding
from dra_driver.util.text import first_of

if TYPE_CHECKING:
    from dra_driver.simulator.explain import Explanation
    from dra_driver.simulator.manifests import Manifests, PodWithClaims

_NAMED: Final = 4


@dataclass(frozen=True, slots=True)
class Priorities:
    """Of the pods of a cluster, and who has which devices."""

    pods: Mapping[str, int]
    """By what an explanation calls a pod."""
    holders: Mapping[str, Sequence[tuple[int, str]]]
    """Who has a claim, by namespace and name of the claim: the highest priority of its pods, and each name."""
    claims: Mapping[tuple[str, str], str]
    """Claims by node and device."""

    @classmethod
    def of(cls, manifests: Manifests) -> Self:
        """Those of what was read of a cluster. A claim of a PodGroup is the group's, whatever becomes of its pods."""
        users: dict[tuple[str, str], list[PodWithClaims]] = defaultdict(list)
        for pod in (*manifests.pods, *manifests.running):
            for reference in pod.claims if pod.spec.node_name else ():
                users[pod.namespace, reference.claim].append(pod)
        pods = {f"pod {pod.namespace}/{pod.name}": pod.spec.priority for pod in manifests.pods}
        holders: dict[str, list[tuple[int, str]]] = {}
        claims: dict[tuple[str, str], str] = {}
        for claim in manifests.claims:
            name, of_claim = claim.metadata.full_name, users.get(claim.metadata.key, ())
            groups = [user.name for user in claim.status.reserved_for if not user.is_pod] if of_claim else []
            whose = [f"PodGroup {claim.metadata.namespace}/{group}" for group in groups]
            whose = whose or [f"{pod.namespace}/{pod.name}" for pod in of_claim]
            holders[name] = [(max(pod.spec.priority for pod in of_claim), one) for one in whose]
            own = (one for one in claim.status.results if one.driver == DRIVER_NAME)
            claims |= {(node_of(one.pool), one.device): name for one in own}
        return cls(pods, holders, claims)

    def lower_holders(self, item: Explanation) -> Finding | None:
        """Who of lower priority has devices because of which a pod fits on no node; None: nobody."""
        own = self.pods.get(item.subject)
        if own is None or item.fits:
            return None
        groups = ((alike, group) for alike in item.nodes for view in alike.diagnosis.requests for group in view.groups)
        in_use = [(alike.nodes, group.devices) for alike, group in groups if group.state == "in use"]
        of_devices = {
            self.claims.get((node, device), "") for nodes, devices in in_use for node in nodes for device in devices
        }
        blocking = of_devices | {holder.claim for holder in item.holders}
        lower = sorted({each for claim in blocking for each in self.holders.get(claim, ()) if each[0] < own})
        if not lower:
            return None
        names = first_of([f"{name} (priority {number})" for number, name in lower], _NAMED)
        text = f"its priority is {own}, and others of lower priority have devices that it could have: {names}"
        return finding("LowerPriority", text, holders=names)
