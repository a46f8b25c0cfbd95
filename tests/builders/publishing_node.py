"""A node that publishes what is decided: its pool at an API server, what claims hold, and a clock, all as values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from dra_driver.cli import kubelet_plugin
from dra_driver.driver.node.decide import Memory, NodeSnapshot, Wanted, decide
from dra_driver.driver.resourceslices.devices import KeptDevice
from dra_driver.driver.resourceslices.kept import Answer, PreparedDevices, PublishedPool, changes
from dra_driver.driver.settings import PARTITIONS_LABEL
from dra_driver.kube.objects.resource import Device
from dra_driver.neuron.host.inventory import NodeInventory
from tests.builders.claims import NODE, host

SETTINGS = kubelet_plugin.read_settings({"node_name": NODE}, {})[0]


@dataclass
class PublishingNode:
    """Looks at its pool as the driver does: tells what is there, answers what is asked, and writes."""

    inventory: NodeInventory = field(default_factory=host)
    partitions: str = "chip"
    allocated: Collection[str] | None = frozenset()
    """Devices that claims have; None: they cannot be listed."""
    prepared: Mapping[str, int | None] = field(default_factory=dict)
    unreadable: frozenset[int] | None = frozenset()
    """Chips of claims with checkpoint files that cannot be read; None: it may be any."""
    counters: bool = True
    taints: bool = True
    kubelet_problem: str = ""
    now: float = 1000.0
    published: tuple[Device, ...] = ()
    is_empty: bool = True
    """Whether the API server has no slice."""
    lists: list[float] = field(default_factory=list)
    """When all claims were listed."""
    messages: list[str] = field(default_factory=list)
    """What people are told of devices that are no longer wanted."""
    look_number: int = 0

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A new run of the driver, which knows what is prepared."""
        self._sources = NodeSnapshot(scan_labels={}, health_decided=True, plugin_pods=(), prepared=self._prepared())
        self._memory = Memory()
        self.decide()

    def decide(self, **news: Any) -> Wanted:
        self._sources = replace(
            self._sources,
            inventory=self.inventory,
            labels={PARTITIONS_LABEL: self.partitions},
            kubelet_problem=self.kubelet_problem,
            moment=self.now,
            now=int(self.now),
            **news,
        )
        before = self._memory.wanted
        wanted, self._memory = decide(self._sources, self._memory, SETTINGS)
        assert not wanted.failures
        self.messages += changes(before.keeping, wanted.keeping)
        return wanted

    def _prepared(self) -> PreparedDevices:
        return PreparedDevices(dict(self.prepared), self.unreadable)

    @property
    def wanted(self) -> Wanted:
        return self._memory.wanted

    @property
    def kept(self) -> Mapping[str, KeptDevice]:
        return self.wanted.keeping.devices

    @property
    def chosen(self) -> tuple[Device, ...]:
        offered = self.wanted.offer
        return offered.devices if self.counters or not offered.counters else offered.fallback

    def look(self, *, publish: bool = True, incomplete: bool = False) -> set[str]:
        """One look, and a write if ``publish``; names of what is kept."""
        question = self.begin_look(incomplete=incomplete)
        if question is not None:
            self.lists.append(self.now)
            allocated = None if self.allocated is None else frozenset(self.allocated)
            self.decide(answer=Answer(question, allocated), prepared=self._prepared())
        if publish:
            self.publish(self.chosen)
            written = PublishedPool(self.look_number, self.published, counters=self.counters, taints=self.taints)
            self.decide(pool=written)
        return set(self.kept)

    def begin_look(self, *, incomplete: bool = False) -> int | None:
        """Tell what the server has; number of the question that is to be answered now, if there is one."""
        self.look_number += 1
        pool = PublishedPool(
            self.look_number, self.published, self.is_empty, incomplete, counters=self.counters, taints=self.taints
        )
        return self.decide(pool=pool, prepared=self._prepared()).keeping.question

    def publish(self, devices: Iterable[Device]) -> None:
        """The API server has these, whoever wrote them."""
        self.published = tuple(item if self.taints else structs.replace(item, taints=()) for item in devices)
        self.is_empty = False

    def wipe(self) -> None:
        """Kubelet deletes the slices."""
        self.published, self.is_empty = (), True

    def looks(self, seconds: float) -> None:
        """Look whenever it is due."""
        end = self.now + seconds
        while (due := self.wanted.keeping.next_look) <= end:
            self.now = max(due, self.now)
            self.look()
        self.now = end

    @property
    def due(self) -> float:
        """When to look again, or never."""
        return self.wanted.keeping.next_look

    @property
    def names(self) -> set[str]:
        """Of the devices published."""
        return {device.name for device in self.published}
