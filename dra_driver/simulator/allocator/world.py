"""A cluster as the allocator sees it, and the question what a pod's claims would get on one of its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from dra_driver.simulator.allocator.candidates import Surroundings
from dra_driver.simulator.allocator.nodes import NodeView
from dra_driver.simulator.allocator.offers import Failure, Selectors, verdict
from dra_driver.simulator.allocator.pools import PoolIndex
from dra_driver.simulator.allocator.release import release
from dra_driver.simulator.allocator.requests import Option, PreparedClaim, prepare
from dra_driver.simulator.allocator.result import allocation
from dra_driver.simulator.allocator.search import search
from dra_driver.simulator.allocator.tolerations import tainted
from dra_driver.simulator.allocator.usage import Usage
from dra_driver.simulator.objects import AllocationResult, DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from dra_driver.util.errors import DriverError

NEWEST = "1.37"
"""The release that is meant unless another is named."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why claims get nothing."""

    reason: str
    fatal: bool = False
    """Whether the scheduling of the pod ends, as opposed to "not on this node"."""


Choice = Literal["only", "score", "alternative", "name"]
"""Why this node: no other fits, it scores highest, it gives an earlier sub-request, or it is the first by name."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """What the claims get on a node, in the order of the claims. Nothing is in use yet: see ``Usage.take``."""

    node: str
    results: tuple[AllocationResult, ...]
    choice: Choice = "only"


Errors = Literal["nothing", "node", "usage"]
"""``nothing``: no node does; ``node``: only what a node has matters; ``usage``: also what is in use."""


class World:
    """Slices, classes and what is in use. Slices and classes do not change; ``usage`` may.

    ``kubernetes`` is 1.36 or 1.37. DriverError for another release.
    """

    def __init__(
        self,
        slices: Iterable[ResourceSlice],
        classes: Iterable[DeviceClass],
        selectors: Selectors,
        usage: Usage | None = None,
        kubernetes: str = NEWEST,
        *,
        taint_rules: Iterable[DeviceTaintRule] = (),
    ) -> None:
        self.release = release(kubernetes)
        self.pools = PoolIndex(
            slices if self.release.follows_no_taint_rules else tainted(slices, taint_rules), self.release
        )
        self.classes = {item.metadata.name: item for item in classes}
        self.selectors = Selectors(lru_cache(maxsize=4096)(selectors.compile), selectors.view)
        self._harmless: dict[tuple[str, ...], bool] = {}
        self.usage = usage if usage is not None else Usage()

    def prepare(self, claims: Sequence[ResourceClaim]) -> tuple[PreparedClaim, ...] | Refusal:
        """The claims of one pod made ready, to be asked on several nodes."""
        try:
            return tuple(prepare(claim, self.classes, self.selectors) for claim in claims)
        except DriverError as error:
            return Refusal(str(error), fatal=True)

    def errors(self, claims: Sequence[PreparedClaim]) -> Errors:
        """What it depends on whether a node ends the scheduling of these claims, as far as that can be told cheaply."""
        options = [option for item in claims for request in item.requests for option in request.options]
        if self.pools.peculiar or any(option.capacity for option in options):
            return "usage"
        if not all(self._never_fails(option) for option in options):
            return "usage"
        if not any(option.all_devices for option in options):
            return "nothing"
        return "usage" if any(item.claim.spec.devices.constraints for item in claims) else "node"

    def _never_fails(self, option: Option) -> bool:
        known = self._harmless.get(option.key)
        if known is None:
            known = self._harmless[option.key] = not any(
                isinstance(verdict(offer, option.selectors, option.key, self.selectors.view), Failure)
                for offer in self.pools.kinds_of_offers
            )
        return known

    def state(self, node: NodeView) -> tuple[int, ...]:
        """Changes with the use of any device that the node could get. NodeSelectorError when that cannot be told."""
        return tuple(self.usage.version(pool.key) for pool in self.pools.pools(node))

    def ask(self, claims: Sequence[PreparedClaim], node: NodeView, *, prune: bool = True) -> Allocation | Refusal:
        """What prepared claims would get on the node.

        ``prune`` False tries all combinations as Kubernetes does, which may take long.
        """
        if not claims:
            return Allocation(node.name, ())
        try:
            around = Surroundings(node, self.pools.pools(node), self.usage, self.selectors, self.release)
            picks = search(claims, around, prune=prune)
            if picks is None:
                broken = [pool for pool in around.pools if pool.invalid]
                return Refusal(_invalid(broken[0].key, broken[0].invalid) if broken else NO_SOLUTION)
            pairs = zip(claims, picks, strict=True)
            return Allocation(node.name, tuple(allocation(item, made, node.name, self.release) for item, made in pairs))
        except DriverError as error:
            return Refusal(str(error), fatal=True)


NO_SOLUTION = "cannot allocate all claims"


def _invalid(key: tuple[str, str], reason: str) -> str:
    return f"invalid resource pools were encountered: {'/'.join(key)}: {reason}"


def allocate(claims: Sequence[ResourceClaim], node: NodeView, world: World) -> Allocation | Refusal:
    """What the claims of one pod would get together on the node, in the order given; nothing is changed."""
    prepared = world.prepare(claims)
    return prepared if isinstance(prepared, Refusal) else world.ask(prepared, node)
