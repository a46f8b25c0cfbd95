"""What the traps look at: each request on each node, looked at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dra_driver.manifests.objects import DeviceConstraint
from dra_driver.simulator.allocator import NodeView
from dra_driver.simulator.allocator.pool_devices import Pool
from dra_driver.simulator.allocator.requests import RequestAlternative
from dra_driver.simulator.explain.diagnosis import Case, claim_name, concerns
from dra_driver.simulator.explain.findings import findings
from dra_driver.simulator.explain.shortfall import Pair


@dataclass(frozen=True, slots=True)
class Wish:
    """A request, or one of its sub-requests, with the constraints that concern it."""

    name: str
    option: RequestAlternative
    constraints: tuple[DeviceConstraint, ...]


@dataclass(frozen=True, slots=True)
class TrapInput:
    """A request on a node."""

    wish: Wish
    node: NodeView
    pools: Sequence[Pool]
    pairs: Sequence[Pair]
    searched: bool = True
    """False where an error ends the attempt."""

    @property
    def matching(self) -> list[Pair]:
        """The devices that the selectors take, whoever has them."""
        return [pair for pair in self.pairs if pair[1].failed is None]

    @property
    def free(self) -> list[Pair]:
        """Those of them that could be had."""
        return [pair for pair in self.pairs if pair[1].state == "free"]

    @property
    def counted(self) -> list[Pair]:
        """Those that match and consume shared counters."""
        return [pair for pair in self.matching if pair[0].consumes]


def wishes(case: Case) -> list[Wish]:
    """Every request and sub-request of the claims."""
    several = len(case.claims) > 1
    return [
        Wish(
            f"request {option.label}" + (f" of claim {claim_name(claim)}" if several else ""),
            option,
            tuple(spec for spec in claim.spec.devices.constraints if concerns(spec, option)),
        )
        for claim, prepared in zip(case.claims, case.prepared, strict=True)
        for request in prepared.requests
        for option in request.options
    ]


def trap_inputs(case: Case, wanted: Sequence[Wish], node: NodeView, *, searched: bool) -> list[TrapInput]:
    """Every request on a node. DriverError when the node's slices cannot be read."""
    around = case.around(node)
    return [TrapInput(wish, node, around.pools, findings(wish.option, (), around), searched) for wish in wanted]
