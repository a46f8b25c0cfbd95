"""What a node offers now: news goes in, and after each an ``Offer`` comes out, with what preparations need to know.

News is of the host, its chips' health, the administrator's word, kubelet, a device plugin, and what claims hold.
Threads bring it at any time. An offer is made and handed over under one lock, so the one that stays has all news in it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dra_driver.driver.claims.prepare import NodeFacts
from dra_driver.driver.node.decide import Memory, NodeSnapshot, decide
from dra_driver.driver.resourceslices.controller import Desired, DeviceSource
from dra_driver.driver.resourceslices.devices import (
    KeptDevice,
    Offer,
)
from dra_driver.driver.resourceslices.kept import Keeper
from dra_driver.driver.resourceslices.pool import incomplete
from dra_driver.driver.settings import PARTITIONS_LABEL, DriverSettings
from dra_driver.kube.kubelet.podresources import PodDevices
from dra_driver.kube.objects.resource import Device, ResourceSlice
from dra_driver.neuron.exclusion import HeldBack
from dra_driver.neuron.health.faults import NodeHealth
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.topology.partitions import Partitions
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OfferState:
    """What is offered now, and why not more. Nothing yet, to begin with."""

    offer: Offer = field(default=Offer(()))
    held_back: HeldBack = field(default=HeldBack())
    """Because of a device plugin."""
    label_problem: str = ""
    """Why the Node's label that sets what is offered is ignored, or ""."""
    kubelet_problem: str = ""
    """Why nothing is offered that no claim holds, or ""."""


