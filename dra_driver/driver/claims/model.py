"""The values of claims: the plan of one, why one is refused, and an index of what prepared ones hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

import msgspec

from dra_driver.health.policy import Blocking
from dra_driver.util.errors import DriverError

DEVICE_PATH = "/dev/neuron"

Consumers = Mapping[str, frozenset[str] | None]
"""Pods (UIDs) that claims are reserved for now, by claim UID; None: could not be found out."""


Unhealthy = Mapping[int, tuple[Blocking, ...]]
"""What is wrong with chips, by host index (``health.policy.HealthPolicy.blocking``)."""


class PrepareError(DriverError):
    """A claim that is not prepared. kubelet puts the text into the pod's event and tries again later."""


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What an administrator decides."""

    node_name: str
    """Name of the Node object, which is also the name of the pool."""
    device_numbering: Literal["renumber", "host"] = "renumber"
    """``renumber``: a claim's chips are /dev/neuron0..k-1 in host order; ``host``: they keep the host's numbers."""
    contiguity: Literal["refuse", "warn", "allow"] = "warn"
    """What to do with a claim whose host ids are no contiguous run."""
    unhealthy: Literal["warn", "refuse"] = "warn"
    """What to do with a claim that has an unhealthy chip and does not tolerate its taint."""


class ChipNode(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One chip in a container."""

    chip: int
    """N of ``/dev/neuronN`` on the host."""
    number: int
    """N of ``/dev/neuronN`` in the container."""
    major: int
    minor: int
    cores: tuple[int, ...] = ()
    """Physical NeuronCores that are held of it, ascending; (): the whole chip."""

    @property
    def host_path(self) -> str:
        """Device node on the host (which may not exist: a runtime needs major and minor only)."""
        return f"{DEVICE_PATH}{self.chip}"

    @property
    def container_path(self) -> str:
        """Device node in the container."""
        return f"{DEVICE_PATH}{self.number}"


