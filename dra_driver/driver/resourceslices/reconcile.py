"""What to write so that the API server's slices of a pool become the desired ones, the writes, and who makes them.

The rules are those of Kubernetes' own Go controller: slices are matched by the index at the start of their names; all
slices of a pool carry one generation, which grows when more than one slice changes or a slice is added, so that a
scheduler never mixes old and new ones.

**Which instance writes.** During a rolling update the old and the new instance run side by side and may want different
slices (another ``draDriverVersion`` at least). kubelet calls the newest one, so its slices count. Each write leaves the
writer's stamp on the slice; an instance that finds other content under the stamp of a newer instance leaves it alone
for a time, in case the newer one has gone, and then asserts its own again: after two minutes, then four, up to an hour.

A stamp is the host's boot id and the start in time since boot. Both are of the host, not of a container, and the time
since boot never goes back, so the order does not depend on clocks being set. A stamp of an earlier boot is of an
instance that cannot be running.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Self

import msgspec

from dra_driver.driver.resourceslices.pool import dropped_counters
from dra_driver.kube.api.codec import unrecognised
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import ResourceApi, Stored
from dra_driver.kube.objects.meta import ObjectMeta
from dra_driver.kube.objects.resource import CounterSet, Device, ResourcePool, ResourceSlice, ResourceSliceSpec
from dra_driver.util import runtime
from dra_driver.util.worker import Backoff


@dataclass(frozen=True, slots=True)
class ServerNormalized:
    """A server's answer that was not what was sent (it dropped or added fields): to be left as it is."""

    sent: ResourceSliceSpec
    stored: ResourceSliceSpec
    unrecognised: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Changes:
    """To be done in this order. ``update`` and ``create`` are the objects to send."""

    delete: tuple[ResourceSlice, ...]
    update: tuple[ResourceSlice, ...]
    create: tuple[ResourceSlice, ...]
    keep: tuple[ResourceSlice, ...]
    """Existing slices that are right as they are."""
    generation: int

    @property
    def empty(self) -> bool:
        """Whether the server has what is desired."""
        return not (self.delete or self.update or self.create)


def decide(
    existing: Sequence[ResourceSlice],
    desired: Sequence[ResourceSlice],
    normalized: Mapping[str, ServerNormalized] | None = None,
) -> Changes:
    """Compare what is with what should be.

    Args:
        existing: slices of the driver on the node as stored, of any pool. Others are left alone.
        desired: at least one slice, all of one pool, as ``pool`` makes them; their generation does not matter.
        normalized: by slice name, what the server made of an earlier write.
    """
    normalized = normalized or {}
    spec = desired[0].spec
    own = [item for item in existing if (item.spec.driver, item.spec.node_name) == (spec.driver, spec.node_name)]
    in_pool = [item for item in own if item.spec.pool.name == spec.pool.name]
    newest = max((item.spec.pool.generation for item in in_pool), default=0)
    current = [item for item in in_pool if item.spec.pool.generation == newest and not _terminating(item)]

    matched = dict(_match(current, desired, newest, normalized))
    changed = [index for index, item in matched.items() if not _same(item, _at(desired[index], newest), normalized)]
    is_addition = len(matched) < len(desired)
    generation = newest + 1 if newest == 0 or is_addition or len(changed) > 1 else newest
    updated = [*matched] if generation != newest else changed
    keep = [item for index, item in matched.items() if index not in updated]
    kept_names = {item.metadata.name for item in matched.values()}
    return Changes(
        delete=tuple(item for item in own if item.metadata.name not in kept_names and not _terminating(item)),
        update=tuple(_replacement(matched[index], _at(desired[index], generation)) for index in updated),
        create=tuple(_at(item, generation) for index, item in enumerate(desired) if index not in matched),
        keep=tuple(keep),
        generation=generation,
    )


