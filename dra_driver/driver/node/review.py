"""Sees to it, before slices are written, that nothing vanishes that claims hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from dra_driver.driver.node.decide import NodeSnapshot, Wanted
from dra_driver.driver.node.loop import NodeLoop
from dra_driver.driver.resourceslices.controller import Desired, DeviceSource
from dra_driver.driver.resourceslices.devices import KeptDevice
from dra_driver.driver.resourceslices.kept import Keeper
from dra_driver.driver.resourceslices.pool import incomplete
from dra_driver.kube.objects.resource import Device, ResourceSlice
from dra_driver.util import runtime


def desired(wanted: Wanted) -> Desired:
    """What is to be published of a decision."""
    offer = wanted.offer
    return Desired(offer.devices, offer.fallback, offer.counters, wanted.revision)


class SliceReview(DeviceSource):
    """What the slice controller asks before it writes.

    Args:
        loop: of the node.
        node_name: name of the node, which is its pool's.
        keeper: says which devices stay that are not wanted any more.
        registered: whether kubelet has registered the driver: before that, no first slice.
        holders: which of some devices claims hold, by their names; None: not known.
    """

    def __init__(
        self,
        loop: NodeLoop,
        node_name: str,
        keeper: Keeper,
        registered: Callable[[], bool] = lambda: True,
        holders: Callable[[Collection[str]], Collection[str] | None] = lambda _: None,
    ) -> None:
        self._loop = loop
        self._node_name = node_name
        self._keeper = keeper
        self._registered = registered
        self._holders = holders

    def held(self, devices: Collection[str]) -> Collection[str] | None:
        """See ``DeviceSource``."""
        return self._holders(devices)

    def too_early(self) -> bool:
        """See ``DeviceSource``."""
        return not self._registered()

    def review(
        self, existing: Sequence[ResourceSlice], chosen: Sequence[Device], *, keeps_taints: bool = True
    ) -> tuple[Desired | None, float]:
        """See ``DeviceSource``."""
        own = [item for item in existing if item.spec.pool.name == self._node_name]
        published = [device for item in own for device in item.spec.devices]
        wanted, sources, _ = self._loop.decision()
        kept = sources.kept
        # A kubelet that has another version than before has just started, and so deleted the slices.
        wiped = (wanted.kubelet_problem or wanted.held_back.chips) and not own
        first = sources.allocated_core_size is None
        doubtful = bool(wiped) or (first and incomplete(own))
        since_start = self._prepared_since_start(chosen) if first and not own else {}
        kept_now = self._keeper.review(
            {**kept, **since_start}, published, chosen, doubtful=doubtful, keeps_taints=keeps_taints
        )
        if kept_now != kept:
            self._loop.update(lambda now: replace(now, kept=kept_now) if now.kept == kept else now)
            return desired(self._loop.wanted), self._keeper.due
        self._note_core_size(chosen)
        return None, self._due()

    def note_published(self, published: Sequence[Device]) -> float:
        """See ``DeviceSource``."""
        self._keeper.note_published(published)
        return self._due()

    def _due(self) -> float:
        return self._keeper.due if self._loop.sources.kept or self._keeper.in_doubt else math.inf

    def _note_core_size(self, chosen: Sequence[Device]) -> None:
        """What the server has now, or will have in a moment, is of the host's core size."""
        wanted, _, memory = self._loop.decision()
        if memory.whole is not None and chosen in (wanted.offer.devices, wanted.offer.fallback):
            self._loop.post(allocated_core_size=memory.whole.core_size)

    def _prepared_since_start(self, chosen: Collection[Device]) -> dict[str, KeptDevice]:
        """What this instance has prepared before its first publication: devices of a former setting, it may be."""
        names = {device.name for device in chosen}
        return kept_devices({name: size for name, size in (self._keeper.prepared() or {}).items() if name not in names})


def kept_devices(core_sizes: Mapping[str, int | None]) -> dict[str, KeptDevice]:
    """Devices that are kept from now on, by name; those of cores with their core size."""
    now = int(runtime.now())
    return {name: KeptDevice(now, size) for name, size in core_sizes.items()}


def with_prepared(
    sources: NodeSnapshot, offered: Collection[str], core_sizes: Mapping[str, int | None]
) -> NodeSnapshot:
    """What is known, when these devices are prepared and those are offered: none is missing in the offer.

    A claim may have been allocated before kubelet deleted the slices, and prepared only after others were published, by
    another setting.
    """
    missing = {name: size for name, size in core_sizes.items() if name not in offered and name not in sources.kept}
    return replace(sources, kept={**sources.kept, **kept_devices(missing)}) if missing else sources
