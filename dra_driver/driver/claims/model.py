"""The values of claims: the plan of one, why one is refused, and an index of what prepared ones hold."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import zip_longest
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from dra_driver.kube.objects.core import Pod
from dra_driver.kube.objects.resource import DeviceAttribute, ResourceClaimConsumerReference
from dra_driver.neuron.health.policy import Blocking
from dra_driver.neuron.names import LOGICAL_CORE_SIZE, VISIBLE_CORES
from dra_driver.neuron.topology.partitions import HardwarePart
from dra_driver.util.errors import DriverError

DEVICE_PATH = "/dev/neuron"

Consumers = Mapping[str, frozenset[str] | None]
"""Pods (UIDs) that claims are reserved for now, by claim UID; None: could not be found out."""

Pods = Mapping[str, Pod]
"""Pods by UID."""

Unhealthy = Mapping[int, tuple[Blocking, ...]]
"""What is wrong with chips, by host index (``neuron.health.policy.HealthPolicy.blocking``)."""

Attributes = Mapping[str, Mapping[str, DeviceAttribute]]
"""Attributes by device, as they are published."""

Shown = frozenset[tuple[int, int]]
"""Pairs of a number in a container and the chip that has it there. Where containers have numbers of their own, a number
may stand for several chips, and a chip may have several numbers."""


NOT_PREPARED: Final = "the claim is not prepared"
"""The consequence of most refusals."""


class PrepareError(DriverError):
    """A claim that is not prepared. kubelet puts the text into the pod's event and tries again later.

    Args:
        what, consequence, remedy: see ``DriverError``.
        reason: one word, of those in docs/use/in-containers.md.
        for_now: whether it often ends by itself within seconds.
    """

    def __init__(
        self,
        what: str,
        *,
        consequence: str = "",
        remedy: str = "",
        reason: str = "NotPrepared",
        for_now: bool = False,
    ) -> None:
        super().__init__(what, consequence=consequence, remedy=remedy)
        self.reason = reason
        self.for_now = for_now


@dataclass(frozen=True, slots=True)
class Needs:
    """What a plan depends on beside the claim: to be asked of the API server, and given with the next try."""

    claims: tuple[Plan, ...] = ()
    """Prepared claims: which pods use them now."""
    pods: tuple[ResourceClaimConsumerReference, ...] = ()
    """Pods of the claim."""
    optional: bool = False
    """Whether it can be planned, too, without the right to read these pods."""

    def unmet(self, namespace: str) -> PrepareError:
        """Why a claim of this namespace cannot be prepared when there is no answer."""
        if self.claims:
            names = ", ".join(claim.reference for claim in self.claims)
            what = f"the device numbers depend on which pods use {names}, and the API server has not returned these"
        else:
            names = ", ".join(f"{namespace}/{pod.name}" for pod in self.pods)
            what = f"what a container gets depends on the containers of {names}, which the API server has not returned"
        return PrepareError(what, consequence=NOT_PREPARED, remedy="kubelet tries again")


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What an administrator decides."""

    node_name: str
    """Name of the Node object, which is also the name of the pool."""
    device_numbering: Literal["renumber", "host"] = "renumber"
    """``renumber``: a claim's chips are /dev/neuron0..k-1 in host order; ``host``: they keep the host's numbers."""
    contiguity: Literal["refuse", "warn", "allow"] = "warn"
    """What to do with a claim whose chips (host ids) or cores (as the runtime counts them) are no contiguous run."""
    unhealthy: Literal["warn", "refuse"] = "warn"
    """What to do with a claim that has an unhealthy chip and does not tolerate its taint."""


def base_request(request: str) -> str:
    """The name of a request, which a subrequest of it has before a slash."""
    return request.partition("/")[0]


