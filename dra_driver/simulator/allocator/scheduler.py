"""Schedules claims over a whole cluster: each goes to the first fitting node, by name, or to a chosen one.

A node that refused claims is not tried again for equal ones as long as nothing is released: more devices in use cannot
turn a refusal into an allocation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from dra_driver.kube.objects.resource import DeviceRequestAllocationResult, ResourceClaim
from dra_driver.simulator.allocator.nodes import NodeView
from dra_driver.simulator.allocator.pool_devices import TimeOver
from dra_driver.simulator.allocator.requests import PreparedClaim
from dra_driver.simulator.allocator.world import NO_SOLUTION, TIME_OVER, Allocation, Refusal, World

MAX_CHOSEN_FROM = 100
"""Number of feasible nodes after which kube-scheduler stops in small clusters; it evaluates more in large ones."""


def nodes_with_room(nodes: int) -> int:
    """The number of feasible nodes after which kube-scheduler stops searching (``numFeasibleNodesToFind``)."""
    percentage = max(50 - nodes // 125, 5)
    return min(nodes, max(100, nodes * percentage // 100))


def _key(claims: Sequence[PreparedClaim]) -> bytes:
    """Equal for claims with equal requests."""
    return msgspec.json.encode([item.claim.spec for item in claims], order="sorted")


@dataclass(frozen=True, slots=True)
class _Trial:
    """The allocation that claims got on a node when they were tried there."""

    state: tuple[int, ...]
    """State of the node's pools; if it has changed, the node has to be tried again."""
    claims: Sequence[PreparedClaim]
    """The claims that were tried. Equal ones get the same result, except for ids derived from their names."""
    answer: Allocation


class Scheduler:
    """Allocates the devices of a world. Allocated devices are in use from then on."""

    def __init__(self, world: World, nodes: Iterable[NodeView]) -> None:
        self.world = world
        self._nodes = sorted(nodes, key=lambda node: node.name)
        self._sound: dict[bytes, set[str]] = {}
        """By claims, the nodes on which scheduling does not end with an error, whatever is in use."""
        self._open: dict[tuple[bytes, tuple[str, ...] | None], list[NodeView]] = {}
        self._trials: dict[tuple[bytes, str], _Trial] = {}
        """Results by claims and node."""

    def place(
        self,
        claims: Sequence[ResourceClaim],
        on: Sequence[NodeView] | None = None,
        choose: Callable[[Sequence[Allocation]], Allocation] | None = None,
    ) -> Allocation | Refusal:
        """Allocate the claims of one pod together.

        Args:
            claims: in the pod's order; none of them is in use by other pods.
            on: the only eligible nodes, in the order in which they are tried.
            choose: selects one of several allocations, given in the order of the nodes. It is called if there are few
                enough eligible nodes that kube-scheduler evaluates all of them. Otherwise, or if it is None, the first
                fitting node is used.
        """
        prepared = self.world.prepare(claims)
        if isinstance(prepared, Refusal):
            return prepared
        key = _key(prepared)
        waiting = self._not_refused(key, prepared, on)
        looks_at_all = len(waiting) <= MAX_CHOSEN_FROM
        most = 1 if choose is None else len(waiting) if looks_at_all else 2
        allocations = self._allocations(key, prepared, waiting, most)
        if isinstance(allocations, Refusal):
            return allocations
        try:
            error = self._error_elsewhere(prepared, waiting[-2::-1])
        except TimeOver:
            return TIME_OVER
        if error is not None:
            return error
        chosen = allocations[0]
        if len(allocations) > 1:
            chosen = choose(allocations) if choose is not None and looks_at_all else replace(chosen, choice="name")
        trial = self._trials[key, chosen.node]
        if trial.claims is not prepared:
            own = self.world.ask(prepared, next(node for node in waiting if node.name == chosen.node))
            chosen = replace(own, choice=chosen.choice) if isinstance(own, Allocation) else chosen
        for result in chosen.results:
            self.world.usage.take(result.devices.results)
        return chosen

    def _allocations(
        self, key: bytes, claims: Sequence[PreparedClaim], waiting: list[NodeView], most: int
    ) -> list[Allocation] | Refusal:
        """Try ``waiting`` from its end until ``most`` nodes fit; nodes that refuse are removed from it."""
        allocations: list[Allocation] = []
        refusal = Refusal(NO_SOLUTION)
        for place in reversed(range(len(waiting))):
            answer = self._ask(key, claims, waiting[place])
            if isinstance(answer, Allocation):
                allocations.append(answer)
                if len(allocations) == most:
                    break
            elif answer.fatal:
                return answer
            else:
                refusal = answer
                del waiting[place]
        return allocations or refusal

    def _ask(self, key: bytes, claims: Sequence[PreparedClaim], node: NodeView) -> Allocation | Refusal:
        """Like ``World.ask``, but a node that has not changed since is not tried again."""
        trial = self._trials.get((key, node.name))
        if trial is not None and trial.state == self.world.state(node):
            return trial.answer
        answer = self.world.ask(claims, node)
        if isinstance(answer, Allocation):
            self._trials[key, node.name] = _Trial(self.world.state(node), claims, answer)
        return answer

    def _error_elsewhere(self, claims: Sequence[PreparedClaim], nodes: Iterable[NodeView]) -> Refusal | None:
        """An error that ends scheduling on a node after the first fitting one: Kubernetes evaluates those too.

        In clusters of fewer than 100 nodes it evaluates all of them. In larger ones it stops when enough nodes fit, and
        its starting point is unpredictable; here it is the first node by name.
        """
        errors = self.world.errors(claims)
        if errors == "nothing":
            return None
        sound = self._sound.setdefault(_key(claims), set()) if errors == "node" else set()
        wanted = nodes_with_room(len(self._nodes)) - 1
        for node in nodes:
            if wanted <= 0:
                break
            if node.name in sound:
                continue
            answer = self.world.ask(claims, node)
            if isinstance(answer, Refusal) and answer.fatal:
                return answer
            sound.add(node.name)
            wanted -= isinstance(answer, Allocation)
        return None

    def release(self, results: Iterable[DeviceRequestAllocationResult]) -> None:
        """Release devices."""
        self.world.usage.release(results)
        self._open.clear()

    def _not_refused(
        self, key: bytes, claims: Sequence[PreparedClaim], on: Sequence[NodeView] | None
    ) -> list[NodeView]:
        """The nodes that have not refused equal claims, the first one last; the caller may shorten the list."""
        nodes = self._nodes if on is None else on
        if not self._refusals_last([item.claim for item in claims]):
            return list(reversed(nodes))
        refused = (key, None if on is None else tuple(node.name for node in on))
        if refused not in self._open:
            self._open[refused] = list(reversed(nodes))
        return self._open[refused]

    def _refusals_last(self, claims: Sequence[ResourceClaim]) -> bool:
        """Whether refusals are final. Up to 1.36 they may not be: failed attempts can change what constraints allow."""
        release = self.world.release
        if not (release.distinct_by_request or release.all_counts_remaining):
            return True
        options = [
            option
            for claim in claims
            for request in claim.spec.devices.requests
            for option in (request.exactly, *request.first_available)
        ]
        distinct = any(item.distinct_attribute for claim in claims for item in claim.spec.devices.constraints)
        return not distinct and not any(option is not None and option.allocation_mode == "All" for option in options)