def _match(
    current: Sequence[ResourceSlice],
    desired: Sequence[ResourceSlice],
    generation: int,
    normalized: Mapping[str, ServerNormalized],
) -> Iterator[tuple[int, ResourceSlice]]:
    """The existing slice to keep for each index. Of several, one that needs no write, else the first by name."""
    for index, wanted in enumerate(desired):
        candidates = [item for item in current if item.metadata.name.startswith(wanted.metadata.generate_name)]
        target = _at(wanted, generation)
        if candidates:
            yield index, min(candidates, key=lambda item: (not _same(item, target, normalized), item.metadata.name))


def _same(stored: ResourceSlice, wanted: ResourceSlice, normalized: Mapping[str, ServerNormalized]) -> bool:
    if stored.metadata.owner_references != wanted.metadata.owner_references:
        return False
    if stored.spec == wanted.spec and not unrecognised(stored):
        return True
    return normalized.get(stored.metadata.name) == ServerNormalized(wanted.spec, stored.spec, unrecognised(stored))


def _at(item: ResourceSlice, generation: int) -> ResourceSlice:
    numbered = msgspec.structs.replace(item.spec.pool, generation=generation)
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, pool=numbered))


def _replacement(stored: ResourceSlice, wanted: ResourceSlice) -> ResourceSlice:
    """What to send instead of ``stored``: its identity, labels, annotations and finalizers, our owner and spec."""
    metadata = msgspec.structs.replace(
        stored.metadata,
        owner_references=wanted.metadata.owner_references,
        creation_timestamp=None,
        deletion_timestamp=None,
    )
    return msgspec.structs.replace(wanted, metadata=metadata)


def _terminating(item: ResourceSlice) -> bool:
    """Being deleted, held by a finalizer: cannot be kept, and needs no second deletion."""
    return item.metadata.deletion_timestamp is not None


log = logging.getLogger(__name__)

TAINTS: Final = "devices[].taints"
"""Path in a slice's ``spec``, as a server's answer names it that has dropped them."""


class CountersDropped(Exception):  # noqa: N818 # the server's answer, not its error
    """The server stored a slice without its counters: what is left of it must not stay."""


class TaintsDropped(Exception):  # noqa: N818 # the server's answer, not its error
    """The server stored a slice without its taints: sick chips are offered there as if they were well."""


Counted = Literal["creates", "updates", "deletes"]
"""Kinds of writes, as ``SliceStatus`` counts them."""


@dataclass(slots=True)
class Writer:
    """For one thread.

    Args:
        api: the API server.
        annotation: name of the annotation that records who wrote a slice.
        stamp: its value.
        before_each: called before each write; what it raises ends the work.
        count: called after each write that succeeded, with what it was.
    """

    api: ResourceApi
    annotation: str
    stamp: str
    before_each: Callable[[], None]
    count: Callable[[Counted], None]
    normalized: dict[str, ServerNormalized] = field(default_factory=dict)
    """By slice name, what the server made of a write: to be left as it is."""
    dropped: frozenset[str] = frozenset()
    """Fields that the server did not keep, of all writes."""

    def apply(self, changes: Changes) -> list[ResourceSlice]:
        """Write; gives the slices as stored.

        Raises:
            ApiError: what has changed meanwhile is a conflict (409).
            CountersDropped: at the first slice that lost its counters; nothing is written after it.
            TaintsDropped: the same for taints.
        """
        for item in changes.delete:
            self.before_each()
            try:
                self.api.delete_slice(item)
            except ApiError as error:
                if error.status != 404:
                    raise
            self.count("deletes")
        stored = [self._write(self.api.update_slice, item, "updates") for item in changes.update]
        stored += [self._write(self.api.create_slice, item, "creates") for item in changes.create]
        there = {item.metadata.name for item in (*changes.keep, *stored)}
        self.normalized = {name: value for name, value in self.normalized.items() if name in there}
        return stored

    def _write(
        self, send: Callable[[ResourceSlice], Stored[ResourceSlice]], item: ResourceSlice, counted_as: Counted
    ) -> ResourceSlice:
        self.before_each()
        annotations = {**item.metadata.annotations, self.annotation: self.stamp}
        metadata = msgspec.structs.replace(item.metadata, annotations=annotations)
        answer = send(msgspec.structs.replace(item, metadata=metadata))
        self.count(counted_as)
        stored = answer.object
        if stored.spec != item.spec or unrecognised(stored):
            # Sending it again would not help: the server does not have the feature, or has one of its own.
            self.normalized[stored.metadata.name] = ServerNormalized(item.spec, stored.spec, unrecognised(stored))
        if answer.dropped:
            log.warning(
                "the API server did not keep %s of slice %s; a feature gate is off or the version is too old",
                ", ".join(answer.dropped),
                stored.metadata.name,
            )
            self.dropped |= frozenset(answer.dropped)
            if dropped_counters(answer.dropped):
                raise CountersDropped
            if TAINTS in answer.dropped:
                raise TaintsDropped
        return stored


