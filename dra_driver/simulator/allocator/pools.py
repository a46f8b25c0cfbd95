"""From slices to the pools that a node can use.

Only the newest generation of a pool is effective. A pool with missing slices is incomplete: nothing is allocated from
it, and ``All`` fails. A pool that contradicts itself is invalid. Slices are tried in the order of their names, pools by
driver and name, and pools with binding conditions last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property

from dra_driver.kube.objects.resource import ResourceSlice
from dra_driver.kube.quantity import nanos
from dra_driver.simulator.allocator.nodes import NodeView, matches
from dra_driver.simulator.allocator.pool_devices import Contents, CounterKey, Pool, PoolDevice, PoolKey
from dra_driver.simulator.allocator.release import Release


class PoolIndex:
    """All slices of a cluster, and the pools of each node, which are built once."""

    def __init__(self, slices: Iterable[ResourceSlice], release: Release) -> None:
        self._release = release
        self._all: dict[PoolKey, list[ResourceSlice]] = defaultdict(list)
        self._newest: dict[PoolKey, int] = {}
        self._on_node: dict[str, list[ResourceSlice]] = defaultdict(list)
        self._shared: list[ResourceSlice] = []
        self._everywhere: dict[PoolKey, list[ResourceSlice]] = defaultdict(list)
        self._offers: dict[int, tuple[PoolDevice, ...]] = {}
        self._contents = Contents()
        self._pools: dict[str, tuple[NodeView, tuple[Pool, ...]]] = {}
        self._foreign: tuple[Pool, ...] | None = None
        self._grouped: set[PoolKey] = set()
        for item in slices:
            self._add(item)

    def _add(self, item: ResourceSlice) -> None:
        spec = item.spec
        key = (spec.driver, spec.pool.name)
        self._newest[key] = max(self._newest.get(key, 0), spec.pool.generation)
        if not self._release.knows_no_groups and _has_compatibility_groups(item):
            # The pool remains incomplete.
            self._grouped.add(key)
            return
        self._all[key].append(item)
        if spec.shared_counters and self._release.counters_everywhere:
            self._everywhere[key].append(item)
        elif spec.node_name:
            self._on_node[spec.node_name].append(item)
        else:
            self._shared.append(item)

    def pools(self, node: NodeView) -> tuple[Pool, ...]:
        """The pools of a node in the order in which they are tried.

        Raises NodeSelectorError if the selector of a slice cannot be parsed, and QuantityError for an invalid counter.
        """
        entry = self._pools.get(node.name)
        if entry is None or entry[0] != node:
            entry = self._pools[node.name] = (node, self._gather(node))
        return entry[1]

    @cached_property
    def kinds_of_offers(self) -> tuple[PoolDevice, ...]:
        """One device for each distinct view, whatever node it is for."""
        return tuple(
            {
                id(offer.content): offer
                for items in self._all.values()
                for item in items
                for offer in self._offers_of(item)
            }.values()
        )

    @cached_property
    def peculiar(self) -> bool:
        """Whether node selectors or shares are used in a way that can end scheduling with an error."""
        return any(
            item.spec.node_selector is not None or item.spec.per_device_node_selection
            for items in self._all.values()
            for item in items
        ) or any(offer.shareable for offer in self.kinds_of_offers)

    def _gather(self, node: NodeView) -> tuple[Pool, ...]:
        slices: dict[PoolKey, list[ResourceSlice]] = defaultdict(list)
        for item in (*self._on_node.get(node.name, ()), *self._shared):
            if _relevant(item, node):
                slices[item.spec.driver, item.spec.pool.name].append(item)
        for key in slices:
            slices[key] += self._everywhere.get(key, ())
        pools = [pool for key, items in slices.items() if (pool := self._pool(key, items)) is not None]
        pools += [pool for pool in self._counters_only() if pool.key not in slices]
        return tuple(sorted(pools, key=lambda pool: (_has_binding_conditions(pool), pool.key)))

    def _counters_only(self) -> tuple[Pool, ...]:
        """Pools of which a node sees only the counters, if that is relevant: incomplete or invalid ones."""
        if self._foreign is None:
            pools = (self._pool(key, items) for key, items in self._everywhere.items())
            self._foreign = tuple(pool for pool in pools if pool is not None and not pool.usable)
        return self._foreign

    def _pool(self, key: PoolKey, relevant: Sequence[ResourceSlice]) -> Pool | None:
        """One pool; None if there is a newer generation without anything for this node."""
        generation = max(item.spec.pool.generation for item in relevant)
        current = [item for item in relevant if item.spec.pool.generation == generation]
        wanted = current[0].spec.pool.resource_slice_count
        rest: list[ResourceSlice] = []
        if len(current) != wanted:
            if self._newest[key] > generation:
                return None
            complete = [item for item in self._all[key] if item.spec.pool.generation == generation]
            if len(complete) != wanted:
                return Pool(key, incomplete=True, grouped=key in self._grouped)
            names = {item.metadata.name for item in current}
            rest = [item for item in complete if item.metadata.name not in names]
        return self._build(key, sorted(current, key=lambda item: item.metadata.name), rest)

    def _build(self, key: PoolKey, current: Sequence[ResourceSlice], rest: Sequence[ResourceSlice]) -> Pool:
        offers = [offer for item in current if not item.spec.shared_counters for offer in self._offers_of(item)]
        twice = _first_repeated(offer.device.name for offer in offers)
        if twice is not None:
            return Pool(key, invalid=f"duplicate device name {twice}")
        # Before 1.37, only counters of relevant slices are found, but all slices with counters are relevant.
        sources = [item for item in (*current, *rest) if item.spec.shared_counters]
        sets = [counter_set for item in sources for counter_set in item.spec.shared_counters]
        twice = _first_repeated(counter_set.name for counter_set in sets)
        if twice is not None:
            return Pool(key, invalid=f"duplicate counter set name {twice}")
        counters = {
            (group.name, name): nanos(counter.value) for group in sets for name, counter in group.counters.items()
        }
        elsewhere = [offer for item in rest if not item.spec.shared_counters for offer in self._offers_of(item)]
        names = {group.name for group in sets}
        invalid = next(
            (text for offer in (*offers, *elsewhere) if (text := _unknown_counter(offer, names, counters))), ""
        )
        if invalid:
            return Pool(key, invalid=invalid)
        return Pool(key, tuple(offers), tuple(elsewhere), counters)

    def _offers_of(self, item: ResourceSlice) -> tuple[PoolDevice, ...]:
        offers = self._offers.get(id(item))
        if offers is None:
            spec = item.spec
            offers = self._offers[id(item)] = tuple(
                PoolDevice(spec.driver, spec.pool.name, one, spec, self._contents.of(spec.driver, one))
                for one in spec.devices
            )
        return offers


def _relevant(item: ResourceSlice, node: NodeView) -> bool:
    spec = item.spec
    if spec.node_name or spec.all_nodes or spec.node_selector is not None:
        return matches(node, spec.node_name, spec.all_nodes, spec.node_selector)
    return bool(spec.per_device_node_selection) and any(
        matches(node, device.node_name, device.all_nodes, device.node_selector) for device in spec.devices
    )


def _has_compatibility_groups(item: ResourceSlice) -> bool:
    return any(entry.compatibility_groups for device in item.spec.devices for entry in device.consumes_counters)


def _unknown_counter(offer: PoolDevice, sets: set[str], counters: dict[CounterKey, int]) -> str:
    for entry in offer.device.consumes_counters:
        if entry.counter_set not in sets:
            return f"counter set {entry.counter_set} not found"
        for name in entry.counters:
            if (entry.counter_set, name) not in counters:
                return f"counter {name} not found in counter set {entry.counter_set}"
    return ""


def _first_repeated(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _has_binding_conditions(pool: Pool) -> bool:
    return any(offer.device.binding_conditions is not None for offer in pool.offers)
