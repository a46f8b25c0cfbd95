"""The nodes asked one by one. What nodes alike have in common is found out once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dra_driver.simulator.allocator import Allocation, NodeView, Refusal
from dra_driver.simulator.allocator.constraints import value
from dra_driver.simulator.allocator.offers import Offer, Pool
from dra_driver.simulator.explain.diagnosis import Case, attribute, diagnosis
from dra_driver.simulator.explain.errors import error_diagnosis
from dra_driver.simulator.explain.findings import Finding
from dra_driver.simulator.explain.shares import ROW
from dra_driver.simulator.explain.sights import Sight, sights, wishes
from dra_driver.simulator.explain.values import Diagnosis
from dra_driver.util.errors import DriverError

FITS = Diagnosis("fits", "the claims fit")


class Survey:
    """The answers of the nodes, in the order in which the scheduler asks them."""

    def __init__(self, case: Case, excluded: Mapping[str, str]) -> None:
        self._case = case
        self._excluded = excluded
        self._known: dict[object, Diagnosis] = {}
        self._wishes = wishes(case)
        self.sights: list[Sight] = []
        self.asked: list[NodeView] = []
        self.found: dict[str, Diagnosis] = {}
        self.could: list[Allocation] = []
        self.errors: list[tuple[NodeView, Refusal]] = []

    def ask(self, node: NodeView) -> None:
        """Ask one node."""
        if node.name in self._excluded:
            self.found[node.name] = Diagnosis("pod", self._excluded[node.name])
            return
        answer = self._case.world.ask(self._case.prepared, node)
        seen = self.look_at(node, searched=isinstance(answer, Allocation) or not answer.fatal)
        if isinstance(answer, Allocation):
            self.took(answer)
        elif answer.fatal:
            self.found[node.name] = _error(self._case, node, answer)
            self.errors.append((node, answer))
        else:
            self.found[node.name] = self._diagnosis(node, answer, seen)

    def look_at(self, node: NodeView, *, searched: bool = True) -> list[Sight]:
        """Each request on the node; nothing where the slices cannot be read, which the allocator will tell."""
        self.asked.append(node)
        try:
            seen = sights(self._case, self._wishes, node, searched=searched)
        except DriverError:
            return []
        self.sights += seen
        return seen

    def took(self, answer: Allocation) -> None:
        """Note that a node does."""
        self.could.append(answer)
        self.found[answer.node] = FITS

    def _diagnosis(self, node: NodeView, answer: Refusal, seen: Sequence[Sight]) -> Diagnosis:
        """The parts of the claims are tried on one of the nodes on which nothing tells the difference."""
        look = _look(self._case, seen)
        known = self._known.get(look)
        if known is None:
            known = self._known[look] = diagnosis(self._case, node, answer)
        return known


def _error(case: Case, node: NodeView, refusal: Refusal) -> Diagnosis:
    try:
        return error_diagnosis(case, node, refusal)
    except DriverError:
        # Slices that cannot be read at all: there are no devices to look at.
        return Diagnosis("error", f"an error ends the search here: {refusal.reason}")


def _look(case: Case, seen: Sequence[Sight]) -> object:
    """Everything about a node that a diagnosis can depend on, its name and those of its pools left out."""
    pools = tuple(_pool_look(case, pool) for pool in (seen[0].pools if seen else ()))
    return pools, tuple(_device_look(case, sight, *pair) for sight in seen for pair in sight.pairs)


def _pool_look(case: Case, pool: Pool) -> object:
    if not pool.usable:
        return pool.key, pool.incomplete, pool.invalid
    if pool.counters:
        return pool.key[0], tuple(pool.counters.items()), frozenset(case.world.usage.in_pool(pool.key))
    return pool.key[0]


def _device_look(case: Case, sight: Sight, offer: Offer, finding: Finding) -> object:
    attributes = [attribute(spec) for spec in sight.wish.constraints]
    values = tuple(value(offer, name) for name in (*attributes, ROW))
    shares = tuple(case.world.usage.consumed(offer.id).items()) if offer.shareable else ()
    return id(sight.wish.option), finding, values, offer.consumes, shares