def trial(
    api: ResourceApi, driver: str, node: str, devices: tuple[Device, ...] = (), counters: tuple[CounterSet, ...] = ()
) -> tuple[str, ...] | None:
    """Fields of a slice with these that the server would not keep now; None if it does not say. Nothing is stored.

    A feature gate changes without the version, and with a restart of the server that a client may not notice; so
    whoever depends on optional fields asks at each look.
    """
    spec = ResourceSliceSpec(driver, ResourcePool(node, 1, 1), node, devices=devices, shared_counters=counters)
    try:
        return api.create_slice(ResourceSlice(ObjectMeta(generate_name="trial-"), spec), dry_run=True).dropped
    except ApiError as error:
        if error.status not in (400, 403, 405, 422):
            raise
        log.info("the API server does not say which fields it keeps; this is determined from what it stores: %s", error)
        return None


YIELD_SECONDS: Final = 120.0
MAX_YIELD_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class DriverInstance:
    """One run of the driver."""

    boot: str
    """The host's boot id."""
    started: int
    """Milliseconds from boot to start."""
    identity: str
    """Any text without a slash that distinguishes instances."""

    @classmethod
    def here(cls, boot_id: str) -> Self:
        """This process, now.

        Args:
            boot_id: of the host (``neuron.host.discover.boot_id``); "" if unknown, to any instance on this host.
        """
        return cls(boot_id or "unknown", int(runtime.uptime() * 1000), os.urandom(4).hex())

    @property
    def stamp(self) -> str:
        """What a write leaves on the slice."""
        return f"{self.boot}/{self.started}/{self.identity}"

    def is_older_than(self, stamp: str) -> bool:
        """Whether the stamp is that of an instance that started after this one. A text that is no stamp is not."""
        boot, _, rest = stamp.partition("/")
        started, _, identity = rest.partition("/")
        if boot != self.boot or not (started.isascii() and started.isdecimal() and len(started) < 20):
            return False
        return (int(started), identity) > (self.started, self.identity)


class InstancePriority:
    """Decides whether this instance may write over what it found. Not thread-safe.

    Args:
        instance: this run.
        yield_seconds: how long a newer instance's content is left alone at first.
    """

    def __init__(self, instance: DriverInstance, yield_seconds: float = YIELD_SECONDS) -> None:
        self._instance = instance
        self._yield_seconds = yield_seconds
        self._rival = ""
        self._waits = Backoff()
        self.until = 0.0
        """The newer instance's content is left alone until this time."""

    def defers(self, stamps: Sequence[str], now: float, *, as_before: bool) -> bool:
        """Whether to leave alone what there is.

        Args:
            stamps: those of the slices found, "" for none.
            now: a clock that never goes back, in seconds.
            as_before: the slices are as this instance last left or saw them.
        """
        newer = [stamp for stamp in stamps if self._instance.is_older_than(stamp)]
        if not newer:
            return False
        if self._rival not in newer:
            self._rival = max(newer)
            # No jitter: the only other party is on the same node.
            self._waits = Backoff(first=self._yield_seconds, cap=MAX_YIELD_SECONDS, random=lambda: 1.0)
            self.until = now + self._waits.next()
        elif self.until <= now:
            if as_before:
                return False
            self.until = now + self._waits.next()
        return True
