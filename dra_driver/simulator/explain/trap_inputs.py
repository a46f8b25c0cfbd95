"""Input of the traps: each request on each node, evaluated once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dra_driver.kube.objects.resource import DeviceConstraint
from dra_driver.simulator.allocator import NodeView
from dra_driver.simulator.allocator.constraints import concerns
from dra_driver.simulator.allocator.pool_devices import Pool
from dra_driver.simulator.allocator.requests import RequestAlternative
from dra_driver.simulator.explain.diagnosis import Case
from dra_driver.simulator.explain.findings import findings
from dra_driver.simulator.explain.shortfall import Pair


@dataclass(frozen=True, slots=True)
class Wish:
    """A request or subrequest, with the constraints that concern it."""

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
    """False if an error ends the attempt before the node is searched."""

    @property
    def matching(self) -> list[Pair]:
        """The devices that the selectors match, whether in use or not."""
        return [pair for pair in self.pairs if pair[1].failed is None]

    @property
    def free(self) -> list[Pair]:
        """The matching devices that are available."""
        return [pair for pair in self.pairs if pair[1].state == "free"]

    @property
    def counted(self) -> list[Pair]:
        """The matching devices that consume shared counters."""
        return [pair for pair in self.matching if pair[0].consumes]


def wishes(case: Case) -> list[Wish]:
    """Every request and subrequest of the claims."""
    several = len(case.claims) > 1
    return [
        Wish(
            f"request {option.label}" + (f" of claim {claim.metadata.full_name}" if several else ""),
            option,
            tuple(spec for spec in claim.spec.devices.constraints if concerns(spec.requests, *option.names)),
        )
        for claim, prepared in zip(case.claims, case.prepared, strict=True)
        for request in prepared.requests
        for option in request.options
    ]


def trap_inputs(case: Case, wanted: Sequence[Wish], node: NodeView, *, searched: bool) -> list[TrapInput]:
    """Every request on a node. Raises DriverError if the node's slices cannot be read."""
    around = case.world.around(node)
    return [TrapInput(wish, node, around.pools, findings(wish.option, (), around), searched) for wish in wanted]
