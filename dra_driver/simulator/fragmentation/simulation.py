"""Simulates one stream of pods on one cluster under one policy."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import islice
from typing import Final

import msgspec

from dra_driver.kube.types import ObjectMeta
from dra_driver.manifests.objects import AllocatedDevice, ResourceClaim, ResourceClaimSpec, ResourceSlice
from dra_driver.simulator.allocator import Allocation, Refusal, Scheduler, Usage, World, allocate
from dra_driver.simulator.fragmentation.cluster import Policy, Site, chips_of, claim_for, device_claim
from dra_driver.simulator.fragmentation.record import Free, Meter, Outcome, Run, free_on, plus
from dra_driver.simulator.fragmentation.scenario import Kind, Workload, arrivals
from dra_driver.topology.fabric import Fabric
from dra_driver.util.errors import DriverError

Claims = tuple[ResourceClaim, ...]
MAX_WORLDS: Final = 512
"""Orders of devices that are kept for each node."""


def simulate(
    workload: Workload,
    where: Sequence[Site],
    world: World,
    policy: Policy,
    seed: int,
    progress: Callable[[float], None] = lambda _: None,
) -> Run:
    """Simulate the arrivals and departures of the stream's pods.

    Args:
        workload: the stream.
        where: the nodes, with all chips free.
        world: classes, selectors and release; its slices and usage are ignored.
        policy: the order in which nodes and devices are tried.
        seed: selects the stream, which is the same for every policy.
        progress: called from time to time with the share of the time that has been simulated.

    Raises:
        DriverError: the nodes have no connected sets for the count of a kind, or a kind does not fit in the empty
            cluster.
    """
    claims = {kind.name: claims_of(kind, where) for kind in workload.kinds}
    _check(workload.kinds, claims, where, world)
    return _Simulation(workload, where, world, policy, claims).run(seed, progress)


def claims_of(kind: Kind, where: Sequence[Site]) -> Claims:
    """The claims of a pod of this kind; raises DriverError if no node has sets of its count."""
    specs = kind.claims
    if kind.count is not None:
        alone = device_claim(kind.device, kind.count)
        specs = (alone if alone is not None else claim_for(kind.count, where, kind.title),)
    return tuple(
        ResourceClaim(ObjectMeta(name=f"{kind.name}-{place}"), ResourceClaimSpec(spec))
        for place, spec in enumerate(specs)
    )


def _check(kinds: Sequence[Kind], claims: Mapping[str, Claims], where: Sequence[Site], world: World) -> None:
    """Reject a kind whose pods would always be refused: it is a mistake in the workload."""
    nodes = [site.node for site in where]
    slices = [item for site in where for item in site.slices]
    for kind in kinds:
        empty = World(slices, world.classes.values(), world.selectors, Usage(), world.release.name)
        answer = Scheduler(empty, nodes).place(claims[kind.name])
        if isinstance(answer, Refusal):
            raise DriverError(
                f"{kind.title} finds no room even while all chips are free: {answer.reason}",
                remedy="change its claims, or take other nodes",
            )


def _reordered(site: Site, order: Sequence[int]) -> list[ResourceSlice]:
    """The slices with their devices in another order."""
    rest = [device for item in site.slices for device in item.spec.devices]
    waiting = iter([rest[place] for place in order])
    return [
        msgspec.structs.replace(
            item, spec=msgspec.structs.replace(item.spec, devices=tuple(islice(waiting, len(item.spec.devices))))
        )
        for item in site.slices
    ]


@dataclass(eq=False, slots=True)
class _Place:
    """A node during the run."""

    site: Site
    taken: int
    """The physical cores in use, as a mask like those of ``Site.parts``."""
    free: int
    """Mask of the chips of which nothing is in use."""
    figures: Free
    changes: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    """Kind -> ``changes`` when the node refused it: an unchanged node would refuse it again."""
    worlds: dict[tuple[int, ...], World] = field(default_factory=dict)
    """Order of the devices -> a world with only this node and its slices in that order; all share the usage."""


def _several(place: _Place, results: Sequence[AllocatedDevice]) -> tuple[Fabric, tuple[int, ...]] | None:
    """The chips of a pod, ascending; None if it has only one device of one chip, or where the links are not known."""
    hardware = place.site.hardware
    fabric = hardware.kind.fabric if hardware.kind is not None else None
    chips = {part.chip for result in results for part in hardware.parts(result.device)}
    if (len(results) < 2 and len(chips) < 2) or fabric is None or fabric.kind == "unknown":
        return None
    return fabric, tuple(sorted(chips & {*range(fabric.size)}))


class _Simulation:
    def __init__(
        self,
        workload: Workload,
        where: Sequence[Site],
        world: World,
        policy: Policy,
        claims: Mapping[str, Claims],
    ) -> None:
        self._workload = workload
        self._world = world
        self._policy = policy
        self._claims = claims
        self._asked = {name: chips_of((item.spec.devices for item in found), where) for name, found in claims.items()}
        self._usage = Usage()
        self._places = [_Place(site, 0, site.everything, free_on(site, site.everything)) for site in where]
        chips = sum(len(place.site.chips) for place in self._places)
        now = reduce(plus, (place.figures for place in self._places), Free())
        self._meter = Meter(chips, now, workload.length, workload.warm_up)
        self._outcomes = {kind.name: Outcome() for kind in workload.kinds}
        self._reasons: dict[str, str] = {}
        self._leaving: list[tuple[float, int, _Place, tuple[AllocatedDevice, ...]]] = []

    def run(self, seed: int, progress: Callable[[float], None]) -> Run:
        for number, arrival in enumerate(arrivals(self._workload, seed)):
            self._depart_until(arrival.hour)
            self._meter.advance(arrival.hour)
            found = self._place(arrival.kind.name)
            if found is not None:
                place, results = found
                self._change(place, results)
                heapq.heappush(self._leaving, (arrival.hour + arrival.stay, number, place, results))
            if arrival.hour >= self._workload.warm_up:
                self._note(arrival.kind.name, found)
            progress(arrival.hour / self._workload.length)
        self._depart_until(self._workload.length)
        self._meter.advance(self._workload.length)
        utilisation, fragmentation, outside = self._meter.figures()
        sizes = {size for place in self._places for size in place.site.sets}
        by_size = {size: value for size, value in outside.items() if size in sizes}
        return Run(
            self._policy.name,
            seed,
            self._outcomes,
            utilisation,
            fragmentation,
            by_size,
            self._meter.moments(),
            self._reasons,
        )

    def _note(self, kind: str, found: tuple[_Place, tuple[AllocatedDevice, ...]] | None) -> None:
        outcome, asked = self._outcomes[kind], self._asked[kind]
        if found is not None:
            outcome.placed += 1
            if (chips := _several(*found)) is not None:
                fabric, members = chips
                outcome.several += 1
                outcome.linked += fabric.is_connected(members)
                outcome.connected += members in fabric.connected_sets(len(members))
            return
        outcome.refused += 1
        if asked is not None and asked <= self._meter.free:
            outcome.refused_with_chips_free += 1

    def _depart_until(self, hour: float) -> None:
        while self._leaving and self._leaving[0][0] <= hour:
            when, _, place, results = heapq.heappop(self._leaving)
            self._meter.advance(when)
            self._usage.release(results)
            self._change(place, results)

    def _change(self, place: _Place, results: Sequence[AllocatedDevice]) -> None:
        """Mark these devices as in use if they were free, and vice versa."""
        site = place.site
        for result in results:
            if not result.admin_access:
                place.taken ^= site.parts[result.device]
        busy = site.chips_in(place.taken)
        place.free = site.everything & ~busy
        partly = busy.bit_count() - place.taken.bit_count() / site.cores
        before, place.figures = place.figures, free_on(site, place.free, partly)
        place.changes += 1
        self._meter.change(before, place.figures)

    def _place(self, kind: str) -> tuple[_Place, tuple[AllocatedDevice, ...]] | None:
        """The first fitting node in the policy's order; the devices that it allocates are in use from then on."""
        order, count = self._policy.nodes, self._asked[kind]
        for place in sorted(self._places, key=lambda item: order(item.site, item.free, count)):
            if place.refused.get(kind) == place.changes:
                continue
            answer = allocate(self._claims[kind], place.site.node, self._published(place))
            if isinstance(answer, Allocation):
                results = tuple(device for result in answer.results for device in result.devices.results)
                self._usage.take(results)
                return place, results
            if answer.fatal:
                self._reasons[kind] = answer.reason
                return None
            place.refused[kind] = place.changes
        return None

    def _published(self, place: _Place) -> World:
        """The node as the driver would have published it by now."""
        order = self._policy.devices(place.site, place.free)
        if order not in place.worlds:
            if len(place.worlds) >= MAX_WORLDS:
                place.worlds.clear()
            given = self._world
            slices = _reordered(place.site, order)
            place.worlds[order] = World(
                slices, given.classes.values(), given.selectors, self._usage, given.release.name
            )
        return place.worlds[order]