class Offering(DeviceSource):
    """The offer of one node, from its start on.

    Args:
        settings: what an administrator sets.
        health: how well the chips are, as far as it is known.
        plugin_pods: the pods that have chips from a device plugin; None: not known.
        keeper: says which devices stay that are not wanted any more.
        publish: called with each offer that is to be published, and what is held back from it.
        registered: whether kubelet has registered the driver: before that, no first slice.
        holders: which of some devices claims hold, by their names; None: not known.
    """

    def __init__(
        self,
        settings: DriverSettings,
        health: NodeHealth,
        plugin_pods: Callable[[], Sequence[PodDevices] | None],
        keeper: Keeper,
        publish: Callable[[Desired, HeldBack], None],
        registered: Callable[[], bool] = lambda: True,
        holders: Callable[[Collection[str]], Collection[str] | None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._health = health
        self._plugin_pods = plugin_pods
        self._keeper = keeper
        self._publish = publish
        self._registered = registered
        self._holders = holders
        self._lock = runtime.lock()
        self._wanted = settings.partitions
        """By the label of this node, else by the setting for all; None: nothing in particular."""
        self._label_problem = ""
        self._kubelet_problem = ""
        self._latest_plugin = ""
        """What a device plugin offers of the node, as the Node's status says."""
        self._device_plugin = ""
        """The same, or what it did until a moment ago."""
        self._inventory: NodeInventory | None = None
        """What is published follows from it; None: nothing may be published yet."""
        self._memory = Memory()
        self._kept: Mapping[str, KeptDevice] = {}
        """Devices that are on offer only because claims hold them, or may hold them."""
        self._core_size: int | None = None
        """The host's, by which cores are published; None: nothing has been compared with the server yet."""
        self.now = OfferState()
        """Replaced as a whole: read it once, use that."""
        self.facts = NodeFacts()
        """Likewise, for preparations."""

    @property
    def begun(self) -> bool:
        """Whether an offer is to be published already."""
        return self._inventory is not None

    @property
    def whole(self) -> NodeInventory | None:
        """The host as it is offered, with the chips that were lost in this run; None: nothing is offered yet."""
        return self._memory.whole

    # What the slice controller asks

    def held(self, devices: Collection[str]) -> Collection[str] | None:
        """See ``DeviceSource``."""
        return self._holders(devices)

    def too_early(self) -> bool:
        """See ``DeviceSource``."""
        return not self._registered()

    def review(
        self, existing: Sequence[ResourceSlice], chosen: Sequence[Device], *, keeps_taints: bool = True
    ) -> tuple[Desired | None, float]:
        """See to it that nothing vanishes that claims hold (``DeviceSource``)."""
        own = [item for item in existing if item.spec.pool.name == self._settings.node_name]
        published = [device for item in own for device in item.spec.devices]
        kept = dict(self._kept)
        # A kubelet that has another version than before has just started, and so deleted the slices.
        wiped = (self._kubelet_problem or self.now.held_back.chips) and not own
        first = self._core_size is None
        doubtful = bool(wiped) or (first and incomplete(own))
        since_start = self._prepared_since_start(chosen) if first and not own else {}
        kept_now = self._keeper.review(
            kept | since_start, published, chosen, doubtful=doubtful, keeps_taints=keeps_taints
        )
        if kept_now != kept:
            return _desired(self._make(kept=kept_now), runtime.uptime()), self._keeper.due
        with self._lock:
            offered = self.now.offer
            whole = self._memory.whole
            if whole is not None and chosen in (offered.devices, offered.fallback):
                self._core_size = whole.core_size
                self.facts = replace(self.facts, core_sizes=offered.core_sizes)
        return None, self._keeper.due if kept or self._keeper.in_doubt else math.inf

    def _prepared_since_start(self, chosen: Collection[Device]) -> dict[str, KeptDevice]:
        """What this instance has prepared before its first publication: devices of a former setting, it may be."""
        names = {device.name for device in chosen}
        prepared = self._keeper.prepared() or {}
        return {name: KeptDevice(int(runtime.now()), size) for name, size in prepared.items() if name not in names}

    # News

    def keep(self, prepared: Mapping[str, int | None]) -> None:
        """An instance before this one has prepared these devices, with the core sizes of cores: they stay."""
        self._kept = {name: KeptDevice(int(runtime.now()), core_size) for name, core_size in prepared.items()}

    def prepared(self, devices: Mapping[str, int | None]) -> None:
        """These are prepared now, with the core sizes of cores: none of them is missing in the offer.

        A claim may have been allocated before kubelet deleted the slices, and prepared only after others were
        published, by another setting.
        """
        with self._lock:
            offered = {device.name for device in self.now.offer.devices}
            missing = {name: size for name, size in devices.items() if name not in offered}
            now = int(runtime.now())
            kept = {**self._kept, **{name: KeptDevice(now, size) for name, size in missing.items()}}
        if missing and self.begun:
            self._make(kept=kept)

    def label(self, text: str | None) -> None:
        """The Node's label says this of what it is to offer; None: it has none. Counts from the next news on."""
        problem, wanted = "", self._settings.partitions
        if text is not None:
            try:
                wanted = Partitions.parse(text)
            except DriverError as error:
                problem = f"the label {PARTITIONS_LABEL} of the Node is ignored: {error}"
        if problem and problem != self._label_problem:
            log.warning("%s", problem)
        # In one step: an offer may be in the making.
        self._wanted, self._label_problem = wanted, problem

    def kubelet(self, problem: str) -> None:
        """Kubelet's version keeps from the offer what no claim holds, for this reason; "" when it does not."""
        self._kubelet_problem = problem
        self.renew()

    def plugin(self, offers: str) -> bool:
        """A device plugin offers this of the node (``exclusion.plugin_offers``); whether that is news.

        One that offers nothing any more counts as before until its pods are known: they keep their chips, and after a
        restart of kubelet it may be back in a moment.
        """
        with self._lock:
            if offers == self._latest_plugin:
                return False
            self._latest_plugin = offers
            self._device_plugin = offers or self._device_plugin
        self.renew()
        return True

    def plugin_pods_known(self) -> None:
        """It is known, or has changed, which pods have chips from a device plugin."""
        with self._lock:  # in one step: a plugin may come in this moment
            self._device_plugin = self._latest_plugin
        self.renew()

    def health(self, chips: NodeHealth) -> None:
        """The chips are so well now."""
        self._health = chips
        self.renew()

    def renew(self) -> None:
        """Time has passed, or what is asked for has changed."""
        with self._lock:  # the first offer may be in the making, without what has changed
            begun = self.begun
        if begun:
            self._make()

    def scanned(self, inventory: NodeInventory, *, publish: bool = True) -> Offer:
        """The host is so now. Gives the offer, which is not handed over if it is too early to ``publish``."""
        return self._make(inventory, publish=publish)

    def _make(
        self,
        scanned: NodeInventory | None = None,
        *,
        publish: bool = True,
        kept: Mapping[str, KeptDevice] | None = None,
    ) -> Offer:
        """Make the offer anew.

        Args:
            scanned: what the host shows, if that is news; else what was published last counts, as it is by now.
            publish: hand the offer over.
            kept: what claims hold, if that is news.
        """
        with self._lock:
            inventory = scanned or self._inventory
            if inventory is None:
                raise RuntimeError("the host has not been read yet")
            snapshot = NodeSnapshot(
                inventory,
                self._health,
                int(runtime.now()),
                runtime.uptime(),
                self._wanted,
                self._kubelet_problem,
                self._device_plugin,
                self._plugin_pods(),
                self._kept if kept is None else kept,
                self._core_size,
            )
            wanted, memory = decide(snapshot, self._memory, self._settings)
            offered, back = wanted.offer, wanted.held_back
            self.facts = wanted.facts
            held = back if publish else self.now.held_back
            self.now = OfferState(offered, held, self._label_problem, self._kubelet_problem)
            # What was not published is remembered only as far as it is wrong with chips.
            self._memory = memory if publish else replace(memory, whole=self._memory.whole)
            if publish:
                self._inventory = inventory
                self._kept = {name: one for name, one in snapshot.kept.items() if name in offered.retired}
                self._publish(_desired(offered, snapshot.uptime), back)
            return offered


def _desired(offered: Offer, uptime: float) -> Desired:
    """What is to be published of an offer that was made ``uptime`` seconds after the boot."""
    until = None if offered.until is None else runtime.monotonic() + offered.until - uptime
    return Desired(offered.devices, offered.fallback, offered.counters, until)