class ChipNode(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One chip in a container, whole or some of its cores."""

    chip: int
    """N of ``/dev/neuronN`` on the host."""
    number: int
    """N of ``/dev/neuronN`` in the container."""
    major: int
    minor: int
    cores: tuple[int, ...] = ()
    """Physical NeuronCores that the device is made of, ascending; (): the whole chip."""

    @property
    def part(self) -> HardwarePart:
        """The hardware."""
        return HardwarePart(self.chip, self.cores)

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
    cdi_name: str
    """Name of its CDI device. Kept, since kubelet passes it at each start of a container, also after an update."""
    admin: bool = False
    """Admin access: the chips are shown, not held."""
    env: dict[str, str] = msgspec.field(default_factory=dict)
    """Variables for every container that uses the device, beside the claim's: which cores it is to use, and their
    logical size where requests differ. Equal on all devices that one container uses."""
    attributes: dict[str, DeviceAttribute] = msgspec.field(default_factory=dict)
    """What a file tells its containers of it."""

    @property
    def base_request(self) -> str:
        """The request without its subrequest."""
        return base_request(self.request)

    @property
    def has_cores(self) -> bool:
        """Whether it stands for cores, and not only for whole chips."""
        return any(node.cores for node in self.nodes)


class Plan(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What one claim gets on this node. Stored as it is; everything else is derived from it.

    A field that is added to a plan or its parts must have a default, so that a file of an older version can be read.
    """

    namespace: str
    name: str
    uid: str
    devices: tuple[PlannedDevice, ...]
    env: dict[str, str] = msgspec.field(default_factory=dict)
    """Variables for every container, whichever devices of the claim it uses."""
    pods: tuple[str, ...] | None = ()
    """UIDs of the pods that the claim was reserved for; None: reserved for something that stands for unknown pods."""
    consumers: tuple[str, ...] = ()
    """Names of those pods when the claim was prepared: for people."""
    consumer_uids: tuple[str, ...] = ()
    """UIDs of ``consumers``, in their order; () in a file of a version that knew none."""
    own_pod: str = ""
    """UID of the one pod that can ever use the claim (made from a template for it), or ""."""
    warnings: tuple[str, ...] = ()
    parameters: str = ""
    """Digest of the allocation's opaque parameters for this driver, "" when it has none."""
    metadata: str = ""
    """Directory of the files that tell containers what their devices are; "": there are none."""
    pod_claim: str = ""
    """What the pod calls a claim made from a template, or ""."""
    own_group: str = ""
    """UID of the PodGroup whose pods alone can ever use the claim (made from a template for it), or ""."""

    @property
    def reference(self) -> str:
        """``namespace/name`` for texts."""
        return f"{self.namespace}/{self.name}"

    def known_to(self, namespace: str) -> str:
        """Reference and UID, for texts that owners of a namespace's claims read: others are not theirs to know."""
        return f"{self.reference} ({self.uid})" if namespace == self.namespace else f"{self.uid} of another namespace"

    @property
    def reserved_for(self) -> tuple[tuple[str, str], ...]:
        """Name and UID of each of the ``consumers``; "" for a UID that is not known."""
        return tuple(zip_longest(self.consumers, self.consumer_uids[: len(self.consumers)], fillvalue=""))

    @property
    def nodes(self) -> dict[int, ChipNode]:
        """All chips by container number; of containers with numbers of their own, those of the last."""
        return {node.number: node for device in self.devices for node in device.nodes}

    @property
    def shown(self) -> Shown:
        """Numbers in containers and their chips."""
        return frozenset((node.number, node.chip) for device in self.devices for node in device.nodes)

    @property
    def held(self) -> tuple[HardwarePart, ...]:
        """Hardware that no other claim may have, ascending."""
        return tuple(sorted(node.part for device in self.devices if not device.admin for node in device.nodes))

    @property
    def held_chips(self) -> tuple[int, ...]:
        """Chips that no other claim may have, or only other cores of, ascending."""
        return tuple(sorted({part.chip for part in self.held}))

    @property
    def has_cores(self) -> bool:
        """Whether it holds cores, and not only whole chips."""
        return any(device.has_cores for device in self.devices if not device.admin)

    @property
    def tells_cores(self) -> bool:
        """Whether it says which cores its containers use: also of whole chips, if other claims have cores."""
        return any(VISIBLE_CORES in device.env for device in self.devices)

    def core_size(self, device: PlannedDevice) -> int:
        """Physical NeuronCores in a logical core, by the variables of containers with the device."""
        size = (self.env | device.env).get(LOGICAL_CORE_SIZE, "")
        return int(size) if size.isascii() and size.isdecimal() and len(size) < 3 else 1

    @property
    def core_sizes(self) -> dict[int, int]:
        """Physical NeuronCores in a logical core, for each chip of which it holds cores."""
        return {
            node.chip: self.core_size(device)
            for device in self.devices
            if not device.admin
            for node in device.nodes
            if node.cores
        }


class CheckpointEntry(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A plan as the checkpoint keeps it."""

    plan: Plan
    boot_id: str = ""
    """Boot of the node in which the claim was last prepared: containers of an earlier boot are gone."""

    def outlived(self, boot_id: str) -> bool:
        """Whether the node was certainly booted since, so that no container runs that was given the plan."""
        return bool(self.boot_id and boot_id) and self.boot_id != boot_id


def clashing_numbers(one: Shown, other: Shown) -> tuple[int, ...]:
    """Numbers that mean different chips in two claims, ascending."""
    chips: dict[int, set[int]] = {}
    for number, chip in one:
        chips.setdefault(number, set()).add(chip)
    return tuple(sorted({number for number, chip in other if chips.get(number, set()) - {chip}}))


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
    """What it held as far as its CDI spec or the API server shows; None: not known, so it may be anything. A chip
    counts as a whole, also where only some of its cores were held."""
    shown: Shown = frozenset()
    """What it showed, as far as its CDI spec tells."""

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
        """How many of the shareable claims show a chip under a container number."""
        self.with_cores: set[str] = set()

    def add(self, plan: Plan) -> None:
        self.claims[plan.uid] = plan
        if plan.has_cores:
            self.with_cores.add(plan.uid)
        for pod in _pods(plan):
            self.by_pod.setdefault(pod, {})[plan.uid] = plan
        if not plan.own_pod:
            self.shareable[plan.uid] = plan
            for number, chip in plan.shown:
                self.shown.setdefault(number, Counter())[chip] += 1

    def discard(self, plan: Plan) -> None:
        del self.claims[plan.uid]
        self.with_cores.discard(plan.uid)
        for pod in _pods(plan):
            del self.by_pod[pod][plan.uid]
            if not self.by_pod[pod]:
                del self.by_pod[pod]
        if self.shareable.pop(plan.uid, None) is not None:
            for number, chip in plan.shown:
                self.shown[number] -= Counter({chip: 1})


_REVISIONS = itertools.count(1)


class PreparedClaims:
    """Prepared claims by UID, by hardware and by who uses them. Changed only by the checkpoint, under its lock."""

    def __init__(self, entries: Iterable[CheckpointEntry] = (), quarantined: Iterable[Quarantined] = ()) -> None:
        self._entries: dict[str, CheckpointEntry] = {}
        self._holders: dict[int, dict[str, tuple[HardwarePart, ...]]] = {}
        """What claims hold of each chip."""
        self._namespaces: dict[str, _Namespace] = {}
        self._missing: set[str] = set()
        self._quarantined = {item.uid: item for item in quarantined}
        self.revision = next(_REVISIONS)
        """Another one after each change, and in each other index."""
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

    def holder(self, part: HardwarePart, *, exclude: str = "") -> Plan | None:
        """A claim other than ``exclude`` that has some of the hardware for itself."""
        for uid, parts in self._holders.get(part.chip, {}).items():
            if uid != exclude and any(part.overlaps(held) for held in parts):
                return self._entries[uid].plan
        return None

    def core_holders(self, chip: int, *, exclude: str) -> list[Plan]:
        """Claims other than ``exclude`` that hold cores of the chip."""
        return [
            self._entries[uid].plan
            for uid, parts in self._holders.get(chip, {}).items()
            if uid != exclude and any(part.cores for part in parts)
        ]

    def core_size(self, chip: int, *, exclude: str) -> int | None:
        """Physical cores in a logical one, as the chip's cores were offered that are held now; None: none is held."""
        return next(
            (
                len(part.cores)
                for uid, parts in self._holders.get(chip, {}).items()
                if uid != exclude
                for part in parts
                if part.cores
            ),
            None,
        )

    def quarantined_holder(self, chip: int, *, exclude: str) -> Quarantined | None:
        """An unreadable file of another claim than ``exclude`` that may hold the chip."""
        for item in self._quarantined.values():
            if item.uid != exclude and (item.chips is None or chip in item.chips):
                return item
        return None

    def shown_by_quarantined(self, *, exclude: str) -> Shown:
        """What claims with unreadable files show: their namespaces are not known."""
        return frozenset(pair for item in self._quarantined.values() if item.uid != exclude for pair in item.shown)

    def co_used(self, namespace: str, pods: frozenset[str] | None, consumers: Consumers, *, exclude: str) -> list[Plan]:
        """Claims other than ``exclude`` that one of the pods is known to use too (in doubt: that it may use).

        Args:
            namespace: of the pods.
            pods: UIDs; None: pods that are not known.
            consumers: what is known newly of who uses prepared claims.
            exclude: UID of the claim that asks.
        """
        index = self._namespaces.get(namespace) or _Namespace()
        plans: dict[str, Plan] = {}
        if pods is None:
            plans |= index.claims
        for pod in (*pods, _ANY_POD) if pods else ():
            plans |= index.by_pod.get(pod, {})
        for uid, users in consumers.items():
            entry = self._entries.get(uid)
            if entry is not None and (users is None or pods is None or not users.isdisjoint(pods)):
                plans[uid] = entry.plan
        plans.pop(exclude, None)
        return list(plans.values())

    def shareable_with_other(self, namespace: str, shown: Shown) -> list[Plan]:
        """Claims whose pods may have changed since, and that show another chip under one of the numbers."""
        index = self._namespaces.get(namespace)
        if index is None or not any(chip != wanted for number, wanted in shown for chip in index.shown.get(number, ())):
            return []
        return [plan for plan in index.shareable.values() if clashing_numbers(plan.shown, shown)]

    def companions(self, namespace: str, pods: frozenset[str] | None, *, exclude: str, cores: bool) -> list[Plan]:
        """Claims other than ``exclude`` that one of the pods may use too; none if there are no cores among them.

        Of a claim that is no pod's own, it is not known whether one of them does.

        Args:
            namespace: of the pods.
            pods: UIDs; None: pods that are not known.
            exclude: UID of the claim that asks.
            cores: whether that one has cores.
        """
        index = self._namespaces.get(namespace)
        if index is None or not (cores or index.with_cores):
            return []
        plans = [
            plan
            for plan in index.claims.values()
            if plan.uid != exclude and (not plan.own_pod or pods is None or plan.own_pod in pods)
        ]
        return plans if cores or any(plan.uid in index.with_cores for plan in plans) else []

    def add(self, entry: CheckpointEntry, *, missing: bool = False) -> None:
        """Put a claim in, or replace it."""
        plan = entry.plan
        self.discard(plan.uid)
        self.revision = next(_REVISIONS)
        if missing:
            self._missing.add(plan.uid)
        self._entries[plan.uid] = entry
        self._namespaces.setdefault(plan.namespace, _Namespace()).add(plan)
        for part in plan.held:
            holders = self._holders.setdefault(part.chip, {})
            holders[plan.uid] = (*holders.get(plan.uid, ()), part)

    def discard(self, uid: str) -> None:
        """Take a claim out; unknown ones are fine."""
        self.revision = next(_REVISIONS)
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
            del self._holders[chip][uid]
            if not self._holders[chip]:
                del self._holders[chip]

    def quarantine(self, item: Quarantined) -> None:
        """Put an unreadable file in, or what is now known of it."""
        self.revision = next(_REVISIONS)
        self._quarantined[item.uid] = item

    def settle(self, uid: str) -> None:
        """Forget an unreadable file; unknown ones are fine."""
        self.revision = next(_REVISIONS)
        self._quarantined.pop(uid, None)


def _pods(plan: Plan) -> tuple[str, ...]:
    return (_ANY_POD,) if plan.pods is None else plan.pods