class PlannedDevice(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One allocation result of this driver."""

    request: str
    """``name`` or ``name/subrequest``."""
    pool: str
    device: str
    nodes: tuple[ChipNode, ...]
    admin: bool = False
    """Admin access: the chips are shown, not held."""
    cdi_name: str = ""
    """Name of its CDI device. Kept, since kubelet passes it at each start of a container, also after an update."""


class Plan(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What one claim gets on this node. Stored as it is; everything else is derived from it.

    New fields must have defaults, so that a file of an older version can still be read.
    """

    namespace: str
    name: str
    uid: str
    devices: tuple[PlannedDevice, ...]
    env: dict[str, str] = msgspec.field(default_factory=dict)
    """For every container that uses any device of the claim."""
    pods: tuple[str, ...] | None = ()
    """UIDs of the pods that the claim was reserved for; None: reserved for something that stands for unknown pods."""
    own_pod: str = ""
    """UID of the one pod that can ever use the claim (made from a template for it), or ""."""
    warnings: tuple[str, ...] = ()
    parameters: str | None = None
    """Digest of the allocation's opaque parameters for this driver, "" when it has none; None: kept by a version that
    did not look at them."""

    @property
    def reference(self) -> str:
        """``namespace/name`` for texts."""
        return f"{self.namespace}/{self.name}"

    @property
    def nodes(self) -> dict[int, ChipNode]:
        """All chips by container number."""
        return {node.number: node for device in self.devices for node in device.nodes}

    @property
    def held_chips(self) -> tuple[int, ...]:
        """Chips that no other claim may have, ascending."""
        return tuple(sorted({node.chip for device in self.devices if not device.admin for node in device.nodes}))


class CheckpointEntry(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A plan as the checkpoint keeps it."""

    plan: Plan
    boot_id: str = ""
    """Boot of the node in which the claim was last prepared: containers of an earlier boot are gone."""

    def outlived(self, boot_id: str) -> bool:
        """Whether the node was certainly booted since, so that no container runs that was given the plan."""
        return bool(self.boot_id and boot_id) and self.boot_id != boot_id


_ANY_POD = "*"
"""Stands for the unknown pods of a claim that is reserved for something else than pods."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A claim whose checkpoint file cannot be read, or is missing though the claim has a CDI spec.

    What it held stays held until it is known to be free.
    """

    uid: str
    path: str
    """Where the file is now, or was."""
    reason: str
    chips: frozenset[int] | None
    """What it held as far as its CDI spec or the API server shows; None: not known, so it may be anything."""
    shown: Mapping[int, int] = field(default_factory=dict)
    """Chips by container number, as far as its CDI spec shows."""

    @property
    def problem(self) -> str:
        """What is wrong with the file and where it is, for texts."""
        return f"{self.reason}: {self.path}"


class _Namespace:
    """Claims that pods of one namespace may use."""

    def __init__(self) -> None:
        self.claims: dict[str, Plan] = {}
        self.by_pod: dict[str, dict[str, Plan]] = {}
        self.shareable: dict[str, Plan] = {}
        self.shown: dict[int, Counter[int]] = {}
        """Of the shareable claims: how many show a chip under a container number."""

    def add(self, plan: Plan) -> None:
        self.claims[plan.uid] = plan
        for pod in _pods(plan):
            self.by_pod.setdefault(pod, {})[plan.uid] = plan
        if not plan.own_pod:
            self.shareable[plan.uid] = plan
            for number, node in plan.nodes.items():
                self.shown.setdefault(number, Counter())[node.chip] += 1

    def discard(self, plan: Plan) -> None:
        del self.claims[plan.uid]
        for pod in _pods(plan):
            del self.by_pod[pod][plan.uid]
            if not self.by_pod[pod]:
                del self.by_pod[pod]
        if self.shareable.pop(plan.uid, None) is not None:
            for number, node in plan.nodes.items():
                self.shown[number] -= Counter({node.chip: 1})


class PreparedClaims:
    """Prepared claims by UID, by chip and by who uses them. Changed only by the checkpoint, under its lock."""

    def __init__(self, entries: Iterable[CheckpointEntry] = (), quarantined: Iterable[Quarantined] = ()) -> None:
        self._entries: dict[str, CheckpointEntry] = {}
        self._holders: dict[int, str] = {}
        self._namespaces: dict[str, _Namespace] = {}
        self._missing: set[str] = set()
        self._quarantined = {item.uid: item for item in quarantined}
        for entry in entries:
            self.add(entry)

    @property
    def entries(self) -> Mapping[str, CheckpointEntry]:
        """Prepared claims by UID."""
        return MappingProxyType(self._entries)

    @property
    def missing(self) -> AbstractSet[str]:
        """Prepared claims whose checkpoint file was removed: they are held until the API server settles it."""
        return self._missing

    @property
    def quarantined(self) -> Mapping[str, Quarantined]:
        """Unreadable checkpoint files by the claim UID in their name."""
        return MappingProxyType(self._quarantined)

    def holder(self, chip: int) -> Plan | None:
        """The claim that has the chip for itself."""
        uid = self._holders.get(chip)
        return None if uid is None else self._entries[uid].plan

    def quarantined_holder(self, chip: int, *, exclude: str) -> Quarantined | None:
        """An unreadable file of another claim than ``exclude`` that may hold the chip."""
        for item in self._quarantined.values():
            if item.uid != exclude and (item.chips is None or chip in item.chips):
                return item
        return None

    def shown_by_quarantined(self, *, exclude: str) -> dict[int, int]:
        """Chips by container number that claims with unreadable files show: their namespaces are not known."""
        return {
            number: chip
            for item in self._quarantined.values()
            if item.uid != exclude
            for number, chip in item.shown.items()
        }

    def used_by(self, namespace: str, pods: frozenset[str] | None) -> list[Plan]:
        """Claims that one of the pods uses, according to their plans; ``None``: pods that are not known."""
        found = self._namespaces.get(namespace)
        if found is None or (pods is not None and not pods):
            return []
        if pods is None:
            return list(found.claims.values())
        plans: dict[str, Plan] = {}
        for pod in (*pods, _ANY_POD):
            plans |= found.by_pod.get(pod, {})
        return list(plans.values())

    def shareable_with_other(self, namespace: str, chip_at: Mapping[int, int]) -> list[Plan]:
        """Claims whose pods may have changed since, and that show another chip under one of the numbers."""
        found = self._namespaces.get(namespace)
        if found is None or not any(
            chip != wanted for number, wanted in chip_at.items() for chip in found.shown.get(number, ())
        ):
            return []
        return [
            plan
            for plan in found.shareable.values()
            if any(chip_at.get(number, node.chip) != node.chip for number, node in plan.nodes.items())
        ]

    def add(self, entry: CheckpointEntry, *, missing: bool = False) -> None:
        """Put a claim in, or replace it."""
        plan = entry.plan
        self.discard(plan.uid)
        if missing:
            self._missing.add(plan.uid)
        self._entries[plan.uid] = entry
        self._namespaces.setdefault(plan.namespace, _Namespace()).add(plan)
        for chip in plan.held_chips:
            self._holders[chip] = plan.uid

    def discard(self, uid: str) -> None:
        """Take a claim out; unknown ones are fine."""
        self._missing.discard(uid)
        entry = self._entries.pop(uid, None)
        if entry is None:
            return
        plan = entry.plan
        namespace = self._namespaces[plan.namespace]
        namespace.discard(plan)
        if not namespace.claims:
            del self._namespaces[plan.namespace]
        for chip in plan.held_chips:
            if self._holders.get(chip) == uid:
                del self._holders[chip]

    def quarantine(self, item: Quarantined) -> None:
        """Put an unreadable file in, or what is now known of it."""
        self._quarantined[item.uid] = item

    def settle(self, uid: str) -> None:
        """Forget an unreadable file; unknown ones are fine."""
        self._quarantined.pop(uid, None)


def _pods(plan: Plan) -> tuple[str, ...]:
    return (_ANY_POD,) if plan.pods is None else plan.pods
